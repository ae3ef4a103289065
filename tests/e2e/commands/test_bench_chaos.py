"""`bench chaos` in a cluster of real processes, in small."""

import json
from typing import Any

import pytest

from loadtest.deployment import symphony

SMALL = ["--adapters", "24", "--streams", "8", "--spares", "0", "--undisturbed-seconds", "5"]


def chaos(*options: str) -> dict[str, Any]:
    """What it found: nothing that should not have been."""
    done = symphony("bench", "chaos", "--json", *SMALL, *options, timeout_s=600)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_helpers_and_a_worker_die_in_passes_that_they_assist() -> None:
    kills = "--kill", "helper-0,worker-0", "--stop", "helper-1", "--stop-seconds", "1"
    found = chaos("--lora-start", "assist", "--link-mb-s", "20", *kills)
    assert found["adapters"]["starts"]["assisted"] > 0
    aims = [fault["aim"] for fault in found["faults"]]
    assert "in a pass" in aims and "no pass came" not in aims


@pytest.mark.slow
def test_a_worker_and_the_kvstore_die_while_adapters_are_loaded() -> None:
    found = chaos("--lora-start", "wait", "--link-mb-s", "5", "--kill", "worker-0,kvstore")
    assert all(fault["adapters_awaited"] for fault in found["faults"])
