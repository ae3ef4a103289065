"""Writing blocks, in one transaction of the index."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from services.kvstore.core import DiskWrite
from services.kvstore.tiers.disk.errors import CorruptPage
from services.kvstore.tiers.disk.records import (
    BadRecord,
    BlockRecord,
    Place,
    pack_record,
    read_place,
)
from services.kvstore.tiers.disk.scan import pack_stamp
from services.kvstore.tiers.disk.slabs import Slabs
from services.kvstore.tiers.values import fingerprint_digest
from shared.arena import Bytes, checksum
from shared.blocks import BlockKey


@dataclass(frozen=True, slots=True)
class SlotChanges:
    """What a transaction means for slots.

    Attributes:
        taken: that blocks were written into: free, if it is aborted.
        freed: whose blocks are gone, if it is not.
    """

    taken: list[Place] = field(default_factory=list)
    freed: list[Place] = field(default_factory=list)


class Writer:
    """One write transaction.

    Args:
        changes: collects slots that were taken and freed.
    """

    def __init__(
        self,
        transaction: Any,
        blocks: Any,
        uses: Any,
        slabs: Slabs,
        changes: SlotChanges,
        now_s: int,
    ) -> None:
        self._transaction = transaction
        self._blocks = blocks
        self._uses = uses
        self._slabs = slabs
        self._changes = changes
        self._now_s = now_s

    def put(self, write: DiskWrite, pages: Bytes) -> None:
        """Store a block: first its pages, straight from the arena, then what leads to them.

        Args:
            pages: uint8 [num_pages, page_bytes], the arena that `write.pages` point into.

        Raises:
            CorruptPage: a page is not what its checksum says; abort the transaction.
            lmdb.Error, OSError, DiskFull: see `Disk.write`.
        """
        place = self._slabs.take(len(write.pages), write.page_bytes)
        self._changes.taken.append(place)
        slab = self._slabs.get(place)
        assert slab is not None, "the slot is in it"
        for layer, (page, announced) in enumerate(zip(write.pages, write.checksums, strict=True)):
            if checksum(pages[page].data) != announced:
                raise CorruptPage(f"layer {layer} of block {write.key.hex()}")
            slab.write(place.slot, layer, pages[page])
        self._forget(write.key)
        record = BlockRecord(
            write.key, write.parent, fingerprint_digest(write.fingerprint), write.page_bytes,
            self._now_s, place.slot, write.tokens, write.checksums, write.owner,
        )  # fmt: skip
        self._transaction.put(write.key, pack_record(record), db=self._blocks)
        if write.expiry_s:
            self.touch([write.key], write.expiry_s)

    def delete(self, key: BlockKey) -> None:
        """Remove a block, if it is there."""
        self._forget(key)
        self._transaction.delete(key, db=self._blocks)
        self._transaction.delete(key, db=self._uses)

    def touch(self, keys: Sequence[BlockKey], expiry_s: int = 0) -> None:
        """Note that these blocks were used now, and for how long they outlive that; 0: as the disk
        has it.
        """
        stamp = pack_stamp(self._now_s, expiry_s)
        for key in keys:
            self._transaction.put(key, stamp, db=self._uses)

    def _forget(self, key: BlockKey) -> None:
        """What stands there now leads to no slot any more."""
        raw = self._transaction.get(key, db=self._blocks)
        if raw is None:
            return
        try:
            self._changes.freed.append(read_place(raw, key))
        except BadRecord:
            return  # its slot is found free at the next start
