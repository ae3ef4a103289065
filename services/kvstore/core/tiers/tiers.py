"""Arena and disk together: what is in use, and how a block leaves either or both."""

from collections.abc import Callable, Mapping, Sequence

from services.kvstore.core.base.effects import DeleteBlocks, Effect
from services.kvstore.core.base.events import NewBlock
from services.kvstore.core.tiers.arena_block import ArenaBlock
from services.kvstore.core.tiers.arena_tier import ArenaTier
from services.kvstore.core.tiers.host_blocks import HostBlocks
from services.kvstore.core.tiers.workers import Ticket
from services.kvstore.core.tiers.writes import write_of
from shared.blocks import BlockKey
from shared.eviction import Kinds
from shared.expiry import NS_PER_S
from shared.owners import OwnerKey


class Tiers:
    """Each holds what it has room for, whatever the other does.

    Attributes:
        arenas: by page size; may grow.
        blocks: that are on disk, and that are in an arena alone.
    """

    def __init__(self, arenas: Mapping[int, ArenaTier], blocks: HostBlocks) -> None:
        self.arenas = arenas
        self.blocks = blocks
        self._disk = blocks.disk

    @property
    def arena_bytes(self) -> int:
        """That all arenas together have room for."""
        return sum(arena.num_pages * arena.page_bytes for arena in self.arenas.values())

    @property
    def is_disk_larger(self) -> bool:
        """Whether the disk keeps blocks for longer than the arenas do."""
        return self._disk.capacity_bytes >= self.arena_bytes

    @property
    def has_copy(self) -> Callable[[BlockKey], bool]:
        """Whether an arena may evict parts of a block. Where the disk keeps blocks for less long
        than the arenas, it may not: the rest would be of no use once the disk has evicted its copy.
        """
        return self._disk.is_here if self.is_disk_larger else _has_none

    def is_kept_below(self, key: BlockKey) -> bool:
        """As `has_copy`, of one block."""
        return key in self._disk and self.is_disk_larger

    def unpin(self, ticket: Ticket, now_ns: int, effects: list[Effect]) -> None:
        """A ticket ended: its blocks were used until now."""
        arena = self.arenas[ticket.page_bytes]
        for block in ticket.blocks:
            block.used_at_ns = now_ns
        if ticket.hinted_by is not None:
            arena.hinted.give(*ticket.hinted_by, ticket.num_pages)
        arena.unpin(ticket.blocks, effects)

    def use(
        self, last: BlockKey, page_bytes: int, now_ns: int, effects: list[Effect]
    ) -> list[BlockKey]:
        """This block and those before it were used from a pool: in the lowest tier that has one,
        others go before it.

        Returns:
            The sequence, as far as it is here without a gap, its last block first.
        """
        arena = self.arenas[page_bytes]
        sequence: dict[BlockKey, None] = {}
        key: BlockKey | None = last
        while key is not None and key not in sequence:
            before = self.blocks.parent_of(key)
            block = None if key in self._disk else arena.blocks.get(key)
            if block is not None:
                before = block.parent
                arena.use(block, now_ns, effects)
            if before is not None:
                sequence[key] = None
            key = before
        return list(sequence)

    def set_kinds(
        self, keys: Sequence[BlockKey], page_bytes: int, kinds: Kinds, first: int = 0
    ) -> None:
        """These blocks of a sequence, in order, were used in one of these kinds.

        Args:
            first: how many blocks precede them.
        """
        arena = self.arenas[page_bytes]
        for depth, key in enumerate(keys, first):
            self._disk.set_kind(key, kinds.of(depth))
            if (block := arena.blocks.get(key)) is not None:
                arena.set_kind(block, kinds.of(depth))

    def surplus(self, now_ns: int, num_max: int) -> list[BlockKey]:
        """Blocks on disk to evict for age or size, at most so many now."""
        return self._disk.surplus(now_ns, self._is_busy, num_max)

    def to_make_room(self, num_bytes: int, now_ns: int) -> list[BlockKey]:
        """Blocks to evict for this much room on disk."""
        return self._disk.to_make_room(num_bytes, self._is_busy, now_ns)

    def take_expired(self, now_ns: int, num_max: int) -> list[BlockKey]:
        """Blocks that are in memory alone, to be forgotten for their age, at most so many now."""

        def is_kept(key: BlockKey) -> bool:
            return self._disk.is_continued(key) or self._is_busy(key)

        return self.blocks.arena_only.take_expired(now_ns, is_kept, num_max)

    def evict(self, key: BlockKey, now_ns: int, effects: list[Effect]) -> None:
        """A block leaves the disk. It stays in memory if an arena has it whole, unless it is
        expired and nothing there continues it.
        """
        block = self._find(key)
        is_continued = self.blocks.arena_only.is_continued(key)
        is_over = self._disk.is_expired(key, now_ns) and not is_continued
        if block is None or not block.is_whole or is_over:
            self.forget(key, effects)
            return
        effects.append(DeleteBlocks([(key, block.num_layers)]))
        self._to_memory(block)

    def lose_copy(self, key: BlockKey, now_ns: int, effects: list[Effect]) -> None:
        """What the disk has of a block is of no use, if it has any."""
        if key in self._disk:
            self.evict(key, now_ns, effects)

    def has(self, key: BlockKey) -> bool:
        """Whether the block can be found on this host."""
        return key in self._disk or self._find(key) is not None

    def owned(self, owner: OwnerKey) -> list[BlockKey]:
        """Blocks that this session made; some come twice."""
        in_arenas = [key for arena in self.arenas.values() for key in arena.owned(owner)]
        return self._disk.owned(owner) + self.blocks.arena_only.owned(owner) + in_arenas

    def forget(self, key: BlockKey, effects: list[Effect]) -> bool:
        """The block cannot be found any more; whether it could."""
        stored = self._disk.remove(key)
        blocks = [arena.blocks[key] for arena in self.arenas.values() if key in arena.blocks]
        if stored is not None:
            effects.append(DeleteBlocks([(key, stored.num_layers)]))
        for block in blocks:
            if block.is_writing:  # undone by the writer right after it is done
                effects.append(DeleteBlocks([(key, block.num_layers)]))
            self.arenas[block.page_bytes].forget(block, effects)
        return stored is not None or bool(blocks)

    def replace(self, new: NewBlock, effects: list[Effect]) -> None:
        """A block was taken over: the one that it replaces is of no use any more. One that is
        pinned, or that does not stand in its place, is left alone."""
        old = new.replaces
        if old is None or old == new.key:
            return
        found = [arena.blocks[old] for arena in self.arenas.values() if old in arena.blocks]
        stored = self._disk.get(old)
        places = [(block.parent, block.owner) for block in found]
        places += [(stored.parent, stored.owner)] if stored is not None else []
        is_pinned = any(block.num_pins for block in found)
        if not is_pinned and all(place == (new.parent, new.owner) for place in places):
            self.forget(old, effects)

    def lose_disk(self, effects: list[Effect]) -> None:
        """Nothing is on disk any more: blocks that the arena has whole stay there."""
        for arena in self.arenas.values():
            for block in list(arena.blocks.values()):
                if not block.is_whole:
                    arena.forget(block, effects)
                elif block.key in self._disk:
                    self._to_memory(block)
        self._disk.clear()

    def _to_memory(self, block: ArenaBlock) -> None:
        stored = self._disk.get(block.key)
        is_known = stored is not None and block.announced is not None
        expiry_s = stored.expiry_ns // NS_PER_S if stored is not None else 0
        self.blocks.to_memory(block.key, write_of(block, expiry_s) if is_known else None)
        self.arenas[block.page_bytes].on_copy_gone(block)

    def _find(self, key: BlockKey) -> ArenaBlock | None:
        found = (arena.blocks.get(key) for arena in self.arenas.values())
        return next((block for block in found if block is not None), None)

    def _is_busy(self, key: BlockKey) -> bool:
        block = self._find(key)
        return block is not None and not block.is_idle


def _has_none(_: BlockKey) -> bool:
    return False
