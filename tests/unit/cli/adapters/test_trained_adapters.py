"""The adapters that come with the deployment: their files, and what the deployment says on them."""

import json
import os
from pathlib import Path

import pytest

from cli.adapters.catalog import KNOWN, TRAINED
from cli.base.runfile import DEFAULT_DATA_DIR
from cli.models.catalog import DEFAULT, PACKAGED
from cli.models.prepare import packaged_folder
from loadtest.train_adapters.served import replies
from loadtest.train_adapters.talks import held_out
from loadtest.train_adapters.training import Trainer
from loadtest.train_adapters.voices import VOICES
from shared.adapters.check import BaseFacts, check_adapter
from shared.adapters.config import CONFIG_FILE
from shared.adapters.source import AdapterLimits
from shared.wire.messages import LoraCard, LoraTarget

FILE_BYTES_MAX = 2_000_000
SMOLLM2 = LoraCard(
    layers_path="model.layers",
    num_layers=30,
    element_bytes=2,
    page_bytes=2 * 3 * 64 * 64 * 2,
    dtype="bfloat16",
    targets=[
        LoraTarget(name=f"self_attn.{name}_proj", num_in=num_in, num_out=num_out)
        for name, num_in, num_out in (
            ("k", 576, 192), ("o", 576, 576), ("q", 576, 576), ("v", 576, 192)
        )
    ],
)  # fmt: skip


def model() -> Path:
    """Where the model is if it has been fetched."""
    data_dir = Path(os.environ.get("SYMPHONY_DATA_DIR", DEFAULT_DATA_DIR)).expanduser()
    return packaged_folder(PACKAGED[DEFAULT], data_dir / "models")


def test_every_one_that_is_named_is_there_and_no_other() -> None:
    named = {each.name for each in KNOWN.values() if not each.is_made}
    assert named == set(VOICES) == {path.name for path in TRAINED.iterdir() if path.is_dir()}
    assert {each.base for each in KNOWN.values() if not each.is_made} == {DEFAULT}


@pytest.mark.parametrize("name", VOICES)
def test_its_files_can_be_served_as_they_are_and_are_small(name: str) -> None:
    checked = check_adapter(TRAINED / name, SMOLLM2, AdapterLimits(), BaseFacts(names=(DEFAULT,)))
    assert checked.ranks == {each.name: 8 for each in SMOLLM2.targets}
    assert checked.num_bytes <= FILE_BYTES_MAX and checked.warnings == []
    config = json.loads((TRAINED / name / CONFIG_FILE).read_text())
    assert config["base_model_name_or_path"] == DEFAULT
    assert {path.name for path in (TRAINED / name).iterdir()} == {*checked.files}


@pytest.mark.slow
@pytest.mark.skipif(not model().is_dir(), reason="the model has not been fetched")
def test_each_is_heard_in_what_the_deployment_says_and_the_base_is_not(tmp_path: Path) -> None:
    """On questions that none was trained on; asked of all in one batch."""
    trainer = Trainer(model())
    talks = held_out(VOICES["json"], 1)[::6]
    prompts = [trainer.prompt(talk.messages[:1]) for talk in talks]
    folders = [None, *(TRAINED / name for name in VOICES)]
    base, *others = replies(model(), folders, prompts, 96, tmp_path)
    for (name, voice), said in zip(VOICES.items(), others, strict=True):
        heard = sum(voice.is_heard(trainer.text(tokens)) for tokens in said)
        assert heard >= 0.8 * len(talks), f"{name} is not heard"
        assert not any(voice.is_heard(trainer.text(tokens)) for tokens in base)
