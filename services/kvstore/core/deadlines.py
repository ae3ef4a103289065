"""When each of many sessions is to be looked at."""

from heapq import heapify, heappop, heappush

from shared.owners import OwnerKey

STALE_MAX = 1024  # entries that mean nothing any more, beside as many as mean something


class Deadlines:
    """One moment a session. Looked at too early costs little, so a moment that moves away is found
    out when it comes.
    """

    def __init__(self) -> None:
        self._at: dict[OwnerKey, int] = {}
        self._heap: list[tuple[int, OwnerKey]] = []

    def put(self, owner: OwnerKey, at_ns: int) -> None:
        """Look at it then, if not sooner."""
        if at_ns >= self._at.get(owner, at_ns + 1):
            return
        self._at[owner] = at_ns
        heappush(self._heap, (at_ns, owner))
        if len(self._heap) > 2 * len(self._at) + STALE_MAX:
            self._heap = [(at, each) for each, at in self._at.items()]
            heapify(self._heap)

    def remove(self, owner: OwnerKey) -> None:
        """Do not look at it."""
        self._at.pop(owner, None)

    def take(self, now_ns: int) -> OwnerKey | None:
        """The next one whose moment is over; None: there is none."""
        while self._heap and self._heap[0][0] < now_ns:
            at_ns, owner = heappop(self._heap)
            if self._at.get(owner) == at_ns:
                del self._at[owner]
                return owner
        return None
