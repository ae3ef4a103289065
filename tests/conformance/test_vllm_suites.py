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


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.skipif(not SOURCE, reason="TEST_VLLM_SOURCE names no source of vLLM")
def test_what_fails_has_a_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = results(tmp_path)
    rows: list[dict[str, str]] = TABLE["reason"]
    used: Counter[str] = Counter()
    unknown = []
    for result in found:
        if result["outcome"] != "failed":
            continue
        row = next((row for row in rows if result["test"].startswith(row["test"])), None)
        if row is None:
            unknown.append(f"{result['test']}: {result['why']}")
        else:
            used[row["test"]] += 1
    kinds = Counter({row["kind"]: 0 for row in rows})
    for row in rows:
        kinds[row["kind"]] += used[row["test"]]
    with capsys.disabled():
        print(Counter(result["outcome"] for result in found), dict(kinds))
    assert not unknown, "\n".join(unknown)
    # What another model's words would let pass may pass by this one's.
    idle = [row["test"] for row in rows if row["kind"] != "model" and not used[row["test"]]]
    assert not idle, "they pass now"
