"""`symphony loadtest`, as a user starts it, against an emulated cluster: every kind of user."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadtest.adapters import Module, Recipe, write_adapter
from loadtest.deployment import environment, symphony
from services.worker.device.emulated import LORA_WIDTH
from shared.profiles import load_profile
from tests.cluster import Cluster, adapter_options

PLOTS = {"ttft_cdf.png", "ttft_over_time.png", "places.png", "hints.png"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two adapters are there for those who talk to adapters."""
    folder = tmp_path_factory.mktemp("house")
    names = [f"layers.{layer}.emulated" for layer in range(load_profile("zero").num_layers)]
    modules = [Module(name, LORA_WIDTH, LORA_WIDTH) for name in names]
    adapters = {
        name: write_adapter(folder / name, modules, Recipe(seed=seed, rank=4))
        for seed, name in enumerate(("red", "blue"))
    }
    with Cluster(folder / "data", "--emulate", "zero", *adapter_options(adapters)) as running:
        yield running


def load(
    cluster: Cluster, out: Path, *arguments: str, users: int = 3, duration_s: int = 6
) -> dict[str, Any]:
    """What it says as JSON; it has to end well."""
    done = symphony(
        "loadtest", "--json", "--url", cluster.url, "--data-dir", str(cluster.data_dir),
        "--users", str(users), "--spawn-rate", "20", "--faster", "60",
        "--duration", str(duration_s), "--out", str(out), *arguments,
    )  # fmt: skip
    log = out / "locust.log"
    assert done.returncode == 0, done.stderr + (log.read_text() if log.exists() else "")
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["failures"] == 0
    assert found["turns"] > 0
    return found


def test_people_chat_and_the_report_sets_hinted_beside_unhinted(
    cluster: Cluster, tmp_path: Path
) -> None:
    found = load(cluster, tmp_path, "--watch", users=8, duration_s=15)
    for kind in ("first", "hinted", "unhinted"):
        assert found["kinds"][kind]["turns"] > 0
        assert found["kinds"][kind]["ttft_ms"]["p50"] > 0
    assert found["kinds"]["hinted"]["cached_percent"] > 0
    assert found["hints"]["used"] > 0
    assert sum(found["places"].values()) == found["prompt_tokens"]
    assert {path.name for path in tmp_path.iterdir()} >= PLOTS
    text = (tmp_path / "summary.md").read_text()
    assert "| hinted |" in text and "| unhinted |" in text
    assert len((tmp_path / "turns.jsonl").read_text().splitlines()) == found["turns"]
    table = (tmp_path / "locust_stats.csv").read_text()
    for name in ("TTFT,hinted", "TTFT,unhinted", "TPOT,first"):
        assert f"\n{name}," in table
    assert "\ncached," not in table and "\nhint," not in table  # percents and counts stand apart


def test_locust_alone_reports_times_and_apart_from_them_percents_and_counts(
    cluster: Cluster,
) -> None:
    done = subprocess.run(
        [
            sys.executable, "-m", "locust", "-f", "loadtest/users/locustfile.py", "--headless",
            "--host", cluster.url, "--processes", "2", "-u", "8", "-r", "8", "-t", "12s",
            "--faster", "60",
        ],
        env=environment(), capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "Traceback" not in said
    shares, _, tables = said.rpartition("Response time percentiles")
    kinds = {line.split()[0] for line in tables.splitlines() if line and line[0].isalpha()}
    assert {"TTFT", "TPOT", "turn"} <= kinds <= {"TTFT", "TPOT", "turn", "Type"}
    assert re.search(r"how many +TTFT p50 ms +p99 ms +cached", shares)
    assert re.search(r"^hints: .*used \d+", shares, re.MULTILINE)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--profile", "prefill", "--prompt-tokens", "300"),
        ("--profile", "agents"),
        ("--profile", "adapters", "--popularity", "zipf:1"),
        ("--profile", "open", "--rate", "4"),
    ],
    ids=lambda arguments: arguments[1],
)
def test_other_users_are_served(
    cluster: Cluster, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    found = load(cluster, tmp_path, *arguments)
    assert found["settings"]["profile"] == arguments[1]
    if "open" in arguments:
        assert found["goodput"]["bad_share"] < 1


def test_what_cannot_be_is_one_line(cluster: Cluster, tmp_path: Path) -> None:
    done = symphony(
        "loadtest", "--url", cluster.url, "--profile", "replay", "--trace", "nonsense",
        "--out", str(tmp_path), "--data-dir", str(cluster.data_dir),
    )  # fmt: skip
    assert done.returncode == 1
    assert "--trace nonsense: unknown" in done.stderr
    assert "Traceback" not in done.stderr
    done = symphony("loadtest", "--data-dir", str(tmp_path))
    assert done.returncode == 1
    assert "symphony up" in done.stderr
