"""What carries so many bytes a second and no more: an emulated link or disk, or a budget."""

import threading


class Line:
    """Bytes go one after the other, whichever thread sends them.

    Args:
        bytes_per_s: above 0; `math.inf`: any number.
        late_ns: who comes so much later than the line was free finds that it went on meanwhile.
    """

    def __init__(self, bytes_per_s: float, late_ns: int = 0) -> None:
        self._bytes_per_s = bytes_per_s
        self._late_ns = late_ns
        self._free_at_ns = -late_ns  # when all that was sent is over
        self._sending = threading.Lock()

    def send(self, num_bytes: int, now_ns: int) -> int:
        """When bytes that are sent now will have come, behind those that were sent before."""
        with self._sending:
            begins_at_ns = max(now_ns - self._late_ns, self._free_at_ns)
            self._free_at_ns = begins_at_ns + int(num_bytes * 1e9 / self._bytes_per_s)
            return self._free_at_ns

    def busy_ns(self, now_ns: int) -> int:
        """For how long from now it carries what was sent before."""
        return max(self._free_at_ns - now_ns, 0)
