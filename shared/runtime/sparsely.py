"""Decides which of many equal errors are logged. Gets the time, logs nothing itself."""

EVERY_NS = 30_000_000_000


class Sparsely:
    """The first error of a kind is logged at once, later ones at most one in `every_ns`.

    Kinds must be few: each is remembered until `clear`.
    """

    def __init__(self, every_ns: int = EVERY_NS) -> None:
        self._every_ns = every_ns
        self._silent_until_ns: dict[str, int] = {}
        self._num_skipped: dict[str, int] = {}

    def hear(self, kind: str, now_ns: int) -> int:
        """How many of this kind to log now, skipped ones included; 0: none."""
        num = self._num_skipped.get(kind, 0) + 1
        if now_ns < self._silent_until_ns.get(kind, now_ns):
            self._num_skipped[kind] = num
            return 0
        self._num_skipped[kind] = 0
        self._silent_until_ns[kind] = now_ns + self._every_ns
        return num

    def clear(self) -> bool:
        """The trouble is over: the next is a first one again. Whether there was any."""
        was_any = bool(self._silent_until_ns)
        self._silent_until_ns.clear()
        self._num_skipped.clear()
        return was_any
