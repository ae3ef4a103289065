"""Blocks of which the arena holds the only copy, until the writer has stored or given them up."""

from dataclasses import dataclass

from services.kvstore.core.arena_block import ArenaBlock
from services.kvstore.core.arena_tier import ArenaTier
from services.kvstore.core.effects import DiskWrite
from services.kvstore.core.events import NewBlock


@dataclass(slots=True)
class _Writing:
    block: ArenaBlock
    write: DiskWrite
    is_retry: bool = False


class Writes:
    """What is with the writer, by block id."""

    def __init__(self) -> None:
        self._writing: dict[int, _Writing] = {}

    def __len__(self) -> int:
        return len(self._writing)

    def begin(
        self, arena: ArenaTier, block_id: int, new: NewBlock, fingerprint: str, now_ns: int
    ) -> tuple[ArenaBlock, DiskWrite]:
        """A committed block as the arena's own, and what the writer is to store."""
        parent = arena.blocks.get(new.parent)
        block = ArenaBlock(
            block_id=block_id,
            key=new.key,
            page_bytes=arena.page_bytes,
            pages=list(new.pages),
            generations=arena.generations(new.pages),
            num_present=len(new.pages),
            depth=parent.depth + 1 if parent is not None else 0,
            used_at_ns=now_ns,
            owner=new.owner,
            parent=new.parent,
            is_writing=True,
        )
        write = DiskWrite(
            block_id=block_id,
            key=new.key,
            parent=new.parent,
            tokens=new.tokens,
            fingerprint=fingerprint,
            page_bytes=arena.page_bytes,
            pages=list(new.pages),
            checksums=new.checksums,
            owner=new.owner,
        )
        self._writing[block_id] = _Writing(block, write)
        return block, write

    def retry(self, block_id: int) -> DiskWrite | None:
        """The same write once more; None if it was tried again already, or nobody wants it."""
        writing = self._writing[block_id]
        if writing.is_retry or not writing.block.is_alive:
            return None
        writing.is_retry = True
        return writing.write

    def end(self, block_id: int) -> tuple[ArenaBlock, DiskWrite]:
        """The writer is done with the block: its pages are like any other's."""
        writing = self._writing.pop(block_id)
        writing.block.is_writing = False
        return writing.block, writing.write
