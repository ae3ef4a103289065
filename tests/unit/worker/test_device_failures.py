"""A worker whose device fails ends, whatever its threads are at, with a status that is not 0."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from shared.runtime.dying import EXIT_STUCK

ENDS = {
    "memory": (1, "CUDA out of memory"),
    "launch": (1, "CUDA error: the device does not answer"),
    "result": (1, "CUDA error: unspecified launch failure"),
    "hung": (EXIT_STUCK, "a step of 1 turns has run for 0 s"),
}


@pytest.fixture(scope="module")
def workers() -> Iterator[dict[str, "subprocess.Popen[str]"]]:
    """One of each, side by side."""
    command = [sys.executable, "-m", "tests.unit.worker.failing_worker"]
    running = {
        failure: subprocess.Popen([*command, failure], stderr=subprocess.PIPE, text=True)
        for failure in ENDS
    }
    yield running
    for each in running.values():
        each.kill()
        each.communicate()


@pytest.mark.parametrize("failure", ENDS)
def test_the_process_ends(workers: dict[str, "subprocess.Popen[str]"], failure: str) -> None:
    _, stderr = workers[failure].communicate(timeout=60)
    status, said = ENDS[failure]
    assert workers[failure].returncode == status and said in stderr
