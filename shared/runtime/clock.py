"""Time as an argument: services read a clock once at the edge, cores get the time."""

import time
from typing import Protocol


class Clock(Protocol):
    """Source of instants. Monotonic inside a process, wall time only on the wire."""

    def now_ns(self) -> int:
        """Monotonic instant, ns; comparable only within this process."""
        ...

    def wall_ns(self) -> int:
        """Wall-clock instant, ns since the epoch."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def wall_ns(self) -> int:
        return time.time_ns()


class ManualClock:
    """A clock that moves only by `advance`; for tests and simulation.

    >>> clock = ManualClock(start_ns=5)
    >>> clock.advance(10)
    >>> clock.now_ns()
    15
    """

    def __init__(self, start_ns: int = 0) -> None:
        self._now_ns = start_ns

    def now_ns(self) -> int:
        return self._now_ns

    def wall_ns(self) -> int:
        return self._now_ns

    def advance(self, duration_ns: int) -> None:
        assert duration_ns >= 0, "time does not run backwards"
        self._now_ns += duration_ns
