"""A budget of bytes a second that several threads share."""

import threading
import time

AT_ONCE_S = 0.1
SAVED_S = 0.05  # of so many seconds' bytes may be saved up
PAUSE_S = 0.5  # at the most, as long as a page is little of the budget; clients wait for twice that


class Pace:
    """Decides when a sender may send again.

    Args:
        bytes_per_s: None: no limit.
    """

    def __init__(self, bytes_per_s: float | None) -> None:
        assert bytes_per_s is None or bytes_per_s > 0
        self._bytes_per_s = bytes_per_s
        self._paid_at_s = 0.0
        self._lock = threading.Lock()

    def most_at_once(self, bytes_max: int, now_s: float | None = None) -> int:
        """How much to send before the next `spend`: so little that no pause is long, however
        many share the budget.
        """
        if self._bytes_per_s is None:
            return bytes_max
        now_s = time.monotonic() if now_s is None else now_s
        with self._lock:
            owed_s = max(self._paid_at_s - now_s, 0.0)  # by the others
        at_once_s = min(AT_ONCE_S, PAUSE_S - owed_s)
        return max(min(bytes_max, int(self._bytes_per_s * at_once_s)), 1)

    def spend(self, num_bytes: int, now_s: float | None = None) -> float:
        """So many were sent; for how many seconds to send nothing."""
        if self._bytes_per_s is None:
            return 0.0
        now_s = time.monotonic() if now_s is None else now_s
        with self._lock:
            begin_s = max(self._paid_at_s, now_s - SAVED_S)
            self._paid_at_s = begin_s + num_bytes / self._bytes_per_s
            return max(self._paid_at_s - now_s, 0.0)
