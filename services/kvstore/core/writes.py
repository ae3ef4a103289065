"""Blocks of which the arena holds the only copy, until the writer has stored or given them up."""

from collections import Counter
from dataclasses import dataclass

from services.kvstore.core.arena_block import ArenaBlock
from services.kvstore.core.arena_tier import ArenaTier
from services.kvstore.core.arrived import Arrived
from services.kvstore.core.effects import DiskWrite
from services.kvstore.core.events import NewBlock
from services.kvstore.core.source import Source
from shared.blocks import BlockKey
from shared.locations import OBJECTS
from shared.owners import NOBODY, OwnerKey


@dataclass(slots=True)
class _Writing:
    block: ArenaBlock
    write: DiskWrite
    is_retry: bool = False


class Writes:
    """What is with the writer, by block id."""

    def __init__(self) -> None:
        self._writing: dict[int, _Writing] = {}
        self._by_key: dict[BlockKey, _Writing] = {}  # the latest of each
        self._num_of: Counter[OwnerKey] = Counter()
        self._expiry_s: dict[OwnerKey, int] = {}  # what was said last, of those with writes

    def __len__(self) -> int:
        return len(self._writing)

    def begin(
        self,
        arena: ArenaTier,
        block_id: int,
        new: NewBlock,
        fingerprint: str,
        disk: Source,
        now_ns: int,
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
            source=disk,
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
            expiry_s=new.expiry_s,
        )
        self._add(block, write)
        return block, write

    def begin_arrived(self, block: ArenaBlock, arrived: Arrived, disk: Source) -> DiskWrite:
        """A block that came from a peer is whole: what the writer is to store, so that the next
        turn finds it on this host.
        """
        block.is_saved = block.source.host_id == OBJECTS
        block.source, block.arrived = disk, None
        write = DiskWrite(
            block_id=block.block_id,
            key=block.key,
            parent=block.parent,
            tokens=arrived.tokens,
            fingerprint=arrived.fingerprint,
            page_bytes=block.page_bytes,
            pages=list(block.pages),
            checksums=[arrived.checksums[layer] for layer in range(block.num_layers)],
            owner=block.owner,
            expiry_s=None,
        )
        self._add(block, write)
        return write

    def get(self, key: BlockKey) -> DiskWrite | None:
        """The block of this key that is being written: one look, by whichever thread."""
        writing = self._by_key.get(key)
        return writing.write if writing is not None and writing.block.is_alive else None

    def is_wanted(self, write: DiskWrite) -> bool:
        """Whether anybody could still find the block."""
        return self._writing[write.block_id].block.is_alive

    def set_expiry(self, owner: OwnerKey, expiry_s: int) -> None:
        """What a commit says of its session: it holds for what is still to be stored, too."""
        if self._num_of[owner]:
            self._expiry_s[owner] = expiry_s

    def expiry_s_of(self, block_id: int) -> int | None:
        """How long a block that is stored now is kept; None: nobody here has said."""
        write = self._writing[block_id].write
        if write.expiry_s is None or write.owner == NOBODY:
            return write.expiry_s
        return self._expiry_s.get(write.owner, write.expiry_s)

    def _add(self, block: ArenaBlock, write: DiskWrite) -> None:
        self._writing[block.block_id] = self._by_key[block.key] = _Writing(block, write)
        self._num_of[write.owner] += 1

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
        if self._by_key.get(writing.block.key) is writing:
            del self._by_key[writing.block.key]
        owner = writing.write.owner
        self._num_of[owner] -= 1
        if not self._num_of[owner]:
            del self._num_of[owner]
            self._expiry_s.pop(owner, None)
        return writing.block, writing.write
