"""Reading blocks, from one snapshot of the index."""

from dataclasses import dataclass
from typing import Any

from services.kvstore.core import LoadOutcome
from services.kvstore.tiers.disk.records import (
    BadRecord,
    BlockRecord,
    Place,
    read_checksum,
    read_place,
    unpack_record,
)
from services.kvstore.tiers.disk.slab import Slab
from services.kvstore.tiers.disk.slabs import Slabs
from shared.arena import Bytes, checksum
from shared.blocks import BlockKey


@dataclass(frozen=True, slots=True)
class StoredPage:
    """A page as it is stored, and the block it is of.

    Attributes:
        page: in the slab's map: not checked, not even touched, and not to be looked at when the
            snapshot has ended.
    """

    record: BlockRecord
    page: memoryview


class Reader:
    """One snapshot."""

    def __init__(self, transaction: Any, slabs: Slabs) -> None:
        self._transaction = transaction
        self._slabs = slabs

    def copy(
        self, key: BlockKey, layer: int, out: Bytes, *, may_wait: bool = True
    ) -> LoadOutcome | None:
        """Read a block's page of this layer into `out` (uint8 [page_bytes]) and check it there
        against the checksum it was stored with.

        Args:
            may_wait: for the device. If not, a page that the system has not in memory gives None,
                and the system begins to read it: a device that is given several so has them all at
                a time.

        Raises:
            OSError: it was not read.
        """
        found = self._find(key, layer)
        if isinstance(found, LoadOutcome):
            return found
        slab, place, announced = found
        if place.page_bytes != out.size:
            return LoadOutcome.CORRUPT
        if not may_wait:
            if not slab.read_cached(place.slot, layer, out):
                slab.expect(place.slot, layer)
                return None
        elif not slab.read(place.slot, layer, out):
            return LoadOutcome.CORRUPT
        return LoadOutcome.READY if checksum(out.data) == announced else LoadOutcome.CORRUPT

    def page(self, key: BlockKey, layer: int) -> StoredPage | None:
        """A block's page of this layer, which the system begins to read; None if there is none."""
        raw = self._transaction.get(key)
        if raw is None:
            return None
        try:
            record = unpack_record(raw, key)
        except BadRecord:
            return None
        place = Place(record.num_layers, record.page_bytes, record.slot)
        slab = self._slabs.get(place)
        if layer >= place.num_layers or slab is None:
            return None
        view = slab.view(place.slot, layer)
        if view is None:
            return None
        slab.expect(place.slot, layer)
        return StoredPage(record, view)

    def _find(self, key: BlockKey, layer: int) -> tuple[Slab, Place, int] | LoadOutcome:
        """Where the page is, and its checksum."""
        raw = self._transaction.get(key)
        if raw is None:
            return LoadOutcome.MISSING
        try:
            place = read_place(raw, key)
        except BadRecord:
            return LoadOutcome.CORRUPT
        if layer >= place.num_layers:
            return LoadOutcome.MISSING
        slab = self._slabs.get(place)
        if slab is None:
            return LoadOutcome.CORRUPT
        return slab, place, read_checksum(raw, place, layer)
