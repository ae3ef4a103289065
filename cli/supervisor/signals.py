"""Signals that ask to stop, as something to look at and to wait for.

Their handler raises nothing: an exception that a signal throws into the middle of a fork is lost
there, and the request with it.
"""

import select
import signal
import socket
from collections.abc import Sequence
from types import FrameType
from typing import Self

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopRequested(Exception):
    """A signal asks to stop."""


class StopSignals:
    """Counts SIGINT, SIGTERM and SIGHUP while it is entered. Main thread only."""

    def __init__(self) -> None:
        self._num_heard = 0

    @property
    def is_hurried(self) -> bool:
        """Whether a second signal asked to stop faster."""
        return self._num_heard > 1

    def check(self) -> None:
        """A point where it is safe to stop.

        Raises:
            StopRequested: a signal has come.
        """
        if self._num_heard:
            raise StopRequested

    def wait(self, files: Sequence[int], patience_s: float | None) -> list[int]:
        """Block until one of `files` can be read or a signal comes, at most `patience_s`; the
        readable ones.

        Raises:
            StopRequested: a signal has come.
        """
        waking = self._waking.fileno()
        readable, _, _ = select.select([*files, waking], [], [], patience_s)
        self.check()
        return [file for file in readable if file != waking]

    def __enter__(self) -> Self:
        self._waking, self._woken_by = socket.socketpair()
        self._waking.setblocking(False)
        self._woken_by.setblocking(False)
        self._old_file = signal.set_wakeup_fd(self._woken_by.fileno(), warn_on_full_buffer=False)
        self._old = {number: signal.signal(number, self._on_signal) for number in STOP_SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._old_file)
        self._waking.close()
        self._woken_by.close()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._num_heard += 1
