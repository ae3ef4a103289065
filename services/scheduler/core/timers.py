"""What must happen later: a heap of instants and actions."""

from collections.abc import Callable
from heapq import heappop, heappush

Action = Callable[[int], None]


class Timers:
    """Actions by instant, in the order set when equal.

    Nothing is ever taken out early: an action finds out by itself that it has nothing to do any
    more, or sets itself again for later.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Action]] = []
        self._num_set = 0

    def at(self, at_ns: int, action: Action) -> None:
        """Run `action(now_ns)` at `at_ns` or soon after."""
        self._num_set += 1
        heappush(self._heap, (at_ns, self._num_set, action))

    def run_due(self, now_ns: int) -> None:
        """Run everything set for `now_ns` or before."""
        while self._heap and self._heap[0][0] <= now_ns:
            heappop(self._heap)[2](now_ns)

    @property
    def next_at_ns(self) -> int | None:
        """The earliest instant set."""
        return self._heap[0][0] if self._heap else None
