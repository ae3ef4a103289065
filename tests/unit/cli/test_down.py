"""`down` leaves no shared memory behind, however the deployment ended."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cli.base.runfile import take_lock, write_run_state
from cli.down import down
from cli.start.options import DeploymentOptions
from shared.errors import NotFound, SymphonyError
from tests.unit.cli.test_runfile import STATE

STUBBORN = """
import fcntl, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
lock = open(sys.argv[1], "w")
fcntl.flock(lock, fcntl.LOCK_EX)
print("on", flush=True)
time.sleep(1000)
"""


@pytest.fixture
def arena(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    memory = tmp_path / "shm"
    monkeypatch.setattr("cli.start.hosts.SHARED_MEMORY", memory)
    arena = DeploymentOptions(data_dir=tmp_path).hosts[0].arena_dir
    arena.mkdir(parents=True, mode=0o700)
    (arena / "kv-1.arena").touch()
    return arena


def test_the_memory_of_every_host_is_removed_and_nobody_else_s(tmp_path: Path, arena: Path) -> None:
    others = DeploymentOptions(data_dir=tmp_path, num_hosts=12).hosts[1:]
    alike = [arena.with_name(f"{arena.name}{end}") for end in ("-x", "-1-2", "1")]
    for folder in (*(host.arena_dir for host in others), *alike):
        folder.mkdir(mode=0o700)
    with pytest.raises(NotFound):
        down(tmp_path)
    assert sorted(arena.parent.iterdir()) == sorted(alike)


@pytest.mark.parametrize("is_written_down", [True, False])
def test_a_killed_deployment_s_memory_is_removed(
    tmp_path: Path, arena: Path, *, is_written_down: bool
) -> None:
    old = arena.with_name("symphony-old-name")
    if is_written_down:
        old.mkdir()
        write_run_state(tmp_path, replace(STATE, host_id="old-name"))
    with pytest.raises(NotFound):
        down(tmp_path)
    assert not arena.exists() and not old.exists()
    assert not (tmp_path / "run.json").exists()


def test_the_memory_of_a_deployment_that_has_to_be_killed_is_removed(
    tmp_path: Path, arena: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.down.STOP_TIMEOUT_S", 0)
    lock = str(tmp_path / "run.lock")
    with subprocess.Popen(
        [sys.executable, "-S", "-c", STUBBORN, lock], stdout=subprocess.PIPE
    ) as supervisor:
        assert supervisor.stdout is not None and supervisor.stdout.readline() == b"on\n"
        write_run_state(tmp_path, replace(STATE, pid=supervisor.pid, services=[]))
        down(tmp_path)
        assert supervisor.wait() == -9
    assert not arena.exists()


def test_it_is_removed_although_a_process_does_not_end(
    tmp_path: Path, arena: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.down.STOP_TIMEOUT_S", 0)
    monkeypatch.setattr("cli.down.KILL_TIMEOUT_S", 0)
    monkeypatch.setattr("cli.down.os.kill", lambda *_: None)
    lock = take_lock(tmp_path)
    write_run_state(tmp_path, STATE)
    with pytest.raises(SymphonyError, match="still running"):
        down(tmp_path)
    assert not arena.exists()
    os.close(lock)


def test_a_deployment_that_begins_to_start_keeps_its_memory(tmp_path: Path, arena: Path) -> None:
    lock = take_lock(tmp_path)
    with pytest.raises(NotFound):
        down(tmp_path)
    assert arena.exists()
    os.close(lock)
