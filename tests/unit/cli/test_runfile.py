"""What a running deployment leaves for other commands."""

import os
from pathlib import Path

import pytest

from cli.base.runfile import (
    RunningService,
    RunState,
    check_free,
    is_locked,
    read_run_state,
    remove_run_state,
    running_deployment,
    take_lock,
    write_run_state,
)
from shared.errors import ConfigError, NotFound

STATE = RunState(
    pid=1,
    state="ready",
    url="http://127.0.0.1:1",
    nats_url="nats://127.0.0.1:2",
    redis_url="redis://127.0.0.1:3/0",
    host_id="h",
    num_workers=1,
    services=[RunningService(name="nats", pid=4)],
)


def test_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_run_state(tmp_path, STATE)
    assert read_run_state(tmp_path) == STATE
    assert (tmp_path / "run.json").stat().st_mode & 0o077 == 0, "passwords are in its addresses"
    remove_run_state(tmp_path)
    remove_run_state(tmp_path)
    assert read_run_state(tmp_path) is None


def test_a_damaged_state_is_none(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"pid": "x"')
    assert read_run_state(tmp_path) is None


def test_a_look_leaves_nothing_behind(tmp_path: Path) -> None:
    check_free(tmp_path)
    assert not is_locked(tmp_path) and not list(tmp_path.iterdir())


def test_the_lock_tells_whether_a_deployment_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.base.runfile.LOCK_PATIENCE_S", 0.0)
    write_run_state(tmp_path, STATE)
    with pytest.raises(NotFound, match="nothing runs"):
        running_deployment(tmp_path)  # its supervisor was killed
    lock = take_lock(tmp_path)
    assert is_locked(tmp_path)
    assert running_deployment(tmp_path) == STATE
    for take in (take_lock, check_free):
        with pytest.raises(ConfigError, match=r"already runs .*127\.0\.0\.1:1"):
            take(tmp_path)
    os.close(lock)
    assert not is_locked(tmp_path)
    check_free(tmp_path)
    os.close(take_lock(tmp_path))
