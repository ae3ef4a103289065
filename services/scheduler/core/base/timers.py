"""Timers of a core: a heap of instants and actions."""

from collections.abc import Callable
from heapq import heappop, heappush

from services.scheduler.core.batching.job import NEVER_NS
from shared.effects import WakeAt

Action = Callable[[int], None]

STANDSTILL_NS = (
    1_000_000_000  # a longer pause of this process restarts the count of workers' silence
)


class Timers:
    """Actions by instant, in the order set when equal.

    Entries are never removed early: an action checks whether it still has something to do, or sets
    itself again for later.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Action]] = []
        self._num_set = 0
        self._asked_at_ns = NEVER_NS

    def at(self, at_ns: int, action: Action) -> None:
        """Run `action(now_ns)` at `at_ns` or soon after."""
        self._num_set += 1
        heappush(self._heap, (at_ns, self._num_set, action))

    def run_due(self, now_ns: int) -> None:
        """Run everything that is due at `now_ns`."""
        self._asked_at_ns = NEVER_NS
        while self._heap and self._heap[0][0] <= now_ns:
            heappop(self._heap)[2](now_ns)

    def is_standstill(self, now_ns: int) -> bool:
        """Whether this wake is so late that the process was paused and received nothing. Call it
        before `run_due`.
        """
        return now_ns - self._asked_at_ns >= STANDSTILL_NS

    def ask(self, or_at_ns: int = NEVER_NS) -> list[WakeAt]:
        """The `WakeAt` for the next timer, unless one as early is set already.

        Args:
            or_at_ns: when the core needs to wake for another reason.
        """
        next_at_ns = min(self._heap[0][0], or_at_ns) if self._heap else or_at_ns
        if next_at_ns >= self._asked_at_ns:
            return []
        self._asked_at_ns = next_at_ns
        return [WakeAt(next_at_ns)]
