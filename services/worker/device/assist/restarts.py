"""When a helper that was lost is replaced."""

from collections import deque

# A start takes seconds of a core. Helpers that are lost because the machine is overloaded must not
# load it with starts.
REMEMBERED_NS = 60_000_000_000
DELAY_NS = 1_000_000_000
DOUBLINGS_MAX = 5


class Losses:
    """What was lost of late in one place of the crew."""

    def __init__(self, delay_ns: int = DELAY_NS) -> None:
        self._delay_ns = delay_ns
        self._at_ns: deque[int] = deque(maxlen=DOUBLINGS_MAX + 2)
        self.restart_at_ns = 0

    def on_lost(self, now_ns: int) -> None:
        """A helper was lost: the first is replaced at once, the next ones later and later.

        >>> losses = Losses(delay_ns=10)
        >>> for now_ns in (0, 1, 2):
        ...     losses.on_lost(now_ns)
        ...     print(losses.restart_at_ns - now_ns)
        0
        10
        20
        """
        while self._at_ns and now_ns - self._at_ns[0] > REMEMBERED_NS:
            self._at_ns.popleft()
        self._at_ns.append(now_ns)
        again = len(self._at_ns) - 1
        delay_ns = self._delay_ns << (again - 1) if again else 0
        self.restart_at_ns = now_ns + delay_ns
