"""What is in an index: every block, or only which slots are taken.

A start waits for this, with a million blocks and more. So they are read in columns, some thousand
at a time; only what asks LMDB or makes a checksum is done record by record.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, compress, islice, pairwise, repeat, starmap
from operator import lt
from typing import Any, TypeAlias

import lmdb
import numpy as np
import numpy.typing as npt

from services.kvstore.tiers.disk.records import read_heads
from services.kvstore.tiers.disk.slabs import Shape
from shared.blocks import KEY_BYTES, NO_PARENT, BlockKey
from shared.expiry import is_rounded_expiry_s
from shared.owners import NO_OWNER, OwnerKey

Slots: TypeAlias = dict[Shape, npt.NDArray[np.uint64]]

_USED = struct.Struct("<Q")
_USED_AND_EXPIRY = struct.Struct("<QI")
_STAMP = np.dtype([("used_s", "<u8"), ("expiry_s", "<u4")])
_STAMP_SIZES = (_USED.size, _USED_AND_EXPIRY.size)
_CHUNK = 8192
# An entry a block. What is bytes may end in zeros, which numpy leaves out where it shows one.
FOUND = np.dtype(
    [
        ("key", "S16"), ("parent", "S16"), ("owner", "S16"), ("num_layers", "<u2"),
        ("page_bytes", "<u4"), ("slot", "<u8"), ("used_s", "<u8"), ("expiry_s", "<u4"),
    ]
)  # fmt: skip
Found: TypeAlias = npt.NDArray[np.void]  # [num_blocks] of `FOUND`

assert _STAMP.itemsize == _USED_AND_EXPIRY.size


@dataclass(frozen=True, slots=True)
class FoundBlock:
    """A block found by a scan. It was last used at `used_s`, wall clock, seconds, and outlives
    that for `expiry_s`; 0: as the disk has it.
    """

    key: BlockKey
    num_layers: int
    page_bytes: int
    used_s: int
    owner: OwnerKey = NO_OWNER
    parent: BlockKey = NO_PARENT
    expiry_s: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Scan:
    """What a scan found, and how many records it deleted."""

    found: Found = field(default_factory=lambda: np.empty(0, FOUND))
    num_deleted: int = 0

    @property
    def blocks(self) -> list[FoundBlock]:
        """One by one, which takes long where there are many."""
        keys, parents, owners = (
            [raw for (raw,) in struct.iter_unpack("16s", self.found[name].tobytes())]
            for name in ("key", "parent", "owner")
        )
        numbers = (self.found[name].tolist() for name in ("num_layers", "page_bytes", "used_s"))
        return list(
            map(FoundBlock, keys, *numbers, owners, parents, self.found["expiry_s"].tolist())
        )

    @property
    def slots(self) -> Slots:
        """Those in which the blocks are."""
        return _by_shape(self.found)


def find_blocks(
    transaction: Any, blocks: Any, uses: Any, num_whole: Mapping[Shape, int]
) -> tuple[Found, list[bytes]]:
    """Every block, and the keys of records that lead to none: they are damaged, or their slab is
    gone or cut short, or another block is in their slot.

    Args:
        num_whole: slots for which each slab is long enough.

    Raises:
        lmdb.Error: the database is damaged.
    """
    parts: list[Found] = []
    wrong: list[bytes] = []
    for keys, raws in _walk(transaction, blocks):
        heads, is_right = read_heads(keys, raws)
        wrong += [keys[at] for at in np.flatnonzero(~is_right)]
        part = np.zeros(np.count_nonzero(is_right), FOUND)
        for name in ("key", "parent", "owner", "num_layers", "page_bytes", "slot"):
            part[name] = heads[name][is_right]
        part["used_s"] = np.maximum(heads["created_s"][is_right], 0)
        parts.append(part)
    found = np.concatenate([np.empty(0, FOUND), *parts])
    is_there = _have_slots(found, num_whole)
    wrong += [raw for (raw,) in struct.iter_unpack("16s", found["key"][~is_there].tobytes())]
    found = found[is_there]
    _stamp(found, transaction, uses)
    return found, wrong


def find_slots(transaction: Any, blocks: Any) -> Slots:
    """Slots that hold a block, by shape. What cannot be read is left out."""
    parts: list[Found] = []
    entries = transaction.cursor(db=blocks).iternext()
    while some := list(islice(entries, _CHUNK)):
        keys, raws = zip(*some, strict=True)
        heads, is_right = read_heads(keys, raws)
        part = np.zeros(np.count_nonzero(is_right), FOUND)
        for name in ("num_layers", "page_bytes", "slot"):
            part[name] = heads[name][is_right]
        parts.append(part)
    return _by_shape(np.concatenate([np.empty(0, FOUND), *parts]))


def pack_stamp(used_s: int, expiry_s: int) -> bytes:
    """What is noted of a block's last use."""
    return _USED_AND_EXPIRY.pack(used_s, expiry_s) if expiry_s else _USED.pack(used_s)


