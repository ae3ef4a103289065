"""`symphony down`: stop the deployment of a data folder, whatever state it is in."""

import os
import signal
import time
from pathlib import Path

from cli.base.runfile import RunState, is_locked, read_run_state, remove_run_state
from cli.inspection.snapshot import is_alive
from cli.start.hosts import remove_arenas
from cli.start.options import DeploymentOptions
from shared.errors import NotFound, SymphonyError

STOP_TIMEOUT_S = 60.0
KILL_TIMEOUT_S = 5.0


def down(data_dir: Path) -> None:
    """Stop the supervisor, which stops its children; returns when everything is gone.

    Raises:
        NotFound: nothing runs there. What a killed deployment left behind is cleared away all the
            same.
    """
    state = read_run_state(data_dir)
    is_running = is_locked(data_dir)
    if not is_running:
        clear_away(data_dir, state)
    if state is None or not is_running:
        raise NotFound(f"nothing runs on {data_dir}")
    os.kill(state.pid, signal.SIGTERM)
    if not _gone(data_dir, STOP_TIMEOUT_S):
        os.kill(state.pid, signal.SIGKILL)  # the kernel takes its children along
    pids = [child.pid for child in state.services]
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while any(is_alive(pid) for pid in pids) or is_locked(data_dir):
        if time.monotonic() >= deadline:
            _clear_away_memory(data_dir, state)  # who still maps it, keeps it
            raise SymphonyError(f"some of {pids} are still running")
        time.sleep(0.02)
    clear_away(data_dir, state)


def clear_away(data_dir: Path, state: RunState | None) -> None:
    """Remove what a deployment left that was killed."""
    _clear_away_memory(data_dir, state)
    remove_run_state(data_dir)


def _clear_away_memory(data_dir: Path, state: RunState | None) -> None:
    options = DeploymentOptions(data_dir=data_dir)
    remove_arenas(options.host_id)
    options.remove_socket()
    if state is not None:  # the machine may have had another name then
        remove_arenas(state.host_id)


def _gone(data_dir: Path, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while is_locked(data_dir):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)
    return True
