"""How long a start takes on a disk with so many pages."""

import os
import time
from pathlib import Path

import lmdb

from services.kvstore.disk import Disk
from services.kvstore.disk.records import BlockRecord, pack_record
from services.kvstore.disk.slab import slot_bytes
from services.kvstore.start import start_disk
from shared.blocks import BLOCK_TOKENS, BlockKey, chain_keys, root_key
from shared.owners import OWNER_BYTES, OwnerKey

PAGE_BYTES = 4096  # of the slab, which is a hole
TOKENS = list(range(BLOCK_TOKENS))
BLOCKS_A_SESSION = 32


def start_s(folder: Path, num_pages: int, num_layers: int) -> float:
    """Seconds to open such a disk, with all that a start checks, and to hear what is on it."""
    num_blocks = -(-num_pages // num_layers)
    bytes_max = num_blocks * slot_bytes(num_layers, PAGE_BYTES)
    Disk(folder, bytes_max).close()
    with lmdb.open(str(folder), map_size=bytes_max + 2**30, max_dbs=4, sync=False) as env:
        blocks, uses = env.open_db(b"blocks"), env.open_db(b"uses")
        with env.begin(write=True) as transaction:
            for key, record in _records(num_blocks, num_layers):
                transaction.put(key, record, db=blocks)
                transaction.put(key, bytes(8), db=uses)
        env.sync(True)
    slab = folder / f"{num_layers}x{PAGE_BYTES}.slab"
    slab.touch()
    os.truncate(slab, bytes_max)
    began_s = time.perf_counter()
    started = start_disk(folder, bytes_max)
    took_s = time.perf_counter() - began_s
    assert len(started.scan.blocks) == num_blocks, "all were found"
    started.disk.close()
    return took_s


def _records(num_blocks: int, num_layers: int) -> list[tuple[BlockKey, bytes]]:
    """Of sessions of some blocks each, in no order."""
    found: list[tuple[BlockKey, bytes]] = []
    while len(found) < num_blocks:
        session = len(found) // BLOCKS_A_SESSION
        parent = root_key("bench", str(session))
        owner = OwnerKey(session.to_bytes(OWNER_BYTES, "little"))
        for key in chain_keys(parent, range(BLOCKS_A_SESSION * BLOCK_TOKENS)):
            record = BlockRecord(
                key, parent, bytes(16), PAGE_BYTES, 1, len(found), TOKENS, [1] * num_layers, owner
            )
            found.append((key, pack_record(record)))
            parent = key
    return found[:num_blocks]