def read_stamps(raws: list[bytes]) -> npt.NDArray[np.void]:
    """Of each `_USED` or `_USED_AND_EXPIRY` stamp, last use and expiry, seconds.

    >>> read_stamps([pack_stamp(7, 0), pack_stamp(8, 60)]).tolist()
    [(7, 0), (8, 60)]
    """
    size = _USED_AND_EXPIRY.size
    stamps = np.frombuffer(b"".join([raw.ljust(size, b"\0") for raw in raws]), _STAMP).copy()
    expiry_s = stamps["expiry_s"]
    for at in np.flatnonzero(expiry_s):
        if not is_rounded_expiry_s(int(expiry_s[at])):
            expiry_s[at] = 0
    return stamps


def _stamp(found: Found, transaction: Any, uses: Any) -> None:
    """Write into `found`, which is in order of keys, what is noted of the blocks' last uses. A
    stamp of another length says nothing.
    """
    found_keys = np.ascontiguousarray(found["key"])
    for keys, raws in _walk(transaction, uses):
        is_stamp = [
            len(key) == KEY_BYTES and len(raw) in _STAMP_SIZES
            for key, raw in zip(keys, raws, strict=True)
        ]
        if not any(is_stamp) or not len(found):
            continue
        stamps = read_stamps(list(compress(raws, is_stamp)))
        names = np.frombuffer(b"".join(compress(keys, is_stamp)), "S16")
        at = np.minimum(np.searchsorted(found_keys, names), len(found) - 1)
        is_here = found_keys[at] == names
        for name in ("used_s", "expiry_s"):
            found[name][at[is_here]] = stamps[name][is_here]


def _have_slots(found: Found, num_whole: Mapping[Shape, int]) -> npt.NDArray[np.bool_]:
    """Which blocks are in a slot that there is; of several in one, the first is."""
    is_there = np.zeros(len(found), np.bool_)
    for shape, rows in _rows_by_shape(found):
        at = rows[found["slot"][rows] < num_whole.get(shape, 0)]
        _, first = np.unique(found["slot"][at], return_index=True)
        is_there[at[first]] = True
    return is_there


def _by_shape(found: Found) -> Slots:
    return {shape: found["slot"][at] for shape, at in _rows_by_shape(found)}


def _rows_by_shape(found: Found) -> Iterator[tuple[Shape, npt.NDArray[np.intp]]]:
    number = found["num_layers"].astype(np.uint64) << np.uint64(32) | found["page_bytes"]
    for each in np.unique(number).tolist():
        yield (each >> 32, each & 0xFFFFFFFF), np.flatnonzero(number == each)


def _walk(transaction: Any, database: Any) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Every key and value, some at a time, each looked up by its key.

    Raises:
        lmdb.Error: the keys are not in order, or one is not found where it is looked for.
    """
    num_left = transaction.stat(database)["entries"]
    every = transaction.cursor(db=database).iternext(values=False)
    before = b""
    while keys := list(islice(every, _CHUNK)):
        if not all(starmap(lt, pairwise(chain([before], keys)))):
            raise lmdb.CorruptedError("its keys are not where they belong")
        values = list(map(transaction.get, keys, repeat(None), repeat(database)))
        if None in values:
            raise lmdb.CorruptedError("its keys are not where they belong")
        yield keys, values
        before = keys[-1]
        num_left -= len(keys)
    if num_left:
        raise lmdb.CorruptedError("it holds more or fewer keys than it says")
