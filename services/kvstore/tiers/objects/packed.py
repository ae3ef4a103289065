"""A run whose values are packed: an index, and behind it the values, each by itself, so that ranges
of it can be read as of any other run.

What is damaged costs what it is: a value costs itself, the index its run. Every value is checked
after it is unpacked, as one that was never packed is.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

import numpy as np
import xxhash

from services.kvstore.core import Run
from services.kvstore.tiers.packing import NOTES_BYTES, best_width, offsets_of, pack
from services.kvstore.tiers.values import HEADER_BYTES, BadValue
from shared.arena import Bytes

_MAGIC = b"SYMKVPK1"
_CHECKSUM_BYTES = 8
_SIZE = np.dtype("<u4")
INDEXES_MAX = 256  # that are remembered: of 64 MB of pages each


def index_bytes(run: Run) -> int:
    """Size of the index: magic, a size for each value, a checksum."""
    return len(_MAGIC) + _SIZE.itemsize * run.num_pages + _CHECKSUM_BYTES


def pack_run(run: Run, values: Bytes) -> bytes:
    """The object.

    Args:
        values: uint8 [num_pages, HEADER_BYTES + page_bytes], in the order of `Run.place`.
    """
    width = best_width(values[0])
    packed = [pack(value, width) for value in values]
    head = _MAGIC + np.array([len(each) for each in packed], _SIZE).tobytes()
    checksum = xxhash.xxh3_64_intdigest(head).to_bytes(_CHECKSUM_BYTES, "little")
    return b"".join([head, checksum, *packed])


def read_index(run: Run, raw: memoryview) -> list[int]:
    """Where each value begins in the object, and where the last one ends.

    Raises:
        BadValue: it is no index of this run.
    """
    end = len(raw) - _CHECKSUM_BYTES
    if len(raw) != index_bytes(run) or raw[: len(_MAGIC)] != _MAGIC:
        raise BadValue("no index of this run")
    if xxhash.xxh3_64_intdigest(raw[:end]).to_bytes(_CHECKSUM_BYTES, "little") != raw[end:]:
        raise BadValue("a damaged index")
    sizes = np.frombuffer(raw[len(_MAGIC) : end], _SIZE)
    if not sizes.min():
        raise BadValue("a value of nothing")
    if sizes.max() > HEADER_BYTES + run.page_bytes + NOTES_BYTES:
        raise BadValue("a value is larger than it can be")
    return [len(raw) + offset for offset in offsets_of(sizes.tolist())]


class Indexes:
    """The last ones that were read, for all threads.

    Args:
        lock: held briefly while an index is looked up or added.
    """

    def __init__(self, lock: AbstractContextManager[object]) -> None:
        self._lock = lock
        self._known: OrderedDict[Run, list[int]] = OrderedDict()

    def get(self, run: Run, read: Callable[[int, int], memoryview]) -> list[int]:
        """See `read_index`.

        Args:
            read: gets so many bytes of the object, from an offset on; what it raises is raised.

        Raises:
            BadValue: the object has no index of this run.
        """
        with self._lock:
            if (known := self._known.get(run)) is not None:
                self._known.move_to_end(run)
                return known
        found = read_index(run, read(0, index_bytes(run)))
        with self._lock:
            self._known[run] = found
            while len(self._known) > INDEXES_MAX:
                self._known.popitem(last=False)
        return found

    def forget(self, runs: Iterable[Run]) -> None:
        """These are gone, or not what they were."""
        with self._lock:
            for run in runs:
                self._known.pop(run, None)
