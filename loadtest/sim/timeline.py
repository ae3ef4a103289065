"""Virtual time: one heap of everything that is going to happen, and a trace of what did."""

from collections.abc import Callable
from heapq import heappop, heappush

Action = Callable[[], None]

US = 1_000
MS = 1_000_000
SECOND = 1_000 * MS


class Timeline:
    """What happens, in order of its time; what was asked for first comes first.

    Attributes:
        now_ns: the world's own time, which no process can see.
        num_events: that have happened.
        trace: what was worth a note, a line each.
    """

    def __init__(self) -> None:
        self.now_ns = 0
        self.num_events = 0
        self.trace: list[str] = []
        self._heap: list[tuple[int, int, Action]] = []
        self._num_asked = 0

    def note(self, text: str) -> None:
        """Add a line to the trace."""
        self.trace.append(f"{self.now_ns / MS:10.3f} {text}")

    def after(self, delay_ns: int, action: Action) -> None:
        """Run `action` once `delay_ns` have passed."""
        assert delay_ns >= 0
        self._num_asked += 1
        heappush(self._heap, (self.now_ns + delay_ns, self._num_asked, action))

    def run_until(self, end_ns: int, events_max: int) -> None:
        """Let time pass up to `end_ns`.

        Raises:
            AssertionError: more than `events_max` events since the beginning: a livelock.
        """
        heap = self._heap
        while heap and heap[0][0] <= end_ns:
            self.now_ns, _, action = heappop(heap)
            self.num_events += 1
            assert self.num_events <= events_max, "no end of events: a livelock"
            action()
        self.now_ns = end_ns
