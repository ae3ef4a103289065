"""Which blocks are on disk, in order of last use, and how much of each session's sequence."""

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain

import numpy as np

from services.kvstore.core.disk.block_table import NO_ROW, BlockTable, find_depths
from services.kvstore.core.disk.found_blocks import FoundBlocks, Shape
from services.kvstore.core.disk.owned_rows import OwnedRows
from services.kvstore.core.disk.stored_block import UNKNOWN, StoredBlock
from services.kvstore.core.disk.use_order import UseOrder
from shared.blocks import BlockKey
from shared.eviction import Guard, ReturnModel, bin_of, compute_share
from shared.owners import NO_OWNER, OwnerKey

NEVER_NS = -(1 << 62)  # before everything that was ever used
EVER_NS = 1 << 62  # longer than anything lasts
EVER_BYTES = 1 << 62  # more than anything holds
FREE_SHARE = 16  # one part of so many is left free by what is written again
NOTED_SHARE = 4  # of an expiry of its own: so old may be what is written down of its last use


class DiskTier:
    """Blocks on disk. Expired ones go, and for room those first that are worth least, however long
    they have: how often such blocks return at their age, times what computing them takes. A block
    is evicted only after those that continue it: without it, no turn can use them. So what two
    sessions begin with has the longer expiry of theirs.

    Depths say how many blocks lead a session's sequence. Where one goes from under
    others of its session, or comes back, those are counted again when that is next asked; not those
    of other sessions.

    Args:
        expiry_ns: how long blocks outlive their last use that have no expiry of their own.
        returns: what is known of what returns; None: the least recently used goes for room.

    Attributes:
        num_bytes: of all blocks together.
        guard: says whether prediction is to be trusted here.
        on_change: called with every session of which blocks came, went or were used, and how many
            lead its sequence now: at least so many; 0: they are to be counted.
        on_gone: called with every block that was removed.
    """

    def __init__(
        self, bytes_max: int, expiry_ns: int = EVER_NS, returns: ReturnModel | None = None
    ) -> None:
        self._bytes_max = bytes_max
        self._expiry_ns = expiry_ns
        self._returns = returns
        self.guard = Guard(1)
        self._table = BlockTable()
        self._order = UseOrder(self._table)
        self._owned = OwnedRows()
        self._full_bytes = EVER_BYTES  # that were here when no more found room
        self._awaited: Counter[BlockKey] = Counter()  # blocks here, by parents that are not
        self._are_depths_lost = False  # all of them, since the last was found
        self.num_bytes = 0
        self.on_change: Callable[[OwnerKey, int], None] = lambda owner, least: None
        self.on_gone: Callable[[BlockKey], None] = lambda key: None

    @property
    def capacity_bytes(self) -> int:
        """What it holds at most: its limit, or less where the file system had no room for that."""
        return min(self._bytes_max, self._full_bytes)

    def has_room(self, num_bytes: int) -> bool:
        """Whether so much more can be written, with something left for new blocks."""
        capacity_bytes = self.capacity_bytes
        return self.num_bytes + num_bytes <= capacity_bytes - capacity_bytes // FREE_SHARE

    def is_full_with(self, num_bytes: int) -> bool:
        """Whether something has to go for so much more."""
        return self.num_bytes + num_bytes > self.capacity_bytes

    def on_full(self) -> None:
        """A block found no room."""
        self._full_bytes = self.num_bytes

    def __len__(self) -> int:
        return len(self._table.rows)

    def __contains__(self, key: BlockKey) -> bool:
        return key in self._table.rows

    @property
    def is_here(self) -> Callable[[BlockKey], bool]:
        """As `in`, for many keys at once."""
        return self._table.rows.__contains__

    @property
    def keys(self) -> list[BlockKey]:
        """Of every block here, least recently used first."""
        table = self._table
        rows = [*self._order.aside, *self._order.by_use()]
        return [table.keys[row] for row in sorted(rows, key=table.used_at_ns.__getitem__)]

    @property
    def owners(self) -> list[OwnerKey]:
        """Sessions that made blocks which are here."""
        return self._owned.owners

    def get(self, key: BlockKey) -> StoredBlock | None:
        """What is known of a block now."""
        row = self._table.rows.get(key)
        if row is None:
            return None
        self._find_depths([row])
        return self._block(row)

    def shape_of(self, key: BlockKey) -> Shape | None:
        """That of a block; None: it is not here."""
        row = self._table.rows.get(key)
        return None if row is None else self._table.shape(row)

    def parent_of(self, key: BlockKey) -> BlockKey | None:
        """The block before it; None: it is not here itself."""
        row = self._table.rows.get(key)
        return None if row is None else self._table.parents[row]

    def owned(self, owner: OwnerKey) -> list[BlockKey]:
        """Blocks here that this session made."""
        keys = self._table.keys
        return [keys[row] for row in self._owned.of(owner)]

    def num_owned(self, owner: OwnerKey) -> int:
        """How many blocks here this session made."""
        return self._owned.num_of(owner)

    def count_leading(self, owner: OwnerKey) -> int:
        """How many blocks lead the longest sequence here that this session made the end of."""
        rows = self._owned.of(owner)
        self._find_depths(rows)
        depth = self._table.depth
        return max((depth[row] + 1 for row in rows), default=0)

    def count_all_leading(self) -> dict[OwnerKey, int]:
        """The same of every session, by depths as they stand."""
        return self._owned.greatest(np.array(self._table.depth, np.int32) + 1)

    def find(self, found: FoundBlocks) -> None:
        """Take in what was here before the start, in any order."""
        assert not len(self), "nothing came before the start"
        if not len(found):
            return
        found, table = found.by_use(), self._table
        self._owned.fill(found.owners)
        # A kill may have left the latest expiry with only some of a session's blocks: with
        # those used last, since telling it is a use.
        found = replace(found, expiry_ns=found.expiry_ns[self._owned.lasts()])
        before = table.fill(found)
        is_here = before != NO_ROW
        self._awaited.update(table.parents[row] for row in np.flatnonzero(~is_here))
        num_children = np.bincount(before[is_here], minlength=len(found)).astype(np.int32)
        table.num_children = array("i", num_children.tobytes())
        depth = find_depths(before)
        table.depth = array("i", depth.tobytes())
        self._order.link_all()
        self.num_bytes = found.num_bytes
        self._find_depths(np.flatnonzero(depth == UNKNOWN).tolist())  # circles

    def add(self, block: StoredBlock) -> None:
        """Take in a block that was used later than every block here."""
        row, table = self._table.add(block), self._table
        self._order.link(row)
        self._owned.add(block.owner, row)
        table.depth[row] = UNKNOWN
        table.num_children[row] = self._awaited.pop(block.key, 0)
        self.num_bytes += block.num_bytes
        if self.num_bytes > self._full_bytes:  # there is more room than there was
            self._full_bytes = EVER_BYTES
        if (before := table.parent_row(row)) == NO_ROW:
            self._awaited[block.parent] += 1
        else:
            table.num_children[before] += 1
        self._find_depths([row])
        if table.num_children[row]:
            self._lose_depths()
        self._tell(block.owner, 0 if table.num_children[row] else table.depth[row] + 1)

    def remove(self, key: BlockKey) -> StoredBlock | None:
        """Forget a block, if it is here."""
        table = self._table
        if (row := table.rows.get(key)) is None:
            return None
        block = self._block(row)
        self._owned.remove(row)
        self._order.unlink(row)
        self._leave_parent(row)
        if num_children := table.num_children[row]:
            self._awaited[key] = num_children
            self._lose_depths()
        table.remove(row)
        self.num_bytes -= block.num_bytes
        self._tell(block.owner, 0)
        self.on_gone(key)
        return block

    def clear(self) -> None:
        """Forget every block, without reports."""
        self._table.clear()
        self._order.clear()
        self._owned.clear()
        self._awaited.clear()
        self._are_depths_lost = False
        self.num_bytes = 0
        self._full_bytes = EVER_BYTES

    def use(self, keys: Iterable[BlockKey], now_ns: int, stale_ns: int) -> list[BlockKey]:
        """Mark blocks as used, the one to evict first first.

        Returns:
            Those whose last use as written down is more than `stale_ns` behind.
        """
        table, stale = self._table, []
        for key in keys:
            if (row := table.rows.get(key)) is None:
                continue
            self._order.unlink(row)
            self._order.link(row)
            table.used_at_ns[row] = now_ns
            if is_noted_late(table.noted_at_ns[row], table.expiry_ns[row], now_ns, stale_ns):
                table.noted_at_ns[row] = now_ns
                stale.append(key)
                self._tell(self._owned.owner_of(row), 1)
        return stale

    def set_kind(self, key: BlockKey, return_kind: int) -> None:
        """A block that is here, if it is, was used in a sequence of this kind."""
        row = self._table.rows.get(key)
        if row is not None and self._table.return_kind[row] != return_kind:
            is_aside = self._order.is_aside(row)
            if not is_aside:
                self._order.unlink(row)
            self._table.return_kind[row] = return_kind
            if not is_aside:
                self._order.link(row)

    def expiry_ns_of(self, owner: OwnerKey) -> int:
        """How long a session's blocks outlive its last use; 0: as the tier has it."""
        last = self._owned.last_of(owner)
        return 0 if last == NO_ROW else self._table.expiry_ns[last]

    def set_expiry(self, owner: OwnerKey, expiry_ns: int, now_ns: int) -> list[BlockKey]:
        """A session that is here now has another expiry.

        Returns:
            Its blocks, if they had another one; in the order in which they may go.
        """
        if self.expiry_ns_of(owner) == expiry_ns:
            return []
        rows, table = self._owned.of(owner)[::-1], self._table
        for row in rows:
            self._order.unlink(row)
            table.expiry_ns[row] = expiry_ns
            table.used_at_ns[row] = table.noted_at_ns[row] = now_ns
            self._order.link(row)
        if rows:
            self.on_change(owner, 1)
        return [table.keys[row] for row in rows]

    def surplus(
        self, now_ns: int, is_busy: Callable[[BlockKey], bool], num_max: int = 1 << 62
    ) -> list[BlockKey]:
        """Blocks to evict, in this order: those that are expired, and as many as bring the rest
        under the size limit. Busy ones stay.

        Args:
            num_max: there may be more than that; they are named once these are gone.
        """
        num_bytes = self.num_bytes - self._bytes_max
        return self._to_give_up(
            num_bytes, now_ns, is_busy, num_max, partial(self._is_expired, now_ns)
        )

    def to_make_room(
        self, num_bytes: int, is_busy: Callable[[BlockKey], bool], now_ns: int = EVER_NS
    ) -> list[BlockKey]:
        """The blocks to evict first that together occupy at least `num_bytes`."""
        return self._to_give_up(num_bytes, now_ns, is_busy, len(self), lambda row: False)

    def _to_give_up(
        self,
        num_bytes: int,
        now_ns: int,
        is_busy: Callable[[BlockKey], bool],
        num_max: int,
        is_expired: Callable[[int], bool],
    ) -> list[BlockKey]:
        table, order = self._table, self._order
        out: dict[int, None] = {}
        num_gone: Counter[int] = Counter()  # children that go, by their parent
        kept: dict[int, None] = {}  # for their children's sake
        for first in chain(order.expired(is_expired), self._in_order(now_ns)):
            if len(out) >= num_max or (num_bytes <= 0 and not is_expired(first)):
                break
            row = first
            while row != NO_ROW and row not in out and not is_busy(table.keys[row]):
                if len(out) >= num_max or (num_bytes <= 0 and not is_expired(row)):
                    break
                if table.num_children[row] > num_gone[row]:
                    kept[row] = None
                    break
                out[row] = None
                num_bytes -= table.shape(row).num_bytes
                before = table.parent_row(row)
                num_gone[before] += 1
                row = before if before in kept or order.is_aside(before) else NO_ROW
        for row in kept:
            if table.num_children[row] > num_gone[row] and is_expired(row):
                order.set_aside(row)
        return [table.keys[row] for row in out]

    def worth_of(self, kind: int, used_at_ns: int, depth: int, now_ns: int) -> float | None:
        """What it saves a second that such a block is here, in what computing the first of a
        sequence takes; None: nothing is known of what returns, or it is not to be trusted.
        """
        returns = self._trusted
        if returns is None or not returns.is_known(kind):
            return None
        return _worth(returns, kind, now_ns - used_at_ns, depth)

    def least_worth(self, now_ns: int) -> float:
        """The least of any block here, in the same measure; 0: there is none."""
        first = next(self._in_order(now_ns), NO_ROW)
        if (returns := self._trusted) is None or first == NO_ROW:
            return 0.0
        return self._worth_of_row(returns, now_ns, first)

    @property
    def _trusted(self) -> ReturnModel | None:
        return self._returns if self.guard.is_trusted else None

    def _in_order(self, now_ns: int) -> Iterator[int]:
        if (returns := self._trusted) is None:
            return self._order.by_use()
        return self._order.by_worth(partial(self._worth_of_row, returns, now_ns))

    def _worth_of_row(self, returns: ReturnModel, now_ns: int, row: int) -> float:
        table = self._table
        age_ns = now_ns - table.used_at_ns[row]
        return _worth(returns, table.return_kind[row], age_ns, table.depth[row])

    def is_expired(self, key: BlockKey, now_ns: int) -> bool:
        """Whether a block that is here has outlived its last use for as long as it may."""
        return self._is_expired(now_ns, self._table.rows[key])

    def is_continued(self, key: BlockKey) -> bool:
        """Whether a block here continues this one, which is not here."""
        return key in self._awaited

    def _is_expired(self, now_ns: int, row: int) -> bool:
        table = self._table
        return table.used_at_ns[row] < now_ns - (table.expiry_ns[row] or self._expiry_ns)

    def _block(self, row: int) -> StoredBlock:
        table = self._table
        return StoredBlock(
            table.keys[row], *table.shape(row), table.used_at_ns[row], table.noted_at_ns[row],
            self._owned.owner_of(row), table.parents[row], table.depth[row],
            table.num_children[row], bool(table.is_saved[row]), table.expiry_ns[row],
            table.return_kind[row],
        )  # fmt: skip

    def _leave_parent(self, row: int) -> None:
        table = self._table
        if (before := table.parent_row(row)) != NO_ROW:
            table.num_children[before] -= 1
            if not table.num_children[before]:
                self._order.put_back(before)
            return
        parent = table.parents[row]
        self._awaited[parent] -= 1
        if not self._awaited[parent]:
            del self._awaited[parent]

    def _find_depths(self, rows: Iterable[int]) -> None:
        """Those that are unknown, of these and of what is before them."""
        depth = self._table.depth
        above: list[int] = []
        self._are_depths_lost = False
        for row in rows:
            at = row
            while at != NO_ROW and depth[at] == UNKNOWN:
                depth[at] = 0  # a block that is its own ancestor must end the walk
                above.append(at)
                at = self._table.parent_row(at)
            before = UNKNOWN if at == NO_ROW else depth[at]
            while above:
                before += 1
                depth[above.pop()] = before

    def _lose_depths(self) -> None:
        """A block came or went that others here continue, of any session. That is rare."""
        if not self._are_depths_lost:
            self._are_depths_lost = True
            self._table.depth = array("i", [UNKNOWN]) * len(self._table.depth)

    def _tell(self, owner: OwnerKey, least: int) -> None:
        """Something happened to a block of this session, so that at least so many lead its
        sequence; 0: those that continue it, or all, are to be counted."""
        if owner != NO_OWNER:
            self.on_change(owner, least)


def _worth(returns: ReturnModel, kind: int, age_ns: int, depth: int) -> float:
    return returns.index(kind, bin_of(age_ns)) * compute_share(depth)


def is_noted_late(noted_at_ns: int, expiry_ns: int, now_ns: int, stale_ns: int) -> bool:
    """Whether a block's last use is to be written down or reported again.

    Args:
        expiry_ns: how long it outlives that; 0: as the tier has it.
        stale_ns: how far behind it may be at most.
    """
    return now_ns - noted_at_ns > min(stale_ns, (expiry_ns or EVER_NS) // NOTED_SHARE)
