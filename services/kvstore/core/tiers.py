"""Arena and disk together: what is in use, and how a block leaves both."""

from collections.abc import Mapping

from services.kvstore.core.arena_tier import ArenaTier
from services.kvstore.core.disk_tier import DiskTier
from services.kvstore.core.effects import DeleteBlocks, Effect, IndexRemove
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
            arena.unpin(block, effects)

    def surplus(self, used_before_ns: int) -> list[BlockKey]:
        """Blocks on disk to give up for age or size."""
        return self._disk.surplus(used_before_ns, self._is_busy)

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
            effects += [DeleteBlocks([(key, stored.num_layers)]), IndexRemove([key])]
        for block in blocks:
            if block.is_writing:  # undone by the writer right after it is done
                effects.append(DeleteBlocks([(key, block.num_layers)]))
            self._arenas[block.page_bytes].forget(block, effects)
        return stored is not None or bool(blocks)

    def lose_disk(self, effects: list[Effect]) -> None:
        """Nothing is on disk any more: blocks that the arena has whole stay there."""
        if keys := self._disk.clear():
            effects.append(IndexRemove(keys))
        for arena in self._arenas.values():
            for block in list(arena.blocks.values()):
                if not block.is_whole:
                    arena.forget(block, effects)

    def _is_busy(self, key: BlockKey) -> bool:
        return any(
            (block := arena.blocks.get(key)) is not None and not block.is_idle
            for arena in self._arenas.values()
        )
