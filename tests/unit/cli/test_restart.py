"""What `restart` replaces, and when it refuses."""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cli import restart as module
from cli.base.runfile import RunningService, take_lock, write_run_state
from cli.restart import chosen, restart
from shared.errors import ConfigError, NotFound, PeerUnavailable
from tests.unit.cli.test_runfile import STATE

NAMES = ["nats", "redis", "kvstore", "scheduler", "scheduler-spare-0", "frontend", "worker-0"]
RUN = replace(
    STATE,
    names=NAMES,
    services=[RunningService(name=name, pid=pid) for pid, name in enumerate(NAMES, start=9)],
)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Path]:
    lock = take_lock(tmp_path)
    write_run_state(tmp_path, RUN)
    yield tmp_path
    os.close(lock)


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    signals: list[tuple[int, int]] = []
    monkeypatch.setattr("cli.restart.os.kill", lambda *signal: signals.append(signal))
    monkeypatch.setattr(module, "WHOLE_WITHIN_S", 0.0)
    monkeypatch.setattr(module, "BACK_WITHIN_S", 0.0)
    return signals


def test_all_services_are_replaced_the_frontend_last() -> None:
    services = ["kvstore", "scheduler", "scheduler-spare-0", "worker-0", "frontend"]
    assert chosen(NAMES, ()) == services


def test_processes_are_named_one_by_one_or_by_their_kind() -> None:
    assert chosen(NAMES, ["frontend", "scheduler"]) == [
        "scheduler", "scheduler-spare-0", "frontend",
    ]  # fmt: skip
    assert chosen(NAMES, ["nats", "worker-0"]) == ["nats", "worker-0"]


def test_a_name_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(ConfigError, match=r"'worker-7'.*: nats, redis, kvstore"):
        chosen(NAMES, ["worker-0", "worker-7"])


def test_nothing_is_replaced_where_nothing_runs_or_something_is_missing(
    tmp_path: Path, running: Path, ended: list[tuple[int, int]]
) -> None:
    with pytest.raises(NotFound):
        restart(tmp_path / "other", (), print)
    with pytest.raises(PeerUnavailable, match="nothing was restarted"):
        restart(running, (), print)
    write_run_state(running, replace(RUN, restarts=False))
    with pytest.raises(ConfigError, match="--no-restart"):
        restart(running, (), print)
    assert not ended


def test_one_that_does_not_come_back_ends_it(
    running: Path, ended: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_is_whole", lambda _, gone, within_s: not gone)
    with pytest.raises(PeerUnavailable, match="kvstore was asked to end and is not back"):
        restart(running, (), print)
    assert ended == [(11, signal.SIGTERM)], "the others were left alone"
