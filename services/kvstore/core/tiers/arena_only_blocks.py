"""Blocks that the arena holds whole and that are not on disk: the disk refused or evicted them."""

from collections.abc import Callable, Iterable

from services.kvstore.core.base.deadlines import Deadlines
from services.kvstore.core.base.effects import DiskWrite
from services.kvstore.core.disk.disk_tier import EVER_NS, is_noted_late
from services.kvstore.core.disk.stored_block import StoredBlock
from shared.blocks import BlockKey
from shared.owners import NO_OWNER, OwnedKeys, OwnerKey

RECHECK_NS = 60_000_000_000  # until an expired block that others continue is looked at again


class ArenaOnlyBlocks:
    """What is known of each. The arena decides which of them make room (`ArenaTier.on_gone`); they
    expire as blocks on disk do.

    Args:
        expiry_ns: how long blocks outlive their last use that have no expiry of their own.

    Attributes:
        on_change: as in `locations.Counted`.
        on_gone: called with every block that was removed.
    """

    def __init__(self, expiry_ns: int = EVER_NS) -> None:
        self._expiry_ns = expiry_ns
        self._blocks: dict[BlockKey, StoredBlock] = {}
        self._writes: dict[BlockKey, DiskWrite] = {}
        self._owned = OwnedKeys()
        self._children: dict[BlockKey, dict[BlockKey, None]] = {}  # blocks here, by their parents
        self._deadlines = Deadlines[BlockKey]()
        self.on_change: Callable[[OwnerKey, int], None] = lambda owner, least: None
        self.on_gone: Callable[[BlockKey], None] = lambda key: None

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, key: BlockKey) -> bool:
        return key in self._blocks

    @property
    def keys(self) -> list[BlockKey]:
        """Of every block here."""
        return list(self._blocks)

    @property
    def owners(self) -> list[OwnerKey]:
        """Sessions that made blocks which are here."""
        return self._owned.owners

    def get(self, key: BlockKey) -> StoredBlock | None:
        """What is known of a block now."""
        return self._blocks.get(key)

    def write_of(self, key: BlockKey) -> DiskWrite | None:
        """What the disk would be given of it; None: it is not here, or that is not known. May be
        called in any thread.
        """
        return self._writes.get(key)

    def owner_of(self, key: BlockKey) -> OwnerKey:
        """The session that made a block which is here."""
        return self._blocks[key].owner

    def owned(self, owner: OwnerKey) -> list[BlockKey]:
        """Blocks here that this session made."""
        return self._owned.of(owner)

    def num_owned(self, owner: OwnerKey) -> int:
        """How many those are."""
        return self._owned.num_of(owner)

    def is_continued(self, key: BlockKey) -> bool:
        """Whether a block here continues this one."""
        return key in self._children

    def blocks_after(self, key: BlockKey) -> list[BlockKey]:
        """Blocks here that continue this one through blocks here."""
        todo, after = [key], dict[BlockKey, None]()
        while todo:
            new = [each for each in self._children.get(todo.pop(), ()) if each not in after]
            after |= dict.fromkeys(new)
            todo += new
        return list(after)

    def add(self, block: StoredBlock, write: DiskWrite | None) -> None:
        """The arena has it whole, and the disk does not have it."""
        assert block.key not in self._blocks, "a block is listed once"
        self._blocks[block.key] = block
        if write is not None:
            self._writes[block.key] = write
        self._owned.add(block.owner, block.key)
        self._children.setdefault(block.parent, {})[block.key] = None
        self._deadlines.put(block.key, self._expires_at_ns(block))
        self._report(block.owner, 0)

    def remove(self, key: BlockKey) -> StoredBlock | None:
        """It left the arena, or is on disk now; None: it was not here."""
        if (block := self._blocks.pop(key, None)) is None:
            return None
        self._writes.pop(key, None)
        self._owned.remove(block.owner, key)
        self._deadlines.remove(key)
        siblings = self._children[block.parent]
        del siblings[key]
        if not siblings:
            del self._children[block.parent]
            if (before := self._blocks.get(block.parent)) is not None:  # kept for it, perhaps
                self._deadlines.put(before.key, self._expires_at_ns(before))
        self._report(block.owner, 0)
        self.on_gone(key)
        return block

    def use(self, keys: Iterable[BlockKey], now_ns: int, stale_ns: int) -> None:
        """Mark those of these that are here as used. `on_change` is called where the last use that
        was reported is more than `stale_ns` behind.
        """
        for key in keys:
            if (block := self._blocks.get(key)) is None:
                continue
            block.used_at_ns = now_ns
            if is_noted_late(block.noted_at_ns, block.expiry_ns, now_ns, stale_ns):
                block.noted_at_ns = now_ns
                self._report(block.owner, 1)

    def expiry_ns_of(self, owner: OwnerKey) -> int:
        """How long a session's blocks outlive its last use; 0: as the tier has it."""
        last = self._owned.last_of(owner)
        return 0 if last is None else self._blocks[last].expiry_ns

    def set_expiry(self, owner: OwnerKey, expiry_ns: int, now_ns: int) -> None:
        """A session that is here now has another expiry."""
        if self.expiry_ns_of(owner) == expiry_ns:
            return
        for key in self._owned.of(owner):
            block = self._blocks[key]
            block.expiry_ns = expiry_ns
            block.used_at_ns = block.noted_at_ns = now_ns
            self._deadlines.put(key, self._expires_at_ns(block))
        if self.num_owned(owner):
            self.on_change(owner, 1)

    def take_expired(
        self, now_ns: int, is_kept: Callable[[BlockKey], bool], num_max: int
    ) -> list[BlockKey]:
        """Blocks to forget for their age, at most so many; to be removed by the caller. What others
        continue stays as long as those.

        Args:
            is_kept: whether a block has to stay for another reason.
        """
        expired: list[BlockKey] = []
        while len(expired) < num_max and (key := self._deadlines.take(now_ns)) is not None:
            if (expires_at_ns := self._expires_at_ns(self._blocks[key])) >= now_ns:
                self._deadlines.put(key, expires_at_ns)
            elif self.is_continued(key) or is_kept(key):
                self._deadlines.put(key, now_ns + RECHECK_NS)
            else:
                expired.append(key)
        return expired

    def _report(self, owner: OwnerKey, least: int) -> None:
        if owner != NO_OWNER:
            self.on_change(owner, least)

    def _expires_at_ns(self, block: StoredBlock) -> int:
        return block.used_at_ns + (block.expiry_ns or self._expiry_ns)
