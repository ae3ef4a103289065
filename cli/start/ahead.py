"""What `symphony up` begins before it knows whether the deployment can start: half of a start is
imports, and those need no settings. Imports little itself.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from cli.base.children import python_path, start_child

STANDBY = (sys.executable, "-P", "-m", "services.worker.standby")
WITH_WORKER = "--worker"


@dataclass(frozen=True, slots=True)
class Detached:
    """A process that is to be the supervisor, and reads its options from standard input; without
    them it ends.

    Attributes:
        reports: file to read, what `cli.base.reporting.PipeReporter` sends.
    """

    process: "subprocess.Popen[bytes]"
    reports: int

    def send(self, options: bytes) -> None:
        """See `cli.start.options.DeploymentOptions.dump`. It may have ended: then so do its
        reports.
        """
        assert self.process.stdin is not None
        with suppress(BrokenPipeError), self.process.stdin as pipe:
            pipe.write(options)


@dataclass(frozen=True, slots=True)
class Ahead:
    """Attributes:
    supervisor: None: this process is.
    worker: a process that becomes the supervisor's first worker; None: there is none, or it is the
        other process's.
    """

    supervisor: Detached | None = None
    worker: "subprocess.Popen[bytes] | None" = None


@contextmanager
def begun(*, is_detached: bool, has_worker: bool) -> Iterator[Ahead]:
    """Begin it. What got no options, or no order, has ended at the end.

    Args:
        is_detached: the supervisor is to be a process of a session of its own.
        has_worker: the deployment has one that imports much.
    """
    if not is_detached:
        worker = begin_worker() if has_worker else None
        try:
            yield Ahead(worker=worker)
        finally:
            _end_if_waiting(worker)
        return
    reading, writing = os.pipe()
    more = [WITH_WORKER] if has_worker else []
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "cli.supervisor", str(writing), *more],
        env=_environment(),
        stdin=subprocess.PIPE,
        pass_fds=[writing],
        start_new_session=True,
    )
    os.close(writing)
    try:
        yield Ahead(Detached(process, reading))
    finally:
        _end_if_waiting(process)
        os.close(reading)


def begin_worker() -> "subprocess.Popen[bytes]":
    """A process that imports what a worker does, and then waits for the order to become one. Should
    it fail, the worker is started as ever, and says why.
    """
    return start_standby(_environment(), Path(os.devnull))


def start_standby(
    environment: Mapping[str, str], log_path: Path, dtypes: Sequence[str] = ()
) -> "subprocess.Popen[bytes]":
    """See `services.worker.standby`. It ends with this process."""
    return start_child([*STANDBY, *dtypes], log_path=log_path, env=environment, has_input=True)


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": python_path(os.environ), "PYTHONUNBUFFERED": "1"}


def end(process: "subprocess.Popen[bytes]") -> None:
    """End one that waits for its input, or was about to get it."""
    process.kill()
    process.wait()
    assert process.stdin is not None
    with suppress(OSError):
        process.stdin.close()


def _end_if_waiting(process: "subprocess.Popen[bytes] | None") -> None:
    if process is not None and process.stdin is not None and not process.stdin.closed:
        end(process)
