"""The environment of workers on vLLM: which Python is taken, and what it must have."""

import os
import re
from pathlib import Path

import pytest

from cli import vllm_environment
from cli.inspection.doctor import examine
from cli.start.options import DeploymentOptions
from cli.up import check_options
from cli.vllm_environment import (
    FROM_VLLM,
    VARIABLE,
    describe_environment,
    needed_beside,
    worker_python,
)
from shared.errors import ConfigError


def fake_python(path: Path, says: str, status: int = 0) -> Path:
    path.write_text(f"#!/bin/sh\necho '{says}'\nexit {status}\n")
    path.chmod(0o755)
    return path


def test_a_python_that_has_vllm_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = fake_python(tmp_path / "python", "0.32.0")
    monkeypatch.setenv(VARIABLE, str(python))
    assert worker_python() == str(python)


@pytest.mark.parametrize(
    ("says", "status", "word"),
    [("", 0, "has no vLLM"), ("0.32.0", 1, "has no vLLM"), ("0.23.0", 0, r"vLLM 0\.23\.0 was not")],
)
def test_any_other_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, status: int, word: str
) -> None:
    monkeypatch.setenv(VARIABLE, str(fake_python(tmp_path / "python", says, status)))
    with pytest.raises(ConfigError, match=word):
        worker_python()


def test_a_python_that_is_not_there_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=f"{VARIABLE}.*{os.strerror(2)}"):
        worker_python()


@pytest.mark.parametrize(
    ("build", "devices", "is_fine", "word"),
    [
        ("cpu", "", True, "0.32.0, of the tested .*on the CPU"),
        ("cuda", "NVIDIA H200; NVIDIA H200", True, "on NVIDIA H200; NVIDIA H200"),
        ("cuda", "", False, "is built for GPUs and sees none"),
        ("", "", False, "torch cannot be imported"),
    ],
)
def test_doctor_says_what_vllm_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    build: str, devices: str, is_fine: bool, word: str,
) -> None:  # fmt: skip
    python = tmp_path / "python"
    asked = f"case $2 in *torch*) printf '{build}\\n{devices}\\n' ;; *) echo 0.32.0 ;; esac"
    python.write_text(f"#!/bin/sh\n{asked}\n")
    python.chmod(0o755)
    monkeypatch.setenv(VARIABLE, str(python))
    monkeypatch.setenv("SYMPHONY_ENGINE", "vllm")
    *_, engine, files, model = examine(tmp_path, describe_environment, models=["demo"])
    assert (engine.subject, engine.is_fine) == ("vllm", is_fine)
    assert re.search(word, engine.text), engine.text
    assert files.is_fine and model.is_fine and "vLLM says" in model.text


def test_doctor_installs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_environment, "FOLDER", tmp_path / "none")
    monkeypatch.delenv(VARIABLE, raising=False)
    assert "`up --engine vllm` makes" in describe_environment()
    assert not list(tmp_path.iterdir())


def test_what_vllm_pins_is_left_to_it() -> None:
    names = {re.split(r"[<>=]", each)[0] for each in needed_beside()}
    assert names >= {"nats-py", "orjson", "pydantic-settings", "xxhash"}
    assert not names & FROM_VLLM


def test_emulated_models_are_the_other_engines(tmp_path: Path) -> None:
    options = DeploymentOptions(data_dir=tmp_path, emulate="zero", engine="vllm")
    with pytest.raises(ConfigError, match="--engine vllm"):
        check_options(options)
