"""Which blocks are on disk, in order of last use, and how much of each session's sequence."""

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import chain

from services.kvstore.core.stored_block import UNKNOWN, StoredBlock
from services.kvstore.core.use_order import UseOrder
from shared.blocks import NO_PARENT, BlockKey
from shared.owners import NOBODY, OwnedKeys, OwnerKey

NEVER_NS = -(1 << 62)  # before everything that was ever used
EVER_NS = 1 << 62  # longer than anything lasts
NOTED_SHARE = 4  # of an expiry of its own: so old may be what is written down of its last use


class DiskTier:
    """Blocks on disk. Expired ones go, and for room the least recently used first, however long
    they have. A block is given up only after those that continue it: without it, nobody can use
    them. So what two sessions begin with has the longer expiry of theirs.

    How many blocks lead a session's sequence is told by their depths. Where one goes from under
    others of its session, or comes back, those are counted again when that is next asked; not those
    of other sessions.

    Args:
        expiry_ns: how long blocks outlive their last use that have no expiry of their own.

    Attributes:
        num_bytes: of all blocks together.
        on_change: told of every session of which blocks came, went or were used, and how many lead
            its sequence now: at least so many; 0: they are to be counted.
    """

    def __init__(self, bytes_max: int, expiry_ns: int = EVER_NS) -> None:
        self._bytes_max = bytes_max
        self._expiry_ns = expiry_ns
        self._blocks: dict[BlockKey, StoredBlock] = {}
        self._order = UseOrder(_end_of_ring)
        self._owned = OwnedKeys()
        self._awaited: Counter[BlockKey] = Counter()  # blocks here, by parents that are not
        self._uncounted: set[OwnerKey] = set()  # depths of their blocks may be wrong
        self.num_bytes = 0
        self.on_change: Callable[[OwnerKey, int], None] = lambda owner, least: None

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, key: BlockKey) -> bool:
        return key in self._blocks

    @property
    def keys(self) -> list[BlockKey]:
        """Of every block here, least recently used first."""
        blocks = [*self._order.aside, *self._order.by_use()]
        return [block.key for block in sorted(blocks, key=lambda block: block.used_at_ns)]

    @property
    def owners(self) -> list[OwnerKey]:
        """Sessions that made blocks which are here."""
        return self._owned.owners

    def get(self, key: BlockKey) -> StoredBlock | None:
        return self._blocks.get(key)

    def owned(self, owner: OwnerKey) -> list[BlockKey]:
        """Blocks here that this session made."""
        return self._owned.of(owner)

    def num_owned(self, owner: OwnerKey) -> int:
        """How many blocks here this session made."""
        return self._owned.num_of(owner)

    def count_leading(self, owner: OwnerKey) -> int:
        """How many blocks lead the longest sequence here that this session made the end of."""
        blocks = [self._blocks[key] for key in self._owned.of(owner)]
        if owner in self._uncounted:
            self._uncounted.remove(owner)
            for block in blocks:
                block.depth = UNKNOWN
            self._find_depths(blocks)
        return max((block.depth + 1 for block in blocks), default=0)

    def count_all_leading(self) -> dict[OwnerKey, int]:
        """The same of every session, by depths as they stand."""
        leading: dict[OwnerKey, int] = {}
        for block in self._blocks.values():
            if block.depth >= leading.get(block.owner, 0):
                leading[block.owner] = block.depth + 1
        leading.pop(NOBODY, None)
        return leading

    def find(self, blocks: Iterable[StoredBlock]) -> None:
        """Take in what was here before the start, in any order."""
        for block in sorted(blocks, key=lambda block: block.used_at_ns):
            self._insert(block)
        self._find_depths(self._blocks.values())

    def add(self, block: StoredBlock) -> None:
        """Take in a block that was used later than every block here."""
        self._insert(block)
        if (parent := self._blocks.get(block.parent)) and parent.owner in self._uncounted:
            self.count_leading(parent.owner)
        self._find_depths([block])
        self._tell(block, 0 if block.num_children else block.depth + 1)

    def remove(self, key: BlockKey) -> StoredBlock | None:
        """Forget a block, if it is here."""
        block = self._blocks.pop(key, None)
        if block is not None:
            self._owned.remove(block.owner, block.key)
            self._order.unlink(block)
            self._leave_parent(block)
            if block.num_children:
                self._awaited[key] = block.num_children
            self.num_bytes -= block.num_bytes
            self._tell(block, 0)
        return block

    def clear(self) -> None:
        """Forget every block, and tell nobody of any."""
        self._blocks.clear()
        self._order.clear()
        self._owned.clear()
        self._awaited.clear()
        self._uncounted.clear()
        self.num_bytes = 0

    def use(self, keys: Iterable[BlockKey], now_ns: int, stale_ns: int) -> list[BlockKey]:
        """Mark blocks as used, the one to give up first first.

        Returns:
            Those whose last use as written down is more than `stale_ns` behind.
        """
        stale = []
        for key in keys:
            block = self._blocks.get(key)
            if block is None:
                continue
            self._order.unlink(block)
            self._order.link(block)
            block.used_at_ns = now_ns
            if now_ns - block.noted_at_ns > min(
                stale_ns, (block.expiry_ns or EVER_NS) // NOTED_SHARE
            ):
                block.noted_at_ns = now_ns
                stale.append(key)
                self._tell(block, 1)
        return stale

    def expiry_ns_of(self, owner: OwnerKey) -> int:
        """How long a session's blocks outlive its last use; 0: as the tier has it."""
        last = self._owned.last_of(owner)
        return 0 if last is None else self._blocks[last].expiry_ns

    def set_expiry(self, owner: OwnerKey, expiry_ns: int, now_ns: int) -> list[BlockKey]:
        """A session that is here now has another expiry.

        Returns:
            Its blocks, if they had another one; in the order in which they may go.
        """
        if self.expiry_ns_of(owner) == expiry_ns:
            return []
        keys = self._owned.of(owner)[::-1]
        for key in keys:
            block = self._blocks[key]
            self._order.unlink(block)
            block.expiry_ns = expiry_ns
            block.used_at_ns = block.noted_at_ns = now_ns
            self._order.link(block)
        if keys:
            self.on_change(owner, 1)
        return keys

    def surplus(self, now_ns: int, is_busy: Callable[[BlockKey], bool]) -> list[BlockKey]:
        """Blocks to give up, in this order: those that are expired, and as many as bring the rest
        under the size limit. Busy ones stay.
        """
        return self._to_give_up(self.num_bytes - self._bytes_max, now_ns, is_busy)

    def oldest(self, num_bytes: int, is_busy: Callable[[BlockKey], bool]) -> list[BlockKey]:
        """The least recently used blocks that together occupy at least `num_bytes`."""
        return self._to_give_up(num_bytes, NEVER_NS, is_busy)

    def _to_give_up(
        self, num_bytes: int, now_ns: int, is_busy: Callable[[BlockKey], bool]
    ) -> list[BlockKey]:
        out: dict[BlockKey, None] = {}
        num_gone: Counter[BlockKey] = Counter()  # children that go, by their parent
        kept: dict[BlockKey, StoredBlock] = {}  # for their children's sake

        def is_expired(block: StoredBlock) -> bool:
            return block.used_at_ns < now_ns - (block.expiry_ns or self._expiry_ns)

        for oldest in chain(self._order.expired(is_expired), self._order.by_use()):
            if num_bytes <= 0 and not is_expired(oldest):
                break
            block: StoredBlock | None = oldest
            while block is not None and block.key not in out and not is_busy(block.key):
                if num_bytes <= 0 and not is_expired(block):
                    break
                if block.num_children > num_gone[block.key]:
                    kept[block.key] = block
                    break
                out[block.key] = None
                num_bytes -= block.num_bytes
                num_gone[block.parent] += 1
                was_met = block.parent in kept or self._order.is_aside(block.parent)
                block = self._blocks.get(block.parent) if was_met else None
        for key, each in kept.items():
            if each.num_children > num_gone[key] and is_expired(each):
                self._order.set_aside(each)
        return list(out)

    def _insert(self, block: StoredBlock) -> None:
        assert block.key not in self._blocks, "a block is stored once"
        self._blocks[block.key] = block
        self._order.link(block)
        self._owned.add(block.owner, block.key)
        block.depth = UNKNOWN
        block.num_children = self._awaited.pop(block.key, 0)
        if (parent := self._blocks.get(block.parent)) is None:
            self._awaited[block.parent] += 1
        else:
            parent.num_children += 1
        self.num_bytes += block.num_bytes

    def _leave_parent(self, block: StoredBlock) -> None:
        if (parent := self._blocks.get(block.parent)) is not None:
            parent.num_children -= 1
            if not parent.num_children:
                self._order.put_back(parent)
            return
        self._awaited[block.parent] -= 1
        if not self._awaited[block.parent]:
            del self._awaited[block.parent]

    def _find_depths(self, blocks: Iterable[StoredBlock]) -> None:
        """Those that are unknown, of these and of what is before them."""
        above: list[StoredBlock] = []
        for block in blocks:
            at: StoredBlock | None = block
            while at is not None and at.depth == UNKNOWN:
                at.depth = 0  # were it its own ancestor, nobody would go round
                above.append(at)
                at = self._parent_of(at)
            depth = UNKNOWN if at is None else at.depth
            while above:
                depth += 1
                above.pop().depth = depth

    def _parent_of(self, block: StoredBlock) -> StoredBlock | None:
        parent = self._blocks.get(block.parent)
        if parent is not None:
            block.parent = parent.key  # the same bytes, kept once
            if block.owner == parent.owner:
                block.owner = parent.owner
        return parent

    def _tell(self, block: StoredBlock, least: int) -> None:
        """Something happened to the block, so that at least so many lead its sequence; 0: those
        that continue it, or all, are to be counted."""
        owner = block.owner
        if owner == NOBODY:
            return
        if not self._owned.num_of(owner):
            self._uncounted.discard(owner)
        elif not least and block.num_children:
            self._uncounted.add(owner)
        self.on_change(owner, least)


def _end_of_ring() -> StoredBlock:
    return StoredBlock(NO_PARENT, 0, 0, 0, 0, 0)
