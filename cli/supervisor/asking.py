"""The supervisor's side of the asker: starts it, reads it, replaces a silent one."""

import os
import subprocess
from collections.abc import Callable
from contextlib import suppress

from pydantic import ValidationError

from cli.supervisor.asker import ROUND
from cli.supervisor.liveness import Round

LINE_BYTES_MAX = 1 << 20
READ_BYTES = 1 << 16


class Asking:
    """One asker at a time. The time is an argument.

    Args:
        start: starts one; its standard output is a pipe.
        patience_ns: without a round after which it is replaced; also the pause before it is started
            again.
    """

    def __init__(self, start: Callable[[], "subprocess.Popen[bytes]"], patience_ns: int) -> None:
        self._start = start
        self._patience_ns = patience_ns
        self._process: subprocess.Popen[bytes] | None = None
        self._next_at_ns: int | None = None  # to do something about it
        self._buffer = b""

    def begin(self, now_ns: int) -> None:
        """Start the first one."""
        self._next_at_ns = now_ns

    @property
    def files(self) -> list[int]:
        """To be watched: readable when there is something for `read`."""
        process = self._process
        return [] if process is None or process.stdout is None else [process.stdout.fileno()]

    @property
    def next_at_ns(self) -> int | None:
        """When to call `tend`, at the latest."""
        return self._next_at_ns

    def tend(self, now_ns: int) -> None:
        """Start an asker if it is time for one, in place of one that says nothing."""
        if self._next_at_ns is None or now_ns < self._next_at_ns:
            return
        self._end()
        with suppress(OSError):  # no more processes: the next one is due as if this one was silent
            self._process = self._start()
        self._next_at_ns = now_ns + self._patience_ns

    def read(self, now_ns: int) -> list[Round]:
        """What it has said. Call when its file is readable."""
        [file] = self.files
        data = os.read(file, READ_BYTES)
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        if not data or len(self._buffer) > LINE_BYTES_MAX:
            self._end()
        try:
            rounds = [ROUND.validate_json(line) for line in lines]
        except ValidationError:
            self._end()
            rounds = []
        if rounds:
            self._next_at_ns = now_ns + self._patience_ns
        return rounds

    def close(self) -> None:
        """Stop asking."""
        self._next_at_ns = None
        self._end()

    def _end(self) -> None:
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None
        self._buffer = b""
