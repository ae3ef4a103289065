"""A disk that fills up, and then keeps changing, by the kvstore's own threads."""

import os
import queue
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType

import numpy as np

from loadtest.bench.page_cache import drop_cached
from services.kvstore.core import (
    DeleteBlocks,
    DiskWrite,
    LoadOutcome,
    PageReads,
    ReadPages,
    WriteBlocks,
    WriteOutcome,
)
from services.kvstore.tiers.disk import Disk, stored_bytes
from services.kvstore.tiers.disk.disk_writer import DiskWriter, WriteResults
from services.kvstore.tiers.disk.loader import NUM_THREADS, Loader, LoadResults
from services.kvstore.tiers.executors import ThreadExecutor
from shared.arena import Arena, checksum
from shared.blocks import BLOCK_TOKENS, BlockKey, chain_keys, root_key
from shared.clock import SystemClock

ARENA_BYTES = 256 * 1024 * 1024
BATCH_BYTES = 8 * 1024 * 1024  # of one order to the loader, as the core's
AHEAD_MAX = 256  # blocks with the writer at once
PATIENCE_S = 600.0
SEED = 1


class Churn:
    """A disk with an arena of random pages before it: a new block has the bytes of one of a few.

    Args:
        num_bytes: that blocks on disk occupy when it is full.
    """

    def __init__(self, folder: Path, num_layers: int, page_bytes: int, num_bytes: int) -> None:
        block_bytes = stored_bytes(num_layers, page_bytes)
        self._num_layers, self._page_bytes = num_layers, page_bytes
        self._num_blocks = max(num_bytes // block_bytes, 1)
        self._num_sources = min(max(ARENA_BYTES // (num_layers * page_bytes), 1), self._num_blocks)
        self._folder = folder
        self._disk = Disk(folder, self._num_blocks * block_bytes)
        self._memory = Path(tempfile.mkdtemp(prefix="symphony-disk-", dir="/dev/shm"))
        self._arena = Arena.create(
            self._memory / "arena", self._num_sources * num_layers, page_bytes
        )
        generator = np.random.default_rng(SEED)
        for page in self._arena.pages:
            page[:] = generator.integers(0, 256, page_bytes, np.uint8)
        self._sums = [checksum(page.data) for page in self._arena.pages]
        self._random = random.Random(SEED)
        self._stored: list[BlockKey] = []
        self._num_made = 0
        self._written: queue.SimpleQueue[WriteResults] = queue.SimpleQueue()
        arenas = {page_bytes: self._arena}
        clock = SystemClock()
        self._writer = DiskWriter(
            self._disk, arenas, ThreadExecutor("writer", 1, _give_up), clock, self._written.put,
            _give_up,
        )  # fmt: skip
        self._loaded: queue.SimpleQueue[LoadResults] = queue.SimpleQueue()
        self._loader = Loader(
            self._disk, arenas, ThreadExecutor("loader", NUM_THREADS, _give_up), clock,
            lambda results, _: self._loaded.put(results), _give_up,
        )  # fmt: skip

    def __enter__(self) -> "Churn":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loader.stop()
        self._writer.stop()
        self._disk.close()
        self._arena.close()
        shutil.rmtree(self._memory)
        shutil.rmtree(self._folder)

    def fill(self) -> float:
        """Until it is full; GB/s."""
        return self._put([None] * self._num_blocks)

    def replace_all(self) -> float:
        """As many blocks as there are go, at random, each for a new one; GB/s."""
        return self._put([self._random.randrange(self._num_blocks) for _ in self._stored])

    def read(self) -> float:
        """As much as the arena holds, layer by layer, of blocks at random; GB/s."""
        num_blocks = min(self._num_sources, self._num_blocks)
        keys = self._random.sample(self._stored, num_blocks)
        numbers = list(range(num_blocks))
        at_once = max(BATCH_BYTES // (num_blocks * self._page_bytes), 1)
        reads = [
            PageReads(
                layer, self._page_bytes, numbers, keys,
                [number * self._num_layers + layer for number in numbers], [1] * num_blocks,
            )
            for layer in range(self._num_layers)
        ]  # fmt: skip
        batches = [reads[at : at + at_once] for at in range(0, len(reads), at_once)]
        began_s = time.perf_counter()
        for batch in batches[:2]:  # as many as the core has with the loader
            self._loader.submit(ReadPages(batch))
        for number in range(len(batches)):
            for _, outcomes in self._loaded.get(timeout=PATIENCE_S):
                assert set(outcomes) == {LoadOutcome.READY}, "every page came"
            if number + 2 < len(batches):
                self._loader.submit(ReadPages(batches[number + 2]))
        took_s = time.perf_counter() - began_s
        self._sums = [checksum(page.data) for page in self._arena.pages]
        return num_blocks * self._num_layers * self._page_bytes / took_s / 1e9

    def drop_cached(self) -> bool:
        """Whether the kernel has forgotten the pages."""
        return all(drop_cached(path) for path in self._folder.glob("*.slab"))

    def _put(self, places: list[int | None]) -> float:
        """A new block for each: in place of a stored one, or besides; until all is on the device,
        since what the system takes into memory is no speed of a disk. At most `AHEAD_MAX` wait.
        """
        began_s = time.perf_counter()
        num_waiting = 0
        for place in places:
            if num_waiting >= AHEAD_MAX:
                num_waiting -= self._hear()
            write = self._new_block()
            if place is None:
                self._stored.append(write.key)
            else:
                self._writer.submit(DeleteBlocks([(self._stored[place], self._num_layers)]))
                self._stored[place] = write.key
            self._writer.submit(WriteBlocks([write]))
            num_waiting += 1
        while num_waiting:
            num_waiting -= self._hear()
        settled: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._writer.settle(settled.put)
        assert settled.get(timeout=PATIENCE_S), "all is durable"
        took_s = time.perf_counter() - began_s
        return len(places) * self._num_layers * self._page_bytes / took_s / 1e9

    def _hear(self) -> int:
        """How many blocks were written now."""
        results = self._written.get(timeout=PATIENCE_S)
        assert {outcome for _, outcome, _ in results} == {WriteOutcome.STORED}, "there is room"
        return len(results)

    def _new_block(self) -> DiskWrite:
        self._num_made += 1
        first = self._random.randrange(self._num_sources) * self._num_layers
        pages = list(range(first, first + self._num_layers))
        (key,) = chain_keys(root_key("bench", str(self._num_made)), range(BLOCK_TOKENS))
        return DiskWrite(
            self._num_made, key, key, list(range(BLOCK_TOKENS)), "bench", self._page_bytes, pages,
            [self._sums[page] for page in pages],
        )  # fmt: skip


def _give_up(error: BaseException) -> None:
    print(f"the disk failed: {error}", file=sys.stderr)
    os._exit(1)
