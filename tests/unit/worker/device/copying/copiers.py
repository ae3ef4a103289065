"""The copiers that must all behave alike: the host's, a GPU's, and a device that is slow, runs its
copies in any order and now and then fails."""

import random
import threading
from collections.abc import Container
from typing import Any

import numpy as np
import pytest
import torch

from kernels.page_sums.select import PageNumbers
from services.worker.device.copying.copies import (
    OVER,
    Copy,
    CopyFailed,
    HostCopier,
    PageCopier,
    Store,
    SummedByHost,
)
from services.worker.device.copying.piecewise_copier import PiecewiseCopier
from shared.arena import Arena, Bytes
from shared.blocks import BLOCK_TOKENS
from shared.errors import SymphonyError

CUDA = pytest.param("cuda", marks=pytest.mark.gpu)
KINDS = ["host", "late", "pieces", CUDA]


class LateCopy:
    """A copy that somebody else makes, some time."""

    def __init__(self, targets: Bytes, at: PageNumbers, *, has_failed: bool) -> None:
        self.targets, self.at, self.has_failed = targets, at, has_failed
        self.has_ended = threading.Event()

    def is_over(self) -> bool:
        return self.has_ended.is_set()

    def wait(self) -> None:
        assert self.has_ended.wait(30), "a copy that nobody makes"
        if self.has_failed:
            raise CopyFailed("the device lost it")


class LateCopier:
    """Copies are made by another thread, in any order; the bytes are those of when they are made.

    Args:
        fails: pool pages whose copies fail.
    """

    def __init__(self, pool: Bytes, fails: frozenset[int] = frozenset()) -> None:
        self._pool = pool
        self._fails = fails
        self._pending: list[tuple[LateCopy, Bytes, PageNumbers]] = []
        self._has_more = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._random = random.Random(7)
        self.holds: list[list[Copy]] = []
        threading.Thread(target=self._run, daemon=True).start()

    def attach(self, arena: Arena) -> None:
        return None

    def load(self, arena: Arena, arena_pages: PageNumbers, pool_pages: PageNumbers) -> Copy:
        return self._start(self._pool, pool_pages, arena.pages, arena_pages, pool_pages)

    def hold(self, copies: list[Copy]) -> None:
        self.holds.append(copies)

    def store(
        self,
        pool_pages: PageNumbers,
        arena: Arena,
        arena_pages: PageNumbers,
        num_tokens: int = BLOCK_TOKENS,
    ) -> Store:
        copy = self._start(arena.pages, arena_pages, self._pool, pool_pages, pool_pages)
        return SummedByHost(copy, arena.pages, arena_pages)

    def write(self, pool_pages: PageNumbers, data: Bytes) -> None:
        self._start(self._pool, pool_pages, data, list(range(len(data))), pool_pages).wait()

    def close(self) -> None:
        return None

    def _start(
        self,
        targets: Bytes,
        to: PageNumbers,
        sources: Bytes,
        of: PageNumbers,
        pool_pages: PageNumbers,
    ) -> Copy:
        copy = LateCopy(targets, to, has_failed=bool(self._fails & {*pool_pages}))
        with self._lock:
            self._pending.append((copy, sources, of))
        self._has_more.release()
        return copy

    def _run(self) -> None:
        while True:
            self._has_more.acquire()
            with self._lock:
                index = self._random.randrange(len(self._pending))
                copy, sources, of = self._pending.pop(index)
            if not copy.has_failed:
                copy.targets[copy.at] = sources[of]
            copy.has_ended.set()


class CheckedLink:
    """A `DeviceLink` to an array. What it was not told of it does not copy: that is a fault.

    Args:
        refused: the numbers of those calls to `register` that fail.

    Attributes:
        registered: address and size of what it addresses, in the order in which it was told.
        unregistered: addresses, likewise.
    """

    def __init__(self, pool: Bytes, refused: Container[int] = ()) -> None:
        self._pool = pool
        self._refused = refused
        self._num_calls = 0
        self._staging: list[Bytes] = []
        self.registered: dict[int, int] = {}
        self.unregistered: list[int] = []
        self.num_staged = 0

    def register(self, memory: Bytes) -> None:
        self._num_calls += 1
        if self._num_calls - 1 in self._refused:
            raise SymphonyError("the device says no")
        self.registered[memory.ctypes.data] = memory.nbytes

    def unregister(self, memory: Bytes) -> None:
        assert self.registered.pop(memory.ctypes.data) == memory.nbytes
        self.unregistered.append(memory.ctypes.data)

    def warm_up(self, page_bytes: int) -> None:
        return None

    def staging(self, num_pages: int, page_bytes: int) -> Bytes:
        self._staging.append(np.full((num_pages, page_bytes), 0xEE, np.uint8))
        self.num_staged += num_pages
        return self._staging[-1]

    def load(self, source: Bytes, source_pages: PageNumbers, pool_pages: PageNumbers) -> Copy:
        self._check(source, source_pages)
        self._pool[pool_pages] = source[source_pages]
        return OVER

    def hold(self, copies: list[Copy]) -> None:
        assert set(copies) <= {OVER}

    def store(
        self,
        pool_pages: PageNumbers,
        target: Bytes,
        target_pages: PageNumbers,
        num_tokens: int = BLOCK_TOKENS,
    ) -> Store:
        self._check(target, target_pages)
        target[target_pages] = self._pool[pool_pages]
        return SummedByHost(OVER, target, target_pages)

    def write(self, pool_pages: PageNumbers, data: Bytes) -> None:
        self._pool[pool_pages] = data

    def wait_idle(self) -> None:
        return None

    def _check(self, memory: Bytes, pages: PageNumbers) -> None:
        if any(memory is each for each in self._staging):
            return
        for page in pages:
            begin, end = memory[page].ctypes.data, memory[page].ctypes.data + memory.shape[1]
            known = list(self.registered.items())
            assert any(at <= begin and end <= at + size for at, size in known), "a fault"


class DeviceMemory:
    """Pages on a GPU, read and written as an array of the host."""

    def __init__(self, num_pages: int, page_bytes: int) -> None:
        self.tensor = torch.zeros((num_pages, page_bytes), dtype=torch.uint8, device="cuda")

    def __len__(self) -> int:
        return len(self.tensor)

    def __getitem__(self, at: Any) -> Bytes:
        pages: Bytes = self.tensor[at].cpu().numpy()
        return pages

    def __setitem__(self, at: Any, value: Any) -> None:
        self.tensor[at] = value
        torch.cuda.synchronize()


def make_copier(kind: str, num_pages: int, page_bytes: int) -> tuple[PageCopier, Any]:
    """A copier, and its pool as an array."""
    if kind == "cuda":
        from services.worker.device.copying.cuda_copier import cuda_copier

        memory = DeviceMemory(num_pages, page_bytes)
        return cuda_copier(memory.tensor, torch.cuda.current_stream()), memory
    pool = np.zeros((num_pages, page_bytes), np.uint8)
    if kind == "pieces":  # of two pages, every other one of which the device does not address
        link = CheckedLink(pool, refused=range(1, num_pages, 2))
        return PiecewiseCopier(link, 2 * page_bytes), pool
    return (HostCopier if kind == "host" else LateCopier)(pool), pool
