"""`symphony restart`: replace processes of a running deployment, one after another."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from cli.base.called import hint
from cli.base.runfile import RunState, is_called, running_deployment
from cli.inspection.snapshot import SERVERS
from cli.supervisor.readiness import Readiness
from shared.errors import ConfigError, PeerUnavailable

POLL_S = 0.1
WHOLE_WITHIN_S = 15.0  # an answer may come late on a busy machine
BACK_WITHIN_S = 900.0  # as long as a start may take


def restart(data_dir: Path, asked: Sequence[str], say: Callable[[str], None]) -> None:
    """Ask a process to end, and go on to the next when the supervisor has started another in its
    place and the deployment is whole again.

    Args:
        asked: names of processes, or of kinds of them; none: all but NATS and Redis.

    Raises:
        NotFound: nothing runs on `data_dir`.
        ConfigError: it has no process of a name, or starts none again.
        PeerUnavailable: something is missing before a process was asked to end, or after.
    """
    run = running_deployment(data_dir)
    names = chosen(run.names, asked)
    if not run.restarts:
        raise ConfigError("the deployment was started with --no-restart: nothing would come back")
    if not _is_whole(data_dir, {}, WHOLE_WITHIN_S):
        raise PeerUnavailable(
            f"nothing was restarted: not every process is ready, see `{hint('status')}`"
        )
    for name in names:
        run, begun_at = running_deployment(data_dir), time.monotonic()
        pids = {child.name: child.pid for child in run.services}
        if name not in pids:
            raise PeerUnavailable(f"{name} has just died: see `{hint('status')}`")
        os.kill(pids[name], signal.SIGTERM)
        if not _is_whole(data_dir, {name: pids[name]}, BACK_WITHIN_S):
            raise PeerUnavailable(
                f"{name} was asked to end and is not back after {BACK_WITHIN_S:g} s: see "
                f"`{hint(f'logs {name}')}`"
            )
        say(f"{name} restarted ({time.monotonic() - begun_at:.0f} s)")


def chosen(names: Sequence[str], asked: Sequence[str]) -> list[str]:
    """Names of the processes to restart: the frontend last, so that clients are cut off once.

    Raises:
        ConfigError: there is no process of a name.
    """
    for each in asked:
        if not any(is_called(name, each) for name in names):
            raise ConfigError(f"no process {each!r} in the deployment: {', '.join(names)}")
    found = [
        name
        for name in names
        if (any(is_called(name, each) for each in asked) if asked else name not in SERVERS)
    ]
    return sorted(found, key=lambda name: name == "frontend")


def _is_whole(data_dir: Path, gone: dict[str, int], within_s: float) -> bool:
    """Whether all processes are ready in time, none of them one of `gone`.

    Raises:
        NotFound: the deployment has stopped.
    """
    give_up_at = time.monotonic() + within_s
    run = running_deployment(data_dir)
    readiness = Readiness((), [name for name in run.names if name not in SERVERS])
    while time.monotonic() < give_up_at:
        run = running_deployment(data_dir)
        if _are_all_new(run, gone) and readiness.look(run) is not None:
            return True
        time.sleep(POLL_S)
    return False


def _are_all_new(run: RunState, gone: dict[str, int]) -> bool:
    pids = {child.name: child.pid for child in run.services}
    return pids.keys() >= set(run.names) and pids.items().isdisjoint(gone.items())
