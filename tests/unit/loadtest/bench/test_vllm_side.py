"""Whole requests on vLLM, by a program that stands in for a Python that has it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.bench.lora.vllm_side import SAYS, VARIABLE, VllmPlan, VllmRun, vllm_tokens_per_s

PLAN = VllmPlan(
    source="/model", dtype="float32", batch=2, rank=8,
    runs={"base": VllmRun([""], [[1, 2]], [3]), "distinct": VllmRun(["/a"], [[4]], [5])},
)  # fmt: skip


def stand_in(folder: Path, code: str) -> str:
    python = folder / "python"
    python.write_text(f"#!{sys.executable}\nimport json, sys\n{code}\n")
    python.chmod(0o755)
    return str(python)


def test_a_plan_goes_to_the_other_python_and_its_numbers_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    took, asked = {"base": 1.5, "distinct": 0.5}, tmp_path / "asked.json"
    code = (
        f"open({str(asked)!r}, 'w').write(sys.stdin.read())\n"
        f"print('INFO of vLLM'); print({SAYS + json.dumps(took)!r}); print('INFO again')"
    )
    monkeypatch.setenv(VARIABLE, stand_in(tmp_path, code))
    assert vllm_tokens_per_s(PLAN) == took
    assert json.loads(asked.read_text())["runs"]["distinct"] == {
        "folders": ["/a"], "prompts": [[4]], "counts": [5],
    }  # fmt: skip


def test_vllm_that_fails_is_no_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, stand_in(tmp_path, "sys.exit(3)"))
    with pytest.raises(subprocess.CalledProcessError):
        vllm_tokens_per_s(PLAN)
    monkeypatch.delenv(VARIABLE)
    assert vllm_tokens_per_s(PLAN) == {}
