"""A process that becomes the first worker, or the next which has to be started again."""

import json
import os
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from cli.base.children import ROOT
from cli.start.ahead import end
from cli.start.plan import ChildPlan
from shared.runtime.memory import measure_memory

PAUSE_NS = 10_000_000_000  # a worker that starts is not to share its cores with the next standby
PACKAGES = ("kernels", "services", "shared")  # that a worker imports
AVAILABLE_BYTES_MIN = 4 << 30  # below this, the third of a GB that one takes is of more use


class Standby:
    """One such process at a time. The time is an argument.

    Args:
        start: starts one; its standard input is a pipe. None: there is never another one.
        first: one that has just been started.
    """

    def __init__(
        self,
        start: Callable[[], "subprocess.Popen[bytes]"] | None,
        first: "subprocess.Popen[bytes] | None" = None,
    ) -> None:
        self._start = start
        self._process = first
        self._code = code_state(ROOT) if first is not None else None  # that it began with
        self._is_kept = False
        self.next_at_ns: int | None = None  # to call `tend`, at the latest

    def begin(self, now_ns: int) -> None:
        """Keep one from `PAUSE_NS` after now on."""
        self._is_kept = self._start is not None
        if self._is_kept:
            self.next_at_ns = now_ns + PAUSE_NS

    def tend(self, now_ns: int) -> None:
        """Start one if it is time for it, and there is memory enough."""
        if self._start is None or self.next_at_ns is None or now_ns < self.next_at_ns:
            return
        if measure_memory().available_bytes < AVAILABLE_BYTES_MIN:
            self.begin(now_ns)
            return
        self.next_at_ns = None
        self._code = code_state(ROOT)
        with suppress(OSError):  # no more processes: a worker starts as it does without one
            self._process = self._start()

    def take(self, plan: ChildPlan, now_ns: int) -> "subprocess.Popen[bytes] | None":
        """The process, which becomes this worker; None: there is none, or the code was replaced
        since it imported it.
        """
        process, self._process = self._process, None
        if process is None:
            return None
        if self._is_kept:
            self.begin(now_ns)
        if self._code is None or code_state(ROOT) != self._code:
            end(process)
            return None
        assert process.stdin is not None
        order = {"environment": dict(plan.environment), "log_path": str(plan.log_path)}
        try:
            os.set_blocking(process.stdin.fileno(), False)  # a pipe takes more than any environment
            with process.stdin as pipe:
                pipe.write(json.dumps(order).encode())
        except OSError:  # it has ended
            end(process)
            return None
        return process

    def close(self) -> None:
        """Keep none any more."""
        self.next_at_ns = None
        if self._process is not None:
            end(self._process)
            self._process = None


def code_state(root: Path) -> dict[Path, int] | None:
    """When each file was changed that a worker may import; None: they are being replaced."""
    try:
        files = (file for name in PACKAGES for file in (root / name).rglob("*.py"))
        return {file: file.stat().st_mtime_ns for file in files}
    except OSError:
        return None
