"""Arena and disk together: what is in use, and how a block leaves both."""

from collections.abc import Mapping, Sequence

from services.kvstore.core.arena_tier import ArenaTier
from services.kvstore.core.disk_tier import DiskTier
from services.kvstore.core.effects import DeleteBlocks, Effect
from services.kvstore.core.events import NewBlock
from services.kvstore.core.workers import Ticket
from shared.blocks import BlockKey
from shared.owners import OwnerKey


class Tiers:
    """Args:
    arenas: by page size; may grow.
    """

    def __init__(self, arenas: Mapping[int, ArenaTier], disk: DiskTier) -> None:
        self._arenas = arenas
        self._disk = disk

    def unpin(self, ticket: Ticket, now_ns: int, effects: list[Effect]) -> None:
        """A ticket ended: its blocks were used until now."""
        arena = self._arenas[ticket.page_bytes]
        for block in ticket.blocks:
            block.used_at_ns = now_ns
        if ticket.hinted_by is not None:
            arena.hinted.give(ticket.hinted_by, ticket.num_pages)
        arena.unpin(ticket.blocks, effects)

    def use(
        self, keys: Sequence[BlockKey], page_bytes: int, now_ns: int, effects: list[Effect]
    ) -> list[BlockKey]:
        """These blocks and those before each were used from a pool: in the lowest tier that has
        one, others go before it.

        Returns:
            Those that are on disk, the one to give up first first.
        """
        arena = self._arenas[page_bytes]
        stored: list[BlockKey] = []
        seen: set[BlockKey] = set()
        for last in keys:
            key = last
            while key not in seen:
                seen.add(key)
                if (before := self._disk.parent_of(key)) is not None:
                    stored.append(key)
                    key = before
                elif (block := arena.blocks.get(key)) is not None:
                    arena.use(block, now_ns, effects)
                    key = block.parent
                else:
                    break
        return stored

    def surplus(self, now_ns: int, num_max: int) -> list[BlockKey]:
        """Blocks on disk to give up for age or size, at most so many now."""
        return self._disk.surplus(now_ns, self._is_busy, num_max)

    def oldest(self, num_bytes: int) -> list[BlockKey]:
        """Blocks to give up for this much room on disk."""
        return self._disk.oldest(num_bytes, self._is_busy)

    def owned(self, owner: OwnerKey) -> list[BlockKey]:
        """Blocks that this session made; one in both tiers comes twice."""
        in_arenas = [key for arena in self._arenas.values() for key in arena.owned(owner)]
        return self._disk.owned(owner) + in_arenas

    def forget(self, key: BlockKey, effects: list[Effect]) -> bool:
        """Nobody finds this block any more; whether anybody could."""
        stored = self._disk.remove(key)
        blocks = [arena.blocks[key] for arena in self._arenas.values() if key in arena.blocks]
        if stored is not None:
            effects.append(DeleteBlocks([(key, stored.num_layers)]))
        for block in blocks:
            if block.is_writing:  # undone by the writer right after it is done
                effects.append(DeleteBlocks([(key, block.num_layers)]))
            self._arenas[block.page_bytes].forget(block, effects)
        return stored is not None or bool(blocks)

    def replace(self, new: NewBlock, effects: list[Effect]) -> None:
        """A block was taken over: the one that it replaces is of no use any more. One that somebody
        has pinned, or that does not stand in its place, is left alone."""
        old = new.replaces
        if old is None or old == new.key:
            return
        found = [arena.blocks[old] for arena in self._arenas.values() if old in arena.blocks]
        stored = self._disk.get(old)
        places = [(block.parent, block.owner) for block in found]
        places += [(stored.parent, stored.owner)] if stored is not None else []
        is_pinned = any(block.num_pins for block in found)
        if not is_pinned and all(place == (new.parent, new.owner) for place in places):
            self.forget(old, effects)

    def lose_disk(self, effects: list[Effect]) -> None:
        """Nothing is on disk any more: blocks that the arena has whole stay there."""
        self._disk.clear()
        for arena in self._arenas.values():
            for block in list(arena.blocks.values()):
                if not block.is_whole:
                    arena.forget(block, effects)

    def _is_busy(self, key: BlockKey) -> bool:
        return any(
            (block := arena.blocks.get(key)) is not None and not block.is_idle
            for arena in self._arenas.values()
        )
