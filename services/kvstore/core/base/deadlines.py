"""When each of many sessions or blocks is to be looked at."""

from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

STALE_MAX = 1024  # entries that mean nothing any more, beside as many as mean something

Name = TypeVar("Name", bound=bytes)


class Deadlines(Generic[Name]):
    """One moment a name. Looked at too early costs little, so a moment that moves away is found
    out when it comes.
    """

    def __init__(self) -> None:
        self._at: dict[Name, int] = {}
        self._heap: list[tuple[int, Name]] = []

    def put(self, name: Name, at_ns: int) -> None:
        """Look at it then, if not sooner."""
        if at_ns >= self._at.get(name, at_ns + 1):
            return
        self._at[name] = at_ns
        heappush(self._heap, (at_ns, name))
        if len(self._heap) > 2 * len(self._at) + STALE_MAX:
            self._heap = [(at, each) for each, at in self._at.items()]
            heapify(self._heap)

    def remove(self, name: Name) -> None:
        """Do not look at it."""
        self._at.pop(name, None)

    def take(self, now_ns: int) -> Name | None:
        """The next one whose moment is over; None: there is none."""
        while self._heap and self._heap[0][0] < now_ns:
            at_ns, name = heappop(self._heap)
            if self._at.get(name) == at_ns:
                del self._at[name]
                return name
        return None
