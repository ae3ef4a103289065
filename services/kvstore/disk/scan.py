"""What is in an index: every block, or only which slots are taken."""

import struct
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import lmdb

from services.kvstore.disk.records import BadRecord, Head, Place, read_head, read_place
from services.kvstore.disk.slabs import Shape, Slabs
from shared.blocks import NO_PARENT, BlockKey
from shared.expiry import is_rounded_expiry_s
from shared.owners import NOBODY, OwnerKey

_USED = struct.Struct("<Q")
_USED_AND_EXPIRY = struct.Struct("<QI")


@dataclass(frozen=True, slots=True)
class FoundBlock:
    """A block found by `Disk.scan`. It was last used at `used_s`, wall clock, seconds, and outlives
    that for `expiry_s`; 0: as the disk has it.
    """

    key: BlockKey
    num_layers: int
    page_bytes: int
    used_s: int
    owner: OwnerKey = NOBODY
    parent: BlockKey = NO_PARENT
    expiry_s: int = 0


@dataclass(frozen=True, slots=True)
class Scan:
    """What `Disk.scan` found, and how many records it deleted."""

    blocks: list[FoundBlock]
    num_deleted: int = 0


def find_blocks(
    transaction: Any, blocks: Any, uses: Any, slabs: Slabs
) -> tuple[list[FoundBlock], list[bytes]]:
    """Every block, and the keys of records that lead to none: they are damaged, or their slab is
    gone or cut short, or another block is in their slot.

    Raises:
        lmdb.Error: the database is damaged.
    """
    found: list[FoundBlock] = []
    wrong: list[bytes] = []
    taken: set[Place] = set()
    for raw_key, raw in _walk(transaction, blocks):
        try:
            head = read_head(raw, BlockKey(raw_key))
        except BadRecord:
            wrong.append(raw_key)
            continue
        place = head.place
        if place in taken or not slabs.holds(place):
            wrong.append(raw_key)
            continue
        taken.add(place)
        found.append(_found(BlockKey(raw_key), head, transaction.get(raw_key, db=uses)))
    for _ in _walk(transaction, uses):
        pass
    return found, wrong


def find_slots(transaction: Any, blocks: Any) -> dict[Shape, list[int]]:
    """Slots that hold a block, by shape. What cannot be read is left out."""
    slots: dict[Shape, list[int]] = defaultdict(list)
    for raw_key, raw in transaction.cursor(db=blocks):
        try:
            place = read_place(raw, BlockKey(bytes(raw_key)))
        except BadRecord:
            continue
        slots[place.num_layers, place.page_bytes].append(place.slot)
    return slots


def _found(key: BlockKey, head: Head, used: Any) -> FoundBlock:
    used_s, expiry_s = (head.created_s, 0) if used is None else _read_stamp(used, head.created_s)
    num_layers, page_bytes, _ = head.place
    return FoundBlock(key, num_layers, page_bytes, used_s, head.owner, head.parent, expiry_s)


def pack_stamp(used_s: int, expiry_s: int) -> bytes:
    """What is noted of a block's last use."""
    return _USED_AND_EXPIRY.pack(used_s, expiry_s) if expiry_s else _USED.pack(used_s)


def _read_stamp(raw: Any, created_s: int) -> tuple[int, int]:
    """Last use and expiry, seconds; of another length, nobody knows."""
    if len(raw) == _USED.size:
        return _USED.unpack(raw)[0], 0
    if len(raw) != _USED_AND_EXPIRY.size:
        return created_s, 0
    used_s, expiry_s = _USED_AND_EXPIRY.unpack(raw)
    return used_s, expiry_s if is_rounded_expiry_s(expiry_s) else 0


def _walk(transaction: Any, database: Any) -> Iterator[tuple[bytes, Any]]:
    """Every key and value, each key also looked up.

    Raises:
        lmdb.Error: the walk is not in order, or meets what a lookup does not find.
    """
    num_left = transaction.stat(database)["entries"]
    before = b""
    for raw_view, value in transaction.cursor(db=database):
        raw = bytes(raw_view)
        if raw <= before or transaction.get(raw, db=database) is None:
            raise lmdb.CorruptedError("its keys are not where they belong")
        yield raw, value
        before = raw
        num_left -= 1
    if num_left:
        raise lmdb.CorruptedError("it holds more or fewer keys than it says")
