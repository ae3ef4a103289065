"""How long a start takes on a disk with so many pages."""

import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from loadtest.bench.disk.filling import disk_bytes, fill_disk, session_records
from services.kvstore.tiers.disk.start import start_disk
from shared.blocks import BlockKey, root_key
from shared.owners import OWNER_BYTES, OwnerKey

BLOCKS_A_SESSION = 32


def start_s(folder: Path, num_pages: int, num_layers: int) -> float:
    """Seconds to open such a disk, with all that a start checks, and to hear what is on it."""
    num_blocks = -(-num_pages // num_layers)
    bytes_max = disk_bytes(num_blocks, num_layers)
    records = islice(_records(num_layers), num_blocks)
    fill_disk(folder, bytes_max, num_layers, records, used_s=0)
    began_s = time.perf_counter()
    started = start_disk(folder, bytes_max)
    took_s = time.perf_counter() - began_s
    assert len(started.scan.found) == num_blocks, "all were found"
    started.disk.close()
    return took_s


def _records(num_layers: int) -> Iterator[tuple[BlockKey, bytes]]:
    """Of sessions of some blocks each, without end."""
    session = 0
    while True:
        owner = OwnerKey(session.to_bytes(OWNER_BYTES, "little"))
        first = session * BLOCKS_A_SESSION
        root = root_key("bench", str(session))
        yield from session_records(root, owner, BLOCKS_A_SESSION, num_layers, first)
        session += 1
