"""A budget of bytes a second that several threads share."""

import threading
import time

AT_ONCE_S = 0.1
SAVED_S = 0.05  # of so many seconds' bytes may be saved up


class Pace:
    """Tells who has sent something when it may send again.

    Args:
        bytes_per_s: None: no limit.
    """

    def __init__(self, bytes_per_s: float | None) -> None:
        assert bytes_per_s is None or bytes_per_s > 0
        self._bytes_per_s = bytes_per_s
        self._paid_at_s = 0.0
        self._lock = threading.Lock()

    def most_at_once(self, bytes_max: int) -> int:
        """How much to send before the next `spend`: so little that nobody's pause is long."""
        if self._bytes_per_s is None:
            return bytes_max
        return max(min(bytes_max, int(self._bytes_per_s * AT_ONCE_S)), 1)

    def spend(self, num_bytes: int, now_s: float | None = None) -> float:
        """So many were sent; for how many seconds to send nothing."""
        if self._bytes_per_s is None:
            return 0.0
        now_s = time.monotonic() if now_s is None else now_s
        with self._lock:
            begin_s = max(self._paid_at_s, now_s - SAVED_S)
            self._paid_at_s = begin_s + num_bytes / self._bytes_per_s
            return max(self._paid_at_s - now_s, 0.0)
