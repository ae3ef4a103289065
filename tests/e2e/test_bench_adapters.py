"""`bench adapters` in small: a cluster with more adapters than its pool has room for."""

import json
from pathlib import Path
from typing import Any

import pytest

from loadtest.deployment import symphony


@pytest.mark.slow
def test_all_are_served_and_all_figures_are_there(tmp_path: Path) -> None:
    model = ["--model", "demo", "--models-dir", str(tmp_path), "--ranks", "4,8"]
    load = ["--popularity", "zipf:1", "--seconds", "3", "--warm-seconds", "2", "--seed", "1"]
    sizes = ["--adapters", "8", "--room", "2", "--turns", "2", "--adds", "1"]
    names = ["--names", "20", "--names-seconds", "0.5"]
    options = [*model, *load, *sizes, *names]
    done = symphony("bench", "adapters", "--json", *options, timeout_s=280)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["registered"]["num"] == 8
    assert found["first_token_after_add_ms"] >= found["add_ms"] > 0
    zipf = found["popularity"]["zipf:1"]
    assert zipf["requests"] > 0 and not zipf["failures"]
    assert sum(zipf["starts"].values()) == zipf["requests"] - zipf["base_requests"]
    assert 0 < zipf["hit_share"] < 1, "no adapter had to leave, or none could stay"
    assert sum(zipf["loads"].values()) > 0
    assert all(each["own_last"] > 0 for each in zipf["rss_mb"].values())
    assert found["names"]["registered"] == 20
    assert found["names"]["lookup_us"].keys() == {"core", "known", "base", "base_alone", "asked"}
