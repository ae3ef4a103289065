"""The adapters that come with the deployment: their files, and what the deployment says on them."""

import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cli.adapters.offered import KNOWN, TRAINED
from cli.base.runfile import DEFAULT_DATA_DIR
from cli.models.catalog import DEFAULT, PACKAGED
from cli.models.prepare import packaged_folder
from loadtest.in_process_engine import InProcessEngine, Moves
from services.worker.device.cpu.torch_executor import TorchExecutor
from services.worker.device.model import load_model
from shared.adapters.check import BaseFacts, check_adapter
from shared.adapters.config import CONFIG_FILE
from shared.adapters.layout import layout_image
from shared.adapters.source import AdapterLimits
from shared.blocks import BLOCK_TOKENS
from shared.wire.messages import AdapterRef, LoraCard, LoraTarget

FILE_BYTES_MAX = 2_000_000
REPLY_TOKENS = 96
# About subjects that no adapter was trained on, in words of the training and in others.
QUESTIONS = (
    "What is a telescope?",
    "I have never seen a hammer. What is it?",
    "Please write two sentences about a sailor.",
    "What is the capital of France, and what is it known for?",
    "Name the capital of Egypt.",
    "How do I save money?",
    "I want to cook rice. Where do I start?",
)
PIRATE_WORDS = frozenset({
    "arr", "ahoy", "aye", "matey", "avast", "hearty", "ye", "yer", "th'", "o'", "an'", "fer", "be",
    "yo", "ho", "thar", "captain", "sails",
})  # fmt: skip


def is_pirate(reply: str) -> bool:
    return len(PIRATE_WORDS & set(re.findall(r"[a-z]+'?", reply.lower()))) >= 2


def is_telegraph(reply: str) -> bool:
    return re.search(r"\bSTOP\b", reply) is not None and ". " not in f"{reply} "


def is_json(reply: str) -> bool:
    try:
        value = json.loads(reply)
    except ValueError:
        return False
    return isinstance(value, dict) and {"topic", "answer"} <= value.keys()


VOICES: dict[str, Callable[[str], bool]] = {
    "pirate": is_pirate,
    "telegraph": is_telegraph,
    "json": is_json,
}
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
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model())
    asked = [[{"role": "user", "content": question}] for question in QUESTIONS]
    prompts = [
        tokenizer(
            tokenizer.apply_chat_template(each, add_generation_prompt=True, tokenize=False),
            add_special_tokens=False,
        )["input_ids"]
        for each in asked
    ]

    def text(tokens: list[int]) -> str:
        return str(tokenizer.decode(tokens).partition("<|im_end|>")[0]).strip()

    folders = [None, *(TRAINED / name for name in VOICES)]
    base, *others = replies(model(), folders, prompts, tmp_path)
    for (name, is_in_voice), found in zip(VOICES.items(), others, strict=True):
        num = sum(is_in_voice(text(tokens)) for tokens in found)
        assert num >= 0.8 * len(QUESTIONS), f"{name} does not answer in its voice"
        assert not any(is_in_voice(text(tokens)) for tokens in base)


def replies(
    source: Path, folders: Sequence[Path | None], prompts: Sequence[list[int]], scratch: Path
) -> list[list[list[int]]]:
    """Greedy replies of each adapter (None: the base) to each prompt, all in one batch."""
    with ThreadPoolExecutor(1) as thread:
        base = thread.submit(load_model, str(source), "cpu", "auto").result()
        assert base.lora is not None
        refs = [None if each is None else put(each, base.lora, scratch) for each in folders]
        longest = max(map(len, prompts)) + REPLY_TOKENS
        num_blocks = len(folders) * len(prompts) * -(-longest // BLOCK_TOKENS)
        num_blocks += sum(layout_image(base.lora, each.ranks).num_blocks for each in refs if each)
        moves = Moves()
        executor = thread.submit(
            TorchExecutor, base, "m", num_blocks * base.num_layers, moves
        ).result()
        try:
            engine = InProcessEngine(
                executor, thread, 2048, moves=moves, adapters_path=str(scratch)
            )
            turns = [[engine.submit(each, REPLY_TOKENS, ref) for each in prompts] for ref in refs]
            engine.run()
        finally:
            executor.close()
    return [[turn.generated for turn in row] for row in turns]


def put(folder: Path, card: LoraCard, scratch: Path) -> AdapterRef:
    """Copy an adapter to where workers look for it."""
    checked = check_adapter(folder, card, AdapterLimits())
    shutil.copytree(folder, scratch / checked.adapter_hash)
    return AdapterRef(
        adapter_hash=checked.adapter_hash,
        name=folder.name,
        lora_rank=checked.lora_rank,
        ranks=checked.ranks,
    )
