"""A slab: one file of equal slots, each with room for every layer of a block of one shape.

The file grows by many slots at a time, which are allocated then: a full disk is an error at that
moment, and no write into a slot that was given out fails for want of room. A slot is whole pages of
the system, so that the room of an unused one can be given back from the middle of the file.
"""

import ctypes
import errno
import mmap
import os
import re
import threading
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from shared.arena import Bytes

SUFFIX = ".slab"
_SYSTEM_PAGE_BYTES = 4096
_NAME = re.compile(rf"([1-9][0-9]{{0,4}})x([1-9][0-9]{{0,9}})\{SUFFIX}")  # layers, page bytes
_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # of fallocate(2)
_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT})
_WOULD_WAIT_ERRNOS = frozenset({errno.EAGAIN, errno.EOPNOTSUPP})
_NONE = np.empty(0, np.uint64)
_LIBC = ctypes.CDLL(None, use_errno=True)


@cache  # so that millions of blocks share a few numbers
def slot_bytes(num_layers: int, page_bytes: int) -> int:
    """What the pages of a block occupy.

    >>> slot_bytes(3, 5000)
    16384
    """
    return -(-num_layers * page_bytes // _SYSTEM_PAGE_BYTES) * _SYSTEM_PAGE_BYTES


def slab_shape(path: Path) -> tuple[int, int] | None:
    """Layers and page bytes of the blocks in a slab, by its name; None: it is no slab.

    >>> slab_shape(Path("kv/32x262144.slab"))
    (32, 262144)
    """
    found = _NAME.fullmatch(path.name)
    return None if found is None else (int(found[1]), int(found[2]))


def is_full(error: OSError) -> bool:
    """Whether there is no room."""
    return error.errno in _FULL_ERRNOS


class Slab:
    """One thread takes and gives slots and writes; any number read.

    Args:
        folder: where its file is, or will be.
        used: slots that hold a block: uint64 [num_used].

    Attributes:
        num_whole: slots for which the file is long enough, if it was not cut since.
        num_bytes: that its slots occupy, used or not.

    Raises, when made:
        OSError: the file can be neither opened nor made.
    """

    def __init__(
        self,
        folder: Path,
        num_layers: int,
        page_bytes: int,
        used: npt.NDArray[np.uint64] = _NONE,
    ) -> None:
        self.page_bytes = page_bytes
        self.slot_bytes = slot_bytes(num_layers, page_bytes)
        self._path = folder / f"{num_layers}x{page_bytes}{SUFFIX}"
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = os.open(self._path, flags, 0o600)
        os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_RANDOM)  # what is read is asked for
        num_whole = self.num_whole = os.fstat(self._file).st_size // self.slot_bytes
        # What a file that was cut short has lost is not given out while a record names it.
        self._num_slots = max(num_whole, int(used.max(initial=0)) + 1 if len(used) else 0)
        is_free = np.ones(num_whole, np.bool_)
        is_free[used[used < num_whole]] = False
        self._free: list[int] = np.flatnonzero(is_free)[::-1].tolist()
        self._holes: list[int] = []
        self.num_bytes = num_whole * self.slot_bytes
        self._is_dirty = False
        self._map: mmap.mmap | None = None
        self._map_lock = threading.Lock()

    @property
    def num_free(self) -> int:
        """Slots that occupy room and hold nothing."""
        return len(self._free)

    def take(self) -> int | None:
        """A slot that has room already."""
        return self._free.pop() if self._free else None

    def give(self, slot: int) -> None:
        """What is in this slot is not needed."""
        self._free.append(slot)

    def grow(self, num_slots: int) -> None:
        """Allocate room for so many more, or for one where that is given back room.

        Raises:
            OSError: there is none.
        """
        if self._holes:
            slot = self._holes[-1]
            os.posix_fallocate(self._file, slot * self.slot_bytes, self.slot_bytes)
            self._free.append(self._holes.pop())
            self.num_bytes += self.slot_bytes
            return
        start, num_bytes = self._num_slots * self.slot_bytes, num_slots * self.slot_bytes
        os.posix_fallocate(self._file, start, num_bytes)
        self._free += range(self._num_slots + num_slots - 1, self._num_slots - 1, -1)
        self._num_slots += num_slots
        self.num_whole = self._num_slots
        self.num_bytes += num_bytes

    def shrink(self, num_bytes: int) -> None:
        """Give this much back to the file system, as far as there are free slots.

        Raises:
            OSError: it cannot.
        """
        while num_bytes > 0 and self._free:
            slot = self._free[-1]
            start, size = ctypes.c_int64(slot * self.slot_bytes), ctypes.c_int64(self.slot_bytes)
            if _LIBC.fallocate(self._file, _PUNCH_HOLE | _KEEP_SIZE, start, size):
                raise OSError(ctypes.get_errno(), f"{self._path}: no room can be given back")
            self._holes.append(self._free.pop())
            self.num_bytes -= self.slot_bytes
            num_bytes -= self.slot_bytes

    def write(self, slot: int, layer: int, page: Bytes) -> None:
        """Into a slot that was taken and is not read.

        Args:
            page: uint8 [page_bytes].

        Raises:
            OSError: it is not written.
        """
        self._is_dirty = True
        at, left = self._at(slot, layer), page.data
        while left:
            num_bytes = os.pwrite(self._file, left, at)
            at, left = at + num_bytes, left[num_bytes:]

    def expect(self, slot: int, layer: int) -> None:
        """Have the system begin to read this page."""
        at = self._at(slot, layer)
        os.posix_fadvise(self._file, at, self.page_bytes, os.POSIX_FADV_WILLNEED)

    def read_cached(self, slot: int, layer: int, out: Bytes) -> bool:
        """Whether the system has the page in memory; then it is in `out` (uint8 [page_bytes]).

        Raises:
            OSError: it was not read.
        """
        try:
            num_bytes = os.preadv(self._file, [out.data], self._at(slot, layer), os.RWF_NOWAIT)
        except OSError as error:
            if error.errno in _WOULD_WAIT_ERRNOS:
                return False
            raise
        return num_bytes == self.page_bytes

    def read(self, slot: int, layer: int, out: Bytes) -> bool:
        """Whether the file is long enough; then `out` (uint8 [page_bytes]) is the page.

        Raises:
            OSError: it was not read.
        """
        at, left = self._at(slot, layer), out.data
        while left:
            num_bytes = os.preadv(self._file, [left], at)
            if not num_bytes:
                return False
            at, left = at + num_bytes, left[num_bytes:]
        return True

    def view(self, slot: int, layer: int) -> memoryview | None:
        """The page in the file's map, not even touched; None where the file is too short."""
        at = self._at(slot, layer)
        if (mapped := self._map) is None or len(mapped) < at + self.page_bytes:
            mapped = self._map_anew(at + self.page_bytes)
        return None if mapped is None else memoryview(mapped)[at : at + self.page_bytes]

    def sync(self) -> None:
        """Make durable what was written.

        Raises:
            OSError: it may not be.
        """
        if self._is_dirty:
            self._is_dirty = False
            os.fdatasync(self._file)

    def close(self) -> None:
        """Views that were given out keep their mapping until they are gone."""
        os.close(self._file)
        self._map = None

    def _map_anew(self, num_bytes: int) -> mmap.mmap | None:
        with self._map_lock:
            if self._map is not None and len(self._map) >= num_bytes:
                return self._map
            if os.fstat(self._file).st_size < num_bytes:
                return None
            self._map = mmap.mmap(self._file, 0, prot=mmap.PROT_READ)
            return self._map

    def _at(self, slot: int, layer: int) -> int:
        return slot * self.slot_bytes + layer * self.page_bytes
