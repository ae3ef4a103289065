"""Blocks that the writer is to store, until it has stored or refused them."""

from array import array
from collections import Counter
from dataclasses import dataclass

from services.kvstore.core.base.arrived import Arrived
from services.kvstore.core.base.effects import DiskWrite
from services.kvstore.core.base.events import Commit, NewBlock
from services.kvstore.core.disk.stored_block import StoredBlock
from services.kvstore.core.tiers.arena_block import Announced, ArenaBlock
from services.kvstore.core.tiers.arena_tier import ArenaTier
from services.kvstore.core.tiers.source import Source
from shared.blocks import BlockKey
from shared.locations import OBJECTS
from shared.owners import NO_OWNER, OwnerKey


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

    def begin(self, block: ArenaBlock, expiry_s: int) -> DiskWrite:
        """A committed block is to be stored: what the writer is given."""
        block.is_writing = True
        return self._add(block, write_of(block, expiry_s))

    def begin_arrived(self, block: ArenaBlock, arrived: Arrived, disk: Source) -> DiskWrite:
        """A block that came from a peer is whole: what the writer is to store, so that the next
        turn finds it on this host.
        """
        is_saved = block.source.host_id == OBJECTS
        block.source, block.arrived = disk, None
        checksums = (arrived.checksums[layer] for layer in range(block.num_layers))
        block.announced = Announced(
            arrived.fingerprint, array("i", arrived.tokens), array("Q", checksums), is_saved
        )
        return self._add(block, write_of(block, None))

    def begin_again(self, block: ArenaBlock, write: DiskWrite) -> DiskWrite:
        """A block that the disk refused or evicted is to be stored, if it finds room now."""
        self._add(block, write)
        self._writing[block.block_id].is_retry = True
        return write

    def get(self, key: BlockKey) -> DiskWrite | None:
        """The block of this key that is being written: one look, by whichever thread."""
        writing = self._by_key.get(key)
        return writing.write if writing is not None and writing.block.is_alive else None

    def block_of(self, write: DiskWrite) -> ArenaBlock:
        """What is to be stored."""
        return self._writing[write.block_id].block

    def is_wanted(self, write: DiskWrite) -> bool:
        """Whether the block can still be found."""
        return self.block_of(write).is_alive

    def set_expiry(self, owner: OwnerKey, expiry_s: int) -> None:
        """What a commit says of its session: it holds for what is still to be stored, too."""
        if self._num_of[owner]:
            self._expiry_s[owner] = expiry_s

    def expiry_s_of(self, block_id: int) -> int | None:
        """How long a block that is stored now is kept; None: that is not known here."""
        write = self._writing[block_id].write
        if write.expiry_s is None or write.owner == NO_OWNER:
            return write.expiry_s
        return self._expiry_s.get(write.owner, write.expiry_s)

    def _add(self, block: ArenaBlock, write: DiskWrite) -> DiskWrite:
        self._writing[block.block_id] = self._by_key[block.key] = _Writing(block, write)
        self._num_of[write.owner] += 1
        return write

    def retry(self, block_id: int) -> DiskWrite | None:
        """The same write again; None if it was tried again already, or is not wanted."""
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


def write_of(block: ArenaBlock, expiry_s: int | None) -> DiskWrite:
    """What the writer is given of a block that was announced, and is whole."""
    announced = block.announced
    assert announced is not None, "its tokens are unknown"
    return DiskWrite(
        block.block_id, block.key, block.parent, announced.tokens, announced.fingerprint,
        block.page_bytes, list(block.pages), announced.checksums, block.owner, expiry_s,
    )  # fmt: skip


def new_block(
    arena: ArenaTier,
    block_id: int,
    new: NewBlock,
    event: Commit,
    disk: Source,
    now_ns: int,
    parent: ArenaBlock | StoredBlock | None,
) -> ArenaBlock:
    """A committed block as the arena's own, behind `parent` if that is here."""
    return ArenaBlock(
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
        announced=Announced(event.fingerprint, array("i", new.tokens), array("Q", new.checksums)),
    )
