"""Blocks on disk in order of last use, those that expire alike and return alike together: so the
oldest of each ring shows whether any of it is expired, and the ends of all rings which block makes
room next.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heapreplace, merge

import numpy as np

from services.kvstore.core.disk.block_table import BlockTable
from shared.eviction import UNKNOWN_KIND


class UseOrder:
    """A ring of rows for each expiry and kind of return that blocks have, least recently used
    first. Expired blocks that others continue stand aside, in none: they go with the last of those,
    and to walk over them time and again would hold up the event loop.
    """

    def __init__(self, table: BlockTable) -> None:
        self._table = table
        # By expiry and kind: what is between the newest and the oldest.
        self._ends: dict[tuple[int, int], int] = {}
        self._aside: dict[int, None] = {}

    def link(self, row: int) -> None:
        """As the one used last."""
        end = self._end_of(row)
        self._put_between(self._table.older[end], row, end)

    def link_all(self) -> None:
        """Every row of the table, none of which is linked: those first that stand first. How they
        return is not known."""
        table = self._table
        expiry_ns = np.array(table.expiry_ns)
        _, first = np.unique(expiry_ns, return_index=True)
        ends = {each: self._end(each, UNKNOWN_KIND) for each in expiry_ns[np.sort(first)].tolist()}
        older, newer = np.array(table.older), np.array(table.newer)
        for each_ns, end in ends.items():
            ring = np.concatenate([[end], np.flatnonzero(expiry_ns == each_ns), [end]])
            newer[ring[:-1]], older[ring[1:]] = ring[1:], ring[:-1]
        table.older = array("i", older.tobytes())
        table.newer = array("i", newer.tobytes())

    def unlink(self, row: int) -> None:
        """It is gone, or used again."""
        if row in self._aside:
            del self._aside[row]
            return
        table = self._table
        older, newer = table.older[row], table.newer[row]
        table.newer[older], table.older[newer] = newer, older
        if older == newer:  # the end of a ring that is empty now
            del self._ends[table.expiry_ns[older], table.return_kind[older]]
            table.remove_end(older)

    def set_aside(self, row: int) -> None:
        """It is expired, and others continue it."""
        self.unlink(row)
        self._aside[row] = None

    def is_aside(self, row: int) -> bool:
        """Whether that is so of this one."""
        return row in self._aside

    def put_back(self, row: int) -> None:
        """Nothing continues it any more: if it stood aside, it is the first to be looked at."""
        if row in self._aside:
            del self._aside[row]
            end = self._end_of(row)
            self._put_between(end, row, self._table.newer[end])

    def clear(self) -> None:
        """All are gone."""
        self._ends.clear()
        self._aside.clear()

    @property
    def aside(self) -> Iterable[int]:
        """Those that stand aside, in any order."""
        return self._aside

    def by_use(self) -> Iterator[int]:
        """All but those aside, least recently used first; nothing may change meanwhile."""
        rings = [self._walk(end) for end in self._ends.values()]
        if len(rings) == 1:
            return rings[0]
        return merge(*rings, key=self._table.used_at_ns.__getitem__)

    def by_worth(self, worth: Callable[[int], float]) -> Iterator[int]:
        """All but those aside, those that are worth least first, as far as the ends of rings show
        that: with age, blocks are worth first more, then less. Nothing may change meanwhile."""
        table = self._table
        further = table.newer, table.older  # from the oldest of what is left, from the newest
        rings = [[table.newer[end], table.older[end]] for end in self._ends.values()]
        heap = [
            (worth(row), table.used_at_ns[row], number, side)
            for number, ends in enumerate(rings)
            for side, row in enumerate(ends)
        ]
        heapify(heap)
        while heap:
            _, _, number, side = heap[0]
            if not (ends := rings[number]):
                heappop(heap)
                continue
            row = ends[side]
            yield row
            if ends[0] == ends[1]:
                ends.clear()
                continue
            ends[side] = row = further[side][row]
            heapreplace(heap, (worth(row), table.used_at_ns[row], number, side))

    def expired(self, is_expired: Callable[[int], bool]) -> Iterator[int]:
        """Those, but for those aside; nothing may change meanwhile."""
        for end in self._ends.values():
            for row in self._walk(end):
                if not is_expired(row):
                    break
                yield row

    def _end_of(self, row: int) -> int:
        return self._end(self._table.expiry_ns[row], self._table.return_kind[row])

    def _end(self, expiry_ns: int, return_kind: int) -> int:
        if (end := self._ends.get((expiry_ns, return_kind))) is None:
            table = self._table
            end = self._ends[expiry_ns, return_kind] = table.new_row()
            table.expiry_ns[end], table.return_kind[end] = expiry_ns, return_kind
            table.older[end] = table.newer[end] = end
        return end

    def _put_between(self, older: int, row: int, newer: int) -> None:
        table = self._table
        table.older[row], table.newer[row] = older, newer
        table.newer[older] = table.older[newer] = row

    def _walk(self, end: int) -> Iterator[int]:
        newer = self._table.newer
        row = newer[end]
        while row != end:
            yield row
            row = newer[row]
