"""Models that lack weights are refused before anything starts."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from cli.models.weights import check_weights
from loadtest.deployment import symphony
from services.worker.check_models import check_model
from services.worker.models.demo_model import make_demo_model
from shared.errors import ConfigError


def broken_model(folder: Path) -> str:
    """The demo model without a tensor, whose name it is."""
    make_demo_model(folder)
    weights = load_file(folder / "model.safetensors")
    name = sorted(weights)[0]
    del weights[name]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return name


def test_a_start_ends_with_the_tensors_name(tmp_path: Path) -> None:
    name = broken_model(tmp_path / "mine")
    done = symphony("up", "--model", str(tmp_path / "mine"), "--data-dir", str(tmp_path / "data"))
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert name in last and "missing" in last and "Traceback" not in done.stderr
    assert not (tmp_path / "data" / "logs").exists()


def test_a_whole_model_is_looked_at_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        asked.append(command[-1:])
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    said: list[str] = []
    kept, folder = tmp_path / "kept", make_demo_model(tmp_path / "mine")
    for _ in range(2):
        check_weights([str(folder)], kept, said.append)
    assert asked == [[str(folder)]] and said == ["checking the weights of mine"]
    (folder / "config.json").write_text("{}")
    check_weights([str(folder)], kept, said.append)
    monkeypatch.setenv("SYMPHONY_TASKS", '{"mine": "classify"}')
    check_weights([str(folder)], kept, said.append)
    assert len(asked) == 3


def test_models_of_ones_own_making_and_those_far_away_are_left_alone(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    broken_model(kept / "made")
    said: list[str] = []
    check_weights([str(kept / "made"), "nobody/no-such-model"], kept, said.append)
    assert not said


def test_decoders_are_looked_at_without_their_values(tmp_path: Path) -> None:
    check_model(str(make_demo_model(tmp_path / "whole")), "generate")
    name = broken_model(tmp_path / "broken")
    with pytest.raises(ConfigError, match=name):
        check_model(str(tmp_path / "broken"), "generate")


def test_encoders_are_looked_at_as_what_they_are_for(tmp_path: Path) -> None:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48,
        vocab_size=80,
    )  # fmt: skip
    BertForMaskedLM(config).save_pretrained(tmp_path)
    check_model(str(tmp_path), "embed")
    with pytest.raises(ConfigError, match=r"classifier\.bias"):
        check_model(str(tmp_path), "classify")
