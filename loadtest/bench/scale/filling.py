"""A KV disk that is filled quickly: its index is written as a kvstore would, its slab is a hole.

A hole reads as zeros, so a page of it is the one that its record speaks of.
"""

import os
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import islice
from pathlib import Path

import lmdb

from services.kvstore.tiers.disk import Disk
from services.kvstore.tiers.disk.records import BlockRecord, pack_record
from services.kvstore.tiers.disk.slab import slot_bytes
from shared.arena import checksum
from shared.blocks import BLOCK_TOKENS, BlockKey, chain_keys
from shared.owners import OwnerKey

PAGE_BYTES = 4096
INDEX_BYTES = 2**30  # for the index, at least
TOKENS = list(range(BLOCK_TOKENS))
RECORDS_AT_ONCE = 50_000


def disk_bytes(num_blocks: int, num_layers: int) -> int:
    """What the slots of so many blocks occupy."""
    return num_blocks * slot_bytes(num_layers, PAGE_BYTES)


def session_records(
    root: BlockKey, owner: OwnerKey, num_blocks: int, num_layers: int, first_slot: int
) -> Iterator[tuple[BlockKey, bytes]]:
    """Of each block of one sequence, whose pages are zeros."""
    parent, sums = root, [_zero_checksum()] * num_layers
    for at, key in enumerate(chain_keys(root, range(num_blocks * BLOCK_TOKENS))):
        record = BlockRecord(
            key, parent, bytes(16), PAGE_BYTES, 1, first_slot + at, TOKENS, sums, owner
        )
        yield key, pack_record(record)
        parent = key


def fill_disk(
    folder: Path,
    bytes_max: int,
    num_layers: int,
    records: Iterable[tuple[BlockKey, bytes]],
    used_s: int,
) -> None:
    """Make a disk that has these blocks.

    Args:
        bytes_max: for which it will be opened; its slab is as long.
        used_s: when all were last used, wall clock, seconds.
    """
    Disk(folder, bytes_max).close()
    stamp = used_s.to_bytes(8, "little")
    left = iter(records)
    with lmdb.open(str(folder), map_size=2 * bytes_max + INDEX_BYTES, max_dbs=4, sync=False) as env:
        blocks, uses = env.open_db(b"blocks"), env.open_db(b"uses")
        while some := list(islice(left, RECORDS_AT_ONCE)):
            with env.begin(write=True) as transaction:
                for key, record in some:
                    transaction.put(key, record, db=blocks)
                    transaction.put(key, stamp, db=uses)
        env.sync(True)
    slab = folder / f"{num_layers}x{PAGE_BYTES}.slab"
    slab.touch()
    os.truncate(slab, bytes_max)


def stamp_blocks(folder: Path, bytes_max: int, keys: Iterable[BlockKey], used_s: int) -> None:
    """Have it that these were last used then, by the wall clock, seconds."""
    stamp = used_s.to_bytes(8, "little")
    with lmdb.open(str(folder), map_size=2 * bytes_max + INDEX_BYTES, max_dbs=4, sync=False) as env:
        uses = env.open_db(b"uses")
        with env.begin(write=True, db=uses) as transaction:
            for key in keys:
                transaction.put(key, stamp)


@cache
def _zero_checksum() -> int:
    return checksum(bytes(PAGE_BYTES))
