"""``python -m tests.unit.kvstore.tiers.disk.damaged_starts BASE FOLDER SEED...``: damage a copy of
the database in BASE at a place that each seed draws, start on it, and use it. Each in a process of
its own, so that one that dies is seen; prints what became of each.
"""

import os
import random
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import lmdb
import numpy as np

from loadtest.fuzz.damage import damage, damage_slab
from services.kvstore.core import DiskWrite, LoadOutcome
from services.kvstore.tiers.disk import DATA_NAME, Disk, DiskDamaged
from services.kvstore.tiers.disk.start import start_disk
from shared.arena import Bytes, checksum
from shared.blocks import BlockKey

BYTES_MAX = 64 * 1024**2
PAGE_BYTES = 5000
NUM_LAYERS = 2
SLAB_NAME = f"{NUM_LAYERS}x{PAGE_BYTES}.slab"
NUM_BLOCKS = 300
DELETED = range(0, NUM_BLOCKS, 3)
LEFT = [number for number in range(NUM_BLOCKS) if number not in DELETED]


def key_of(number: int) -> BlockKey:
    return BlockKey(np.random.default_rng(number).bytes(16))


def pages_of(number: int) -> Bytes:
    """uint8 [NUM_LAYERS, PAGE_BYTES]"""
    return np.random.default_rng(10**6 + number).integers(
        0, 256, (NUM_LAYERS, PAGE_BYTES), np.uint8
    )


def make_base(folder: Path) -> None:
    """Some MB of blocks and a list of free pages, with few dead copies of the trees' pages."""
    loose = folder / "loose"
    disk = Disk(loose, BYTES_MAX)
    put(disk, range(NUM_BLOCKS))
    disk.close()
    with lmdb.open(str(loose), map_size=2 * BYTES_MAX) as environment:
        environment.copy(str(folder), compact=True)
    (loose / SLAB_NAME).rename(folder / SLAB_NAME)
    disk = Disk(folder, BYTES_MAX)
    delete(disk, DELETED)
    disk.close()


def put(disk: Disk, numbers: Sequence[int]) -> None:
    with disk.write(now_s=1) as writer:
        for number in numbers:
            pages = pages_of(number)
            write = DiskWrite(
                number, key_of(number), BlockKey(bytes(16)), [number] * 64, "f", PAGE_BYTES,
                list(range(NUM_LAYERS)), [checksum(page.data) for page in pages],
            )  # fmt: skip
            writer.put(write, pages)
        writer.touch([key_of(number) for number in numbers])


def delete(disk: Disk, numbers: Sequence[int]) -> None:
    with disk.write(now_s=2) as writer:
        for number in numbers:
            writer.delete(key_of(number))


def damage_database(folder: Path, seed: int) -> str:
    """Damage the index, or every fourth time the slab; what was done."""
    rng = random.Random(seed)
    path = folder / (SLAB_NAME if rng.randrange(4) == 0 else DATA_NAME)
    content = bytearray(path.read_bytes())
    what = (damage if path.name == DATA_NAME else damage_slab)(content, rng)
    path.write_bytes(content)
    return what


def use(folder: Path) -> str:
    """Start, and read, write and delete; what the disk did. Wrong bytes raise."""
    started = start_disk(folder, BYTES_MAX)
    disk = started.disk
    new = range(NUM_BLOCKS, NUM_BLOCKS + 60)
    words = ["reset" if started.was_reset else f"found {len(started.scan.blocks)}"]
    for _ in range(2):
        try:
            words.append(f"read {read(disk, LEFT)}")
            for first in range(0, len(new), 20):
                put(disk, new[first : first + 20])
                delete(disk, LEFT[2 * first : 2 * first + 40])
            num_ready = read(disk, new)  # of a damaged list of free pages: not all, perhaps
            assert num_ready == NUM_LAYERS * len(new) or not started.was_reset, "a new one loses"
            words.append(f"read {read(disk, LEFT)}")
            break
        except DiskDamaged as error:
            words.append(f"damaged ({error})")
            disk.reset()
    else:
        raise AssertionError("damaged twice")
    disk.close()
    return ", ".join(words)


def read(disk: Disk, numbers: Sequence[int]) -> int:
    """How many pages of these blocks come back; those are right."""
    out = np.zeros(PAGE_BYTES, np.uint8)
    num_ready = 0
    with disk.read() as reader:
        for number in numbers:
            for layer, page in enumerate(pages_of(number)):
                if reader.copy(key_of(number), layer, out) is LoadOutcome.READY:
                    assert np.array_equal(out, page), f"wrong bytes: block {number}, layer {layer}"
                    num_ready += 1
    return num_ready


def main(base: Path, folder: Path, seeds: list[int]) -> int:
    num_failed = 0
    for seed in seeds:
        own = folder / str(seed)
        own.mkdir(parents=True)
        for name in (DATA_NAME, SLAB_NAME):
            shutil.copy(base / name, own)
        what = damage_database(own, seed)
        if not (child := os.fork()):
            print(f"seed {seed}, {what}: {use(own)}", flush=True)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            print(f"seed {seed}, {what}: ended with status {status}", flush=True)
            num_failed += 1
        shutil.rmtree(own)
    return min(num_failed, 255)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), [int(seed) for seed in sys.argv[3:]]))
