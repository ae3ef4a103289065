"""All slabs of a folder: which slot a block gets, and when a slot that was freed may be given
again.

A reader finds a block in its snapshot of the index and reads the pages afterwards. So a slot that
was freed is not given to another block until all reads that began before that have ended.
"""

import logging
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from services.kvstore.tiers.disk.errors import DiskFull
from services.kvstore.tiers.disk.readers import Readers
from services.kvstore.tiers.disk.records import Place
from services.kvstore.tiers.disk.slab import SUFFIX, Slab, is_full, slab_shape, slot_bytes

log = logging.getLogger(__name__)

GROWTH_BYTES_MAX = 64 * 1024 * 1024
GROWTH_SHARE = 64  # a slab grows by this part of all that may be stored
WAIT_S = 1.0  # a read ends within a quarter of that

Shape: TypeAlias = tuple[int, int]  # layers, page bytes


def remove_slabs(folder: Path) -> None:
    """Nothing names what is in them any more."""
    for path in folder.glob(f"*{SUFFIX}"):
        if slab_shape(path) is not None:
            path.unlink(missing_ok=True)


def whole_slots(folder: Path) -> dict[Shape, int]:
    """How many slots each slab in a folder is long enough for.

    Raises:
        OSError: it cannot be read.
    """
    return {
        shape: path.stat().st_size // slot_bytes(*shape)
        for path in folder.glob(f"*{SUFFIX}")
        if (shape := slab_shape(path)) is not None
    }


class Slabs:
    """One slab a shape of blocks. The writer's thread alone takes, frees and writes.

    Args:
        bytes_max: that all slots together may occupy.
        used: slots that hold a block, by shape. A slab of which none does is removed.

    Raises, when made:
        OSError: a file cannot be opened.
    """

    def __init__(
        self,
        folder: Path,
        bytes_max: int,
        readers: Readers,
        used: Mapping[Shape, npt.NDArray[np.uint64]],
    ) -> None:
        self._folder = folder
        self._bytes_max = bytes_max
        self._growth_bytes = min(GROWTH_BYTES_MAX, bytes_max // GROWTH_SHARE)
        self._readers = readers
        self._slabs: dict[Shape, Slab] = {}
        self._freed: deque[tuple[int, Place]] = deque()  # epochs only grow
        try:
            for path in folder.glob(f"*{SUFFIX}"):
                if (shape := slab_shape(path)) is None:
                    continue
                if shape in used:
                    self._slabs[shape] = Slab(folder, *shape, used[shape])
                else:
                    path.unlink(missing_ok=True)
        except OSError:
            self.close()
            raise

    @property
    def num_bytes(self) -> int:
        """That all slots occupy, used or not."""
        return sum(slab.num_bytes for slab in self._slabs.values())

    def get(self, place: Place) -> Slab | None:
        """The slab in which that is; in any thread."""
        return self._slabs.get((place.num_layers, place.page_bytes))

    @property
    def num_whole(self) -> dict[Shape, int]:
        """Slots for which each slab is long enough."""
        return {shape: slab.num_whole for shape, slab in self._slabs.items()}

    def take(self, num_layers: int, page_bytes: int) -> Place:
        """A slot for a block of this shape.

        Raises:
            DiskFull: there is none.
            OSError: its slab cannot be made.
        """
        slab = self._slabs.get((num_layers, page_bytes))
        if slab is None:
            slab = Slab(self._folder, num_layers, page_bytes)
            self._slabs[num_layers, page_bytes] = slab
        slot = self._find(slab)
        if slot is None and self._freed:
            self._readers.wait_for(self._freed[0][0], WAIT_S)
            slot = self._find(slab)
        if slot is None:
            raise DiskFull(f"no room for {slab.slot_bytes:,} bytes more")
        return Place(num_layers, page_bytes, slot)

    def give_back(self, places: Iterable[Place]) -> None:
        """Slots that were taken and are in no record."""
        for place in places:
            if (slab := self.get(place)) is not None:
                slab.give(place.slot)

    def free(self, places: Iterable[Place]) -> None:
        """Slots that no reader finds that begins from now on."""
        if places := list(places):
            epoch = self._readers.next_epoch()
            self._freed += [(epoch, place) for place in places]

    def sync(self) -> None:
        """Make durable what was written.

        Raises:
            OSError: it may not be.
        """
        for slab in self._slabs.values():
            slab.sync()

    def close(self) -> None:
        """Close the files. No reader may be open."""
        for slab in self._slabs.values():
            slab.close()
        self._slabs.clear()

    def _find(self, slab: Slab) -> int | None:
        self._free_unread()
        if (slot := slab.take()) is not None:
            return slot
        self._make_room(slab)
        return slab.take()

    def _free_unread(self) -> None:
        """Those whose last possible reader has ended."""
        if not self._freed:
            return
        oldest = self._readers.oldest_epoch()
        while self._freed and self._freed[0][0] <= oldest:
            self.give_back([self._freed.popleft()[1]])

    def _make_room(self, slab: Slab) -> None:
        """At least one more free slot, if there can be."""
        lacking = self.num_bytes + slab.slot_bytes - self._bytes_max
        if lacking > 0 and not self._shrink_others(slab, lacking):
            return
        num_slots = max(min(self._growth_bytes, self._bytes_max - self.num_bytes), 0)
        try:
            slab.grow(max(num_slots // slab.slot_bytes, 1))
        except OSError as error:
            if not is_full(error):
                raise
            log.info("the file system is full", extra={"bytes_taken": self.num_bytes})
            if self._shrink_others(slab, slab.slot_bytes):
                self._grow_by_one(slab)

    def _grow_by_one(self, slab: Slab) -> None:
        try:
            slab.grow(1)
        except OSError as error:
            if not is_full(error):
                raise

    def _shrink_others(self, slab: Slab, num_bytes: int) -> bool:
        """Have other slabs give back so much; whether they could."""
        for other in self._slabs.values():
            if other is not slab and num_bytes > 0:
                before = other.num_bytes
                try:
                    other.shrink(num_bytes)
                except OSError as error:
                    log.warning("room is not given back", extra={"error": str(error)})
                num_bytes -= before - other.num_bytes
        return num_bytes <= 0
