"""The supervisor where the disk is full, or where a server's data is damaged."""

import errno
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.base.children import start_child
from cli.base.config import LauncherConfig
from cli.base.reporting import complain
from cli.base.runfile import write_run_state
from cli.start.options import DeploymentOptions
from cli.start.plan import ChildPlan, DeploymentPlan
from cli.start.server_data import ServerData
from cli.supervisor import deployment
from cli.supervisor.deployment import Supervisor
from cli.supervisor.rotation import LogKeeper
from cli.supervisor.signals import StopSignals
from tests.unit.cli.supervisor.test_supervisor import (
    SLEEP,
    Notes,
    make_supervisor,
    pid_now,
    pid_of,
    stand_in,
    watch,
)

SERVER = """
import os, socket, sys, time
if os.path.exists(sys.argv[1]): raise SystemExit(1)
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[2])
server.listen()
print("ready", flush=True)
time.sleep(1000)
"""


@pytest.fixture
def signals() -> Iterator[StopSignals]:
    with StopSignals() as signals:
        yield signals


def test_a_server_that_cannot_read_its_data_is_started_without(
    tmp_path: Path, signals: StopSignals
) -> None:
    data, socket, log = tmp_path / "data", tmp_path / "socket", tmp_path / "db.log"
    data.write_text("damaged")
    command = [sys.executable, "-S", "-c", SERVER, str(data), str(socket)]
    kept = ServerData(folder=tmp_path, names=("data",), lost="all records", ready=b"ready")
    plan = ChildPlan("db", 0, log, lambda: start_child(command, log_path=log), socket, data=kept)
    notes = Notes()
    supervisor = Supervisor(
        DeploymentOptions(data_dir=tmp_path),
        DeploymentPlan("", "", [plan], []),
        notes,
        signals,
        LogKeeper(tmp_path, 0, notes.event),
        LauncherConfig(),
    )
    try:
        supervisor.start()
        (said,) = [text for text in notes.said if "cannot read its data" in text]
        (aside,) = tmp_path.glob("data.damaged-*")
        assert "all records" in said and str(aside) in said
        assert aside.read_text() == "damaged" and not data.exists()
    finally:
        supervisor.stop()


def test_a_full_disk_stops_nothing(
    tmp_path: Path, signals: StopSignals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Supervisor, "_is_ready", lambda _: True)
    monkeypatch.setattr(deployment, "REWRITE_NS", 1_000_000)
    supervisor, notes = make_supervisor(tmp_path, signals, stand_in(tmp_path, "a", SLEEP))
    is_full = False

    def write(data_dir: Path, state: object) -> None:
        if is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_run_state(data_dir, state)  # type: ignore[arg-type]

    monkeypatch.setattr(deployment, "write_run_state", write)
    try:
        supervisor.start()
        supervisor.wait_ready()
        old = pid_of(tmp_path, "a")
        is_full = True
        os.kill(old, signal.SIGKILL)
        while pid_now(supervisor, "a") in (None, old):
            watch(supervisor, 5.0)
        watch(supervisor, 0.01)
        outdated = [text for text in notes.said if "run.json" in text]
        assert outdated == ["run.json is out of date: No space left on device"]
        assert pid_of(tmp_path, "a") == old
        is_full = False
        while pid_of(tmp_path, "a") == old:
            watch(supervisor, 5.0)
        assert pid_of(tmp_path, "a") == pid_now(supervisor, "a")
    finally:
        supervisor.stop()


def test_a_child_that_cannot_be_started_is_tried_again(
    tmp_path: Path, signals: StopSignals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Supervisor, "_is_ready", lambda _: True)
    supervisor, notes = make_supervisor(tmp_path, signals, stand_in(tmp_path, "a", SLEEP))
    start, num_failures = Supervisor._start_child, 0

    def fail_once(self: Supervisor, name: str) -> None:
        nonlocal num_failures
        num_failures += 1
        if num_failures == 1:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        start(self, name)

    try:
        supervisor.start()
        supervisor.wait_ready()
        old = pid_of(tmp_path, "a")
        monkeypatch.setattr(Supervisor, "_start_child", fail_once)
        os.kill(old, signal.SIGKILL)
        while pid_now(supervisor, "a") in (None, old):
            watch(supervisor, 5.0)
        assert any("a cannot be started" in text for text in notes.said)
    finally:
        supervisor.stop()


def test_words_that_no_disk_takes_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "w", buffering=1) as full:
        monkeypatch.setattr(sys, "stderr", full)
        complain("something happened")
        monkeypatch.undo()
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())  # what it holds goes there


def test_a_child_starts_without_its_log() -> None:
    child = start_child([sys.executable, "-S", "-c", ""], log_path=Path("/proc/none/child.log"))
    assert child.wait() == 0
