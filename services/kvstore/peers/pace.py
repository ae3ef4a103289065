"""A budget of bytes a second that several threads share."""

import math
import time

from shared.line import Line

AT_ONCE_S = 0.1
SAVED_S = 0.05  # of so many seconds' bytes may be saved up
PAUSE_S = 0.5  # at the most, as long as a page is little of the budget; clients wait for twice that


class Pace:
    """Decides when a sender may send again.

    Args:
        bytes_per_s: None: no limit.
    """

    def __init__(self, bytes_per_s: float | None) -> None:
        self._bytes_per_s = math.inf if bytes_per_s is None else bytes_per_s
        self._line = Line(self._bytes_per_s, int(SAVED_S * 1e9))

    def most_at_once(self, bytes_max: int, now_ns: int | None = None) -> int:
        """How much to send before the next `spend`: so little that no pause is long, however
        many share the budget.
        """
        owed_ns = self._line.busy_ns(time.monotonic_ns() if now_ns is None else now_ns)
        at_once_s = min(AT_ONCE_S, PAUSE_S - owed_ns / 1e9)
        return max(int(min(bytes_max, self._bytes_per_s * at_once_s)), 1)

    def spend(self, num_bytes: int, now_ns: int | None = None) -> float:
        """So many were sent; for how many seconds to send nothing."""
        now_ns = time.monotonic_ns() if now_ns is None else now_ns
        return max(self._line.send(num_bytes, now_ns) - now_ns, 0) / 1e9
