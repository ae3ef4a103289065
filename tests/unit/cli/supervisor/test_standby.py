"""The process that waits to become a worker, with a stand-in that says what it was given."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen

import pytest

from cli.base.children import start_child
from cli.start.plan import ChildPlan
from cli.supervisor import standby as module
from cli.supervisor.standby import PAUSE_NS, Standby
from shared.runtime.memory import Memory

TELLS = "import json, sys; print(json.dumps([sys.stdin.read(), 'end']), flush=True)"


@pytest.fixture(autouse=True)
def _memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "measure_memory", lambda: Memory(8 << 30, 8 << 30))


@pytest.fixture
def standby(tmp_path: Path) -> Iterator[Standby]:
    command = [sys.executable, "-S", "-c", TELLS]
    made = Standby(lambda: start_child(command, log_path=tmp_path / "log", has_input=True))
    yield made
    made.close()


def plan(tmp_path: Path, **environment: str) -> ChildPlan:
    def start() -> "Popen[bytes]":
        raise AssertionError("not like this")

    return ChildPlan("w", 0, tmp_path / "w.log", start, service="worker", environment=environment)


def waiting(standby: Standby) -> "subprocess.Popen[bytes] | None":
    return standby._process


def test_it_becomes_the_worker_that_it_is_told(tmp_path: Path, standby: Standby) -> None:
    standby.begin(0)
    assert standby.next_at_ns == PAUSE_NS
    standby.tend(PAUSE_NS - 1)
    assert standby.take(plan(tmp_path), 5) is None, "none is there yet"
    standby.tend(PAUSE_NS)
    assert standby.next_at_ns is None
    waits = waiting(standby)
    taken = standby.take(plan(tmp_path, A="1" * 60_000), PAUSE_NS)
    assert taken is not None
    assert taken is waits
    assert standby.next_at_ns == 2 * PAUSE_NS, "of the one after it"
    assert taken.wait() == 0
    order, end = json.loads((tmp_path / "log").read_text())
    assert end == "end"
    assert json.loads(order) == {
        "environment": {"A": "1" * 60_000},
        "log_path": str(tmp_path / "w.log"),
    }
    assert standby.take(plan(tmp_path), PAUSE_NS) is None, "it is one only"


def test_the_first_becomes_a_worker_before_any_is_kept(tmp_path: Path) -> None:
    command = [sys.executable, "-S", "-c", TELLS]
    first = start_child(command, log_path=tmp_path / "log", has_input=True)
    standby = Standby(lambda: pytest.fail("no other is wanted yet"), first)
    assert standby.take(plan(tmp_path), 5) is first
    assert first.wait() == 0
    assert standby.next_at_ns is None, "the cores are the worker's until it stands"
    standby.begin(7)
    assert standby.next_at_ns == 7 + PAUSE_NS


@pytest.mark.parametrize("is_waited_for", [False, True])
def test_one_that_has_ended_becomes_nothing(
    tmp_path: Path, standby: Standby, is_waited_for: bool
) -> None:
    standby.begin(0)
    standby.tend(PAUSE_NS)
    process = waiting(standby)
    assert process is not None
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    if is_waited_for:
        process.wait()
    assert standby.take(plan(tmp_path), 0) is None
    assert standby.next_at_ns is not None, "the next one is due"


def test_there_is_none_where_memory_is_short_or_no_process_can_be_had(
    monkeypatch: pytest.MonkeyPatch, standby: Standby
) -> None:
    monkeypatch.setattr(module, "measure_memory", lambda: Memory(8 << 30, 1 << 30))
    standby.begin(0)
    standby.tend(PAUSE_NS)
    assert waiting(standby) is None
    assert standby.next_at_ns == 2 * PAUSE_NS, "it looks again"

    def none_left() -> "Popen[bytes]":
        raise OSError("no more processes")

    refused = Standby(none_left)
    monkeypatch.setattr(module, "measure_memory", lambda: Memory(8 << 30, 8 << 30))
    refused.begin(0)
    refused.tend(PAUSE_NS)
    assert waiting(refused) is None


def test_it_ends_with_its_supervisor(tmp_path: Path) -> None:
    started: list[Popen[bytes]] = []

    def start() -> "Popen[bytes]":
        command: list[str] = [sys.executable, "-S", "-c", TELLS]
        started.append(start_child(command, log_path=tmp_path / "log", has_input=True))
        return started[0]

    standby = Standby(start)
    standby.begin(0)
    standby.tend(PAUSE_NS)
    standby.close()
    assert started[0].returncode is not None
    standby.close()  # twice is no harm
    standby.tend(10 * PAUSE_NS)
    assert len(started) == 1


def test_one_whose_code_was_replaced_becomes_nothing(
    tmp_path: Path, standby: Standby, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = tmp_path / "root" / "shared" / "some.py"
    code.parent.mkdir(parents=True)
    code.write_text("old = 1\n")
    monkeypatch.setattr(module, "ROOT", tmp_path / "root")
    standby.begin(0)
    standby.tend(PAUSE_NS)
    waits = waiting(standby)
    assert waits is not None
    os.utime(code, ns=(1, 1))
    assert standby.take(plan(tmp_path), PAUSE_NS) is None
    assert waits.poll() is not None, "it was ended"
    assert standby.next_at_ns == 2 * PAUSE_NS, "of the one after it"
