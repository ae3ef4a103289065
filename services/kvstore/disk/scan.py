"""What is in an index: every block, or only which slots are taken."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import lmdb

from services.kvstore.disk.records import BadRecord, Head, Place, read_head, read_place
from services.kvstore.disk.slabs import Shape, Slabs
from shared.blocks import NO_PARENT, BlockKey
from shared.owners import NOBODY, OwnerKey

STAMP_BYTES = 8


@dataclass(frozen=True, slots=True)
class FoundBlock:
    """A block found by `Disk.scan`; `used_s` is wall clock, seconds."""

    key: BlockKey
    num_layers: int
    page_bytes: int
    used_s: int
    owner: OwnerKey = NOBODY
    parent: BlockKey = NO_PARENT


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
    is_stamp = used is not None and len(used) == STAMP_BYTES
    used_s = int.from_bytes(used, "little") if is_stamp else head.created_s
    num_layers, page_bytes, _ = head.place
    return FoundBlock(key, num_layers, page_bytes, used_s, head.owner, head.parent)


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
