"""A host's disk in the simulation: blocks that survive the process, and how it fails.

It stands in for `services.kvstore.tiers.disk.Disk`: LMDB and slabs outlive a process that is
killed, so what was committed before is there after it, and a transaction under way leaves nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from random import Random

import numpy as np

from loadtest.sim.threads import wait_ns
from loadtest.sim.timeline import US
from services.kvstore.core import DiskWrite, LoadOutcome
from services.kvstore.tiers.disk import (
    FOUND,
    BlockRecord,
    CorruptPage,
    DiskDamaged,
    DiskFailed,
    DiskFull,
    Scan,
    StoredPage,
)
from services.kvstore.tiers.values import fingerprint_digest
from shared.arena import Bytes, checksum
from shared.blocks import BlockKey
from shared.owners import OwnerKey

READ_NS = 100 * US  # of a page, at most
WRITE_NS = 500 * US  # of a block, at most
CACHED_SHARE = 0.5  # of pages: the system has them in memory


@dataclass(frozen=True, slots=True)
class SimBlock:
    """A block on disk; `used_s` and `expiry_s` are what is noted of its last use."""

    record: BlockRecord
    pages: list[bytes]
    used_s: int
    expiry_s: int = 0
    is_damaged: bool = False

    @property
    def owner(self) -> OwnerKey:
        """The session that made it."""
        return self.record.owner

    def damaged(self) -> "SimBlock":
        """The same, with pages whose bytes are others."""
        pages = [bytes([page[0] ^ 1]) + page[1:] for page in self.pages]
        return replace(self, pages=pages, is_damaged=True)


class SimDisk:
    """Attributes:
    blocks: that were committed; replaced by each transaction.
    slowness: factor on what reads and writes take.
    is_full: writes find no room.
    unread_share: of reads, which fail.
    is_damaged: the whole database cannot be used any more.
    life: counts the databases that this was.
    on_write: called with a block before it is written, and its pages.
    """

    def __init__(self, random: Random, slowness: int = 1) -> None:
        self._random = random
        self.slowness = slowness
        self.blocks: dict[BlockKey, SimBlock] = {}
        self.is_full = False
        self.unread_share = 0.0
        self.life = 1
        self.is_damaged = False
        self.on_write: Callable[[DiskWrite, list[bytes]], None] = lambda write, pages: None

    def start(self) -> tuple[Scan, bool]:
        """For a new life of the kvstore: what is there, and whether the database is a new one."""
        was_reset = self.is_damaged
        if was_reset:
            self.reset()
        self.life = 1
        found = np.zeros(len(self.blocks), FOUND)
        for at, (key, block) in enumerate(self.blocks.items()):
            record = block.record
            found[at] = (
                key, record.parent, record.owner, record.num_layers, record.page_bytes, at,
                block.used_s, block.expiry_s,
            )  # fmt: skip
        return Scan(found), was_reset

    def damage_pages(self, share: float) -> None:
        """Change some of the bytes."""
        for key, block in self.blocks.items():
            if self._random.random() < share:
                self.blocks[key] = block.damaged()

    @contextmanager
    def read(self) -> Iterator["SimReader"]:
        self._check()
        yield SimReader(self, self.blocks, self._random)

    @contextmanager
    def write(self, now_s: int) -> Iterator["SimWriter"]:
        self._check()
        writer = SimWriter(self, dict(self.blocks), self._random, now_s)
        yield writer
        self._check()
        self.blocks = writer.blocks

    def reset(self) -> None:
        self.life += 1
        self.is_damaged = False
        self.blocks = {}

    def sync(self) -> None:
        self._check()
        wait_ns(self._random.randrange(WRITE_NS * self.slowness))

    def _check(self) -> None:
        if self.is_damaged:
            raise DiskDamaged("a page of the index is torn", self.life)


class SimReader:
    """A snapshot."""

    def __init__(self, disk: SimDisk, blocks: dict[BlockKey, SimBlock], random: Random) -> None:
        self._disk = disk
        self._blocks = blocks
        self._random = random

    def copy(
        self, key: BlockKey, layer: int, out: Bytes, *, may_wait: bool = True
    ) -> LoadOutcome | None:
        disk, random = self._disk, self._random
        if not may_wait and (disk.slowness > 1 or random.random() >= CACHED_SHARE):
            return None
        if may_wait:
            wait_ns(random.randrange(READ_NS * disk.slowness))
        disk._check()
        if random.random() < disk.unread_share:
            raise DiskFailed("the device does not answer")
        if (block := self._blocks.get(key)) is None or layer >= len(block.pages):
            return LoadOutcome.MISSING
        out[:] = np.frombuffer(block.pages[layer], np.uint8)
        is_good = checksum(out.data) == block.record.checksums[layer]
        return LoadOutcome.READY if is_good else LoadOutcome.CORRUPT

    def page(self, key: BlockKey, layer: int) -> StoredPage | None:
        if (block := self._blocks.get(key)) is None or layer >= len(block.pages):
            return None
        return StoredPage(block.record, memoryview(block.pages[layer]))


class SimWriter:
    """A transaction on `blocks`."""

    def __init__(
        self, disk: SimDisk, blocks: dict[BlockKey, SimBlock], random: Random, now_s: int
    ) -> None:
        self._disk = disk
        self.blocks = blocks
        self._random = random
        self._now_s = now_s

    def put(self, write: DiskWrite, pages: Bytes) -> None:
        disk = self._disk
        stored: list[bytes] = []
        for page, announced in zip(write.pages, write.checksums, strict=True):
            wait_ns(self._random.randrange(WRITE_NS * disk.slowness) // len(write.pages))
            stored.append(pages[page].tobytes())
            if checksum(stored[-1]) != announced:
                raise CorruptPage(f"block {write.key.hex()}")
        disk._check()
        if disk.is_full:
            raise DiskFull("no space left on device")
        disk.on_write(write, stored)
        record = BlockRecord(
            write.key, write.parent, fingerprint_digest(write.fingerprint), write.page_bytes,
            self._now_s, 0, list(write.tokens), list(write.checksums), write.owner,
        )  # fmt: skip
        self.blocks[write.key] = SimBlock(record, stored, self._now_s, write.expiry_s or 0)

    def delete(self, key: BlockKey) -> None:
        self.blocks.pop(key, None)

    def touch(self, keys: Sequence[BlockKey], expiry_s: int = 0) -> None:
        for key in keys:
            if (block := self.blocks.get(key)) is not None:
                self.blocks[key] = replace(block, used_s=self._now_s, expiry_s=expiry_s)
