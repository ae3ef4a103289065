"""Every block that the host keeps for later turns: on disk, or in memory alone.

A block is listed in one of the two. It moves to memory when the disk evicts it, and to the disk
when that takes it.
"""

from collections.abc import Callable

from services.kvstore.core.base.effects import DiskWrite
from services.kvstore.core.disk.disk_tier import DiskTier
from services.kvstore.core.disk.stored_block import StoredBlock
from services.kvstore.core.tiers.arena_only_blocks import ArenaOnlyBlocks
from shared.blocks import BlockKey
from shared.owners import NO_OWNER, OwnerKey


class HostBlocks:
    """Attributes:
    disk, arena_only: each block is in one of them.
    on_change: see `locations.Counted`. Moves from one to the other are not reported.
    on_gone: called with every block that is in neither any more.
    """

    def __init__(self, disk: DiskTier, arena_only: ArenaOnlyBlocks) -> None:
        self.disk = disk
        self.arena_only = arena_only
        self.on_change: Callable[[OwnerKey, int], None] = lambda owner, least: None
        self.on_gone: Callable[[BlockKey], None] = lambda key: None
        self._is_moving = False
        disk.on_change = self._report
        arena_only.on_change = self._report
        disk.on_gone = arena_only.on_gone = self._on_gone

    def __contains__(self, key: BlockKey) -> bool:
        return key in self.disk or key in self.arena_only

    def get(self, key: BlockKey) -> StoredBlock | None:
        """What is known of a block now; its depth only if it is on disk."""
        return self.disk.get(key) or self.arena_only.get(key)

    def parent_of(self, key: BlockKey) -> BlockKey | None:
        """The block before it; None: it is not here itself."""
        if (parent := self.disk.parent_of(key)) is not None:
            return parent
        block = self.arena_only.get(key)
        return None if block is None else block.parent

    def to_disk(self, block: StoredBlock) -> None:
        """The disk has it now; it was used later than every block there."""
        self._is_moving = True
        was_here = self.arena_only.remove(block.key) is not None
        # The disk would count from where its own part of the sequence begins.
        is_counted = bool(len(self.arena_only))
        self._is_moving = was_here or is_counted
        after = [] if was_here else self._owners_after(block.key)
        self.disk.add(block)
        self._is_moving = False
        if not was_here:
            self._report_all([block.owner, *after] if is_counted else after)

    def add_to_arena_only(self, block: StoredBlock, write: DiskWrite | None) -> None:
        """The disk did not take it; the arena has it whole.

        Args:
            write: what the disk would be given of it; None: that is not known.
        """
        self._is_moving = True
        after = self._owners_after(block.key)
        self.arena_only.add(block, write)
        self._is_moving = False
        self._report_all([block.owner, *after])

    def to_memory(self, key: BlockKey, write: DiskWrite | None) -> None:
        """The disk evicted it, and the arena has it whole.

        Args:
            write: what the disk would be given of it; None: that is not known.
        """
        self._is_moving = True
        block = self.disk.remove(key)
        assert block is not None, "it was on disk"
        self.arena_only.add(block, write)
        self._is_moving = False

    def use(self, keys: list[BlockKey], now_ns: int, stale_ns: int) -> list[BlockKey]:
        """Mark blocks as used, the one to evict first first.

        Returns:
            Those on disk whose last use as written down is more than `stale_ns` behind.
        """
        self.arena_only.use(keys, now_ns, stale_ns)
        return self.disk.use(keys, now_ns, stale_ns)

    def set_expiry(self, owner: OwnerKey, expiry_ns: int, now_ns: int) -> list[BlockKey]:
        """A session that is here now has another expiry.

        Returns:
            Its blocks on disk, if they had another one; in the order in which they may go.
        """
        self.arena_only.set_expiry(owner, expiry_ns, now_ns)
        return self.disk.set_expiry(owner, expiry_ns, now_ns)

    @property
    def owners(self) -> list[OwnerKey]:
        """Sessions that made blocks which are here."""
        return list(dict.fromkeys([*self.disk.owners, *self.arena_only.owners]))

    def num_owned(self, owner: OwnerKey) -> int:
        """How many blocks here this session made."""
        return self.disk.num_owned(owner) + self.arena_only.num_owned(owner)

    def expiry_ns_of(self, owner: OwnerKey) -> int:
        """How long a session's blocks outlive its last use; 0: as every tier has it."""
        tier = self.disk if self.disk.num_owned(owner) else self.arena_only
        return tier.expiry_ns_of(owner)

    def count_leading(self, owner: OwnerKey) -> int:
        """How many blocks lead the longest sequence here that this session made the end of."""
        if not len(self.arena_only):
            return self.disk.count_leading(owner)
        depths: dict[BlockKey, int] = {}
        owned = [*self.disk.owned(owner), *self.arena_only.owned(owner)]
        return max((self._depth_of(key, depths) + 1 for key in owned), default=0)

    def count_all_leading(self) -> dict[OwnerKey, int]:
        """The same of every session, right after the start: nothing is in memory alone."""
        assert not len(self.arena_only), "memory is empty after a start"
        return self.disk.count_all_leading()

    def _depth_of(self, key: BlockKey, depths: dict[BlockKey, int]) -> int:
        above: list[BlockKey] = []
        at = key
        while at not in depths and (parent := self.parent_of(at)) is not None:
            depths[at] = 0  # a circle of parents ends here
            above.append(at)
            at = parent
        depth = depths.get(at, -1)
        for each in reversed(above):
            depth += 1
            depths[each] = depth
        return depths[key]

    def _owners_after(self, key: BlockKey) -> list[OwnerKey]:
        """Sessions that may have blocks here which continue this one, which is not here. Where
        blocks on disk do, directly or through memory, that is every session: it is rare, as the
        disk evicts last what others continue.
        """
        after = self.arena_only.blocks_after(key)
        if any(self.disk.is_continued(each) for each in (key, *after)):
            return self.owners
        return list(
            dict.fromkeys(block.owner for each in after if (block := self.arena_only.get(each)))
        )

    def _on_gone(self, key: BlockKey) -> None:
        if not self._is_moving:
            self.on_gone(key)
            self._report_all(self._owners_after(key))

    def _report_all(self, owners: list[OwnerKey]) -> None:
        """How many blocks lead their sequences is to be counted."""
        for owner in owners:
            if owner != NO_OWNER:
                self.on_change(owner, 0)

    def _report(self, owner: OwnerKey, least: int) -> None:
        if not self._is_moving:
            self.on_change(owner, least)
