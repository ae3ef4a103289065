"""Blocks on disk in order of last use, those that expire alike together: so the oldest of each kind
tells whether any of it is expired, and all kinds together whose turn it is to make room.
"""

from collections.abc import Callable, Iterable, Iterator
from heapq import merge

from services.kvstore.core.stored_block import StoredBlock
from shared.blocks import BlockKey


class UseOrder:
    """A ring for each expiry that a block has, least recently used first. Expired blocks that
    others continue stand aside, in none: they go with the last of those, and to walk over them time
    and again would hold up everybody.

    Args:
        make_end: makes what stands between the newest and the oldest block of a ring.
    """

    def __init__(self, make_end: Callable[[], StoredBlock]) -> None:
        self._make_end = make_end
        self._ends: dict[int, StoredBlock] = {}
        self._aside: dict[BlockKey, StoredBlock] = {}

    def link(self, block: StoredBlock) -> None:
        """As the one used last."""
        end = self._end(block.expiry_ns)
        _put_between(end.older, block, end)

    def unlink(self, block: StoredBlock) -> None:
        """It is gone, or used again."""
        if self._aside.pop(block.key, None) is None:
            block.older.newer, block.newer.older = block.newer, block.older

    def set_aside(self, block: StoredBlock) -> None:
        """It is expired, and others continue it."""
        self.unlink(block)
        self._aside[block.key] = block

    def is_aside(self, key: BlockKey) -> bool:
        """Whether that is so of this one."""
        return key in self._aside

    def put_back(self, block: StoredBlock) -> None:
        """Nothing continues it any more: if it stood aside, it is the first to be looked at."""
        if self._aside.pop(block.key, None) is not None:
            end = self._end(block.expiry_ns)
            _put_between(end, block, end.newer)

    def clear(self) -> None:
        """All are gone. Rings are opened: they hold themselves, and what was there at the start is
        nothing that the collector looks at.
        """
        for end in self._ends.values():
            for block in [*_walk(end), end]:
                del block.older, block.newer
        self._ends.clear()
        self._aside.clear()

    @property
    def aside(self) -> Iterable[StoredBlock]:
        """Those that stand aside, in any order."""
        return self._aside.values()

    def by_use(self) -> Iterator[StoredBlock]:
        """All but those aside, least recently used first; nothing may change meanwhile."""
        rings = [_walk(end) for end in self._ends.values()]
        return rings[0] if len(rings) == 1 else merge(*rings, key=lambda block: block.used_at_ns)

    def expired(self, is_expired: Callable[[StoredBlock], bool]) -> Iterator[StoredBlock]:
        """Those, but for those aside; nothing may change meanwhile."""
        for end in self._ends.values():
            for block in _walk(end):
                if not is_expired(block):
                    break
                yield block

    def _end(self, expiry_ns: int) -> StoredBlock:
        if (end := self._ends.get(expiry_ns)) is None:
            end = self._ends[expiry_ns] = self._make_end()
            end.older = end.newer = end
        return end


def _put_between(older: StoredBlock, block: StoredBlock, newer: StoredBlock) -> None:
    block.older, block.newer = older, newer
    older.newer = newer.older = block


def _walk(end: StoredBlock) -> Iterator[StoredBlock]:
    block = end.newer
    while block is not end:
        yield block
        block = block.newer
