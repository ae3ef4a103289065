"""An alarm between a process and a core of it."""

from collections.abc import Callable
from functools import partial

from loadtest.sim.timeline import MS
from loadtest.world.process import Process

WAKE_RETRY_NS = 50 * MS
NEVER_NS = 1 << 61


class Alarm:
    """Rings at the instant it was set to last, in this life of its process.

    Args:
        ring: returns whether the event was accepted; if not, the alarm rings again soon.
    """

    def __init__(self, process: Process, ring: Callable[[], bool]) -> None:
        self._process = process
        self._ring = ring
        self._num_set = 0

    def set(self, at_ns: int) -> None:
        """Replaces an earlier setting."""
        self._num_set += 1
        if at_ns < NEVER_NS:
            delay_ns = max(at_ns - self._process.now_ns, 0) + 1
            self._process.later(delay_ns, partial(self._due, self._num_set))

    def _due(self, number: int) -> None:
        if number == self._num_set and not self._ring():
            self._process.later(WAKE_RETRY_NS, partial(self._due, number))
