"""How much a tier may be given in the background."""

NS_PER_S = 1_000_000_000
BURST_NS = 1_000_000_000  # of what it may be given, saved up


class Budget:
    """Bytes a second, on average: something may begin while nothing is owed, whatever its size.

    Args:
        bytes_per_s: 0: any number.
    """

    def __init__(self, bytes_per_s: float = 0.0) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at_ns = -BURST_NS

    def is_free(self, now_ns: int) -> bool:
        """Whether something may begin now."""
        return now_ns >= self._free_at_ns

    def take(self, num_bytes: int, now_ns: int) -> None:
        """So much begins."""
        if self._bytes_per_s:
            since_ns = max(self._free_at_ns, now_ns - BURST_NS)
            self._free_at_ns = since_ns + int(num_bytes * NS_PER_S / self._bytes_per_s)
