"""Blocks on disk in order of last use, those that expire alike together: so the oldest of each kind
tells whether any of it is expired, and all kinds together whose turn it is to make room.
"""

from collections.abc import Callable, Iterator
from heapq import merge

from services.kvstore.core.stored_block import StoredBlock


class UseOrder:
    """A ring for each expiry that a block has, least recently used first.

    Args:
        make_end: makes what stands between the newest and the oldest block of a ring.
    """

    def __init__(self, make_end: Callable[[], StoredBlock]) -> None:
        self._make_end = make_end
        self._ends: dict[int, StoredBlock] = {}

    def link(self, block: StoredBlock) -> None:
        """As the one used last."""
        if (end := self._ends.get(block.expiry_ns)) is None:
            end = self._ends[block.expiry_ns] = self._make_end()
            end.older = end.newer = end
        block.older, block.newer = end.older, end
        block.older.newer = block.newer.older = block

    def unlink(self, block: StoredBlock) -> None:
        """It is gone, or used again."""
        block.older.newer, block.newer.older = block.newer, block.older

    def clear(self) -> None:
        """All are gone."""
        self._ends.clear()

    def by_use(self) -> Iterator[StoredBlock]:
        """All, least recently used first; nothing may change meanwhile."""
        rings = [_walk(end) for end in self._ends.values()]
        return rings[0] if len(rings) == 1 else merge(*rings, key=lambda block: block.used_at_ns)

    def expired(self, is_expired: Callable[[StoredBlock], bool]) -> Iterator[StoredBlock]:
        """Those; nothing may change meanwhile."""
        for end in self._ends.values():
            for block in _walk(end):
                if not is_expired(block):
                    break
                yield block


def _walk(end: StoredBlock) -> Iterator[StoredBlock]:
    block = end.newer
    while block is not end:
        yield block
        block = block.newer
