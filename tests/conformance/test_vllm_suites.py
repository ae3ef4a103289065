"""vLLM's own tests of its servers, asked of a deployment of ours.

`reasons.toml` has the reason for each that fails: what is not in it fails here, and what is in it
and passes, too.
"""

import json
import os
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cli.base.children import ROOT
from tests.cluster import Cluster

SOURCE = os.environ.get("TEST_VLLM_SOURCE", "")
PYTHON = os.environ.get("TEST_VLLM_PYTHON", sys.executable)
HERE = Path(__file__).parent
ADAPTERS = ROOT / "cli" / "adapters" / "trained"
TABLE = tomllib.loads((HERE / "reasons.toml").read_text())
# Tests are of a model each; here one serves for all that generate.
GENERATIVE = (
    "HuggingFaceH4/zephyr-7b-beta", "HuggingFaceTB/SmolLM2-135M-Instruct",
    "Qwen/Qwen2-1.5B-Instruct", "Qwen/Qwen2.5-1.5B-Instruct", "Qwen/Qwen3-0.6B",
    "Qwen/Qwen3-1.7B", "Qwen/Qwen3-8B", "claude-3-7-sonnet-latest", "openai-community/gpt2",
)  # fmt: skip
EMBEDDING = ("BAAI/bge-base-en-v1.5", "intfloat/multilingual-e5-small")
NAMES = [
    *(f"{name}=smollm2-135m" for name in GENERATIVE),
    *(f"{name}=minilm" for name in EMBEDDING),
]


def results(folder: Path) -> list[dict[str, Any]]:
    """Of each test that ran or did not: its name, outcome, and why."""
    options = [word for name in NAMES for word in ("--served-model-name", name)]
    models = ("--model", "smollm2-135m", "--model", "minilm")
    written = folder / "results.jsonl"
    settings = {"SYMPHONY_ADAPTER_DIRS": json.dumps([str(ADAPTERS), str(folder)])}
    with Cluster(folder / "data", *models, *options, settings=settings) as cluster:
        environment = {
            **os.environ,
            "PYTHONPATH": str(HERE),
            "CONFORMANCE_URL": cluster.url,
            "CONFORMANCE_ADAPTER": str(ADAPTERS / "pirate"),
            "CONFORMANCE_TOKENIZER": str(next((folder / "data" / "models").glob("*/smollm2-135m"))),
            "CONFORMANCE_RESULTS": str(written),
        }
        subprocess.run(
            [
                PYTHON, "-m", "pytest", "-q", "-p", "vllm_stand_ins", "-p", "no:xdist",
                "-c", os.devnull, "--rootdir", "tests/entrypoints", "--confcutdir",
                "tests/entrypoints", "--continue-on-collection-errors", "--timeout", "60",
                "--basetemp", str(folder / "theirs"),
                *(f"tests/entrypoints/{file}" for file in TABLE["files"]),
            ],
            cwd=SOURCE, env=environment, check=False,
        )  # fmt: skip
    return [json.loads(line) for line in written.read_text().splitlines()]


@dataclass(frozen=True, slots=True)
class Judged:
    """How many ended how, and failed for which kind of reason; which failed without one, and which
    reasons are of none that failed.
    """

    outcomes: Counter[str]
    kinds: Counter[str]
    unknown: list[str]
    idle: list[str]


def judge(found: Sequence[Mapping[str, str]], rows: Sequence[Mapping[str, str]]) -> Judged:
    """A failure's reason is of the row with the longest beginning of its name."""
    used: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    unknown = []
    for result in found:
        if result["outcome"] != "failed":
            continue
        fitting = [row for row in rows if result["test"].startswith(row["test"])]
        if not fitting:
            unknown.append(f"{result['test']}: {result['why']}")
            continue
        row = max(fitting, key=lambda row: len(row["test"]))
        used[row["test"]] += 1
        kinds[row["kind"]] += 1
    # What another model's words would let pass may pass by this one's.
    idle = [row["test"] for row in rows if row["kind"] != "model" and not used[row["test"]]]
    return Judged(Counter(each["outcome"] for each in found), kinds, unknown, idle)


def test_a_failure_without_a_reason_and_a_reason_without_a_failure_are_seen() -> None:
    rows = [
        {"test": "a::b", "kind": "words"}, {"test": "a::bc", "kind": "design"},
        {"test": "z", "kind": "theirs"}, {"test": "y", "kind": "model"},
    ]  # fmt: skip
    outcomes = {"a::b[1]": "failed", "a::bc": "failed", "d": "failed", "z": "passed"}
    found = [{"test": test, "outcome": how, "why": "so"} for test, how in outcomes.items()]
    judged = judge(found, rows)
    assert judged.kinds == {"words": 1, "design": 1}
    assert (judged.unknown, judged.idle) == (["d: so"], ["z"])
    assert judged.outcomes == {"failed": 3, "passed": 1}


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.skipif(not SOURCE, reason="TEST_VLLM_SOURCE names no source of vLLM")
def test_what_fails_has_a_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    judged = judge(results(tmp_path), TABLE["reason"])
    with capsys.disabled():
        print(judged.outcomes, judged.kinds)
    assert not judged.unknown, "\n".join(judged.unknown)
    assert not judged.idle, "they pass now"
