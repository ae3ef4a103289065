"""The copiers that must all behave alike: the host's, a GPU's, and a device that is slow, runs its
copies in any order and now and then fails."""

import random
import threading
from typing import Any

import numpy as np
import pytest
import torch

from services.worker.device.copies import Copy, CopyFailed, HostCopier, PageCopier
from shared.arena import Arena, Bytes

CUDA = pytest.param(
    "cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
    ],
)
KINDS = ["host", "late", CUDA]


class LateCopy:
    """A copy that somebody else makes, some time."""

    def __init__(self, targets: Bytes, at: list[int], *, has_failed: bool) -> None:
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
        self._pending: list[tuple[LateCopy, Bytes, list[int]]] = []
        self._has_more = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._random = random.Random(7)
        self.held: list[Copy] = []
        threading.Thread(target=self._run, daemon=True).start()

    def attach(self, arena: Arena) -> None:
        return None

    def load(self, arena: Arena, arena_pages: list[int], pool_pages: list[int]) -> Copy:
        return self._start(self._pool, pool_pages, arena.pages, arena_pages, pool_pages)

    def hold(self, copies: list[Copy]) -> None:
        self.held += copies

    def mark(self) -> object:
        return None

    def store(
        self, mark: object, pool_pages: list[int], arena: Arena, arena_pages: list[int]
    ) -> Copy:
        return self._start(arena.pages, arena_pages, self._pool, pool_pages, pool_pages)

    def write(self, pool_pages: list[int], data: Bytes) -> None:
        self._start(self._pool, pool_pages, data, list(range(len(data))), pool_pages).wait()

    def _start(
        self, targets: Bytes, to: list[int], sources: Bytes, of: list[int], pool_pages: list[int]
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
        from services.worker.device.cuda_copier import CudaCopier

        memory = DeviceMemory(num_pages, page_bytes)
        return CudaCopier(memory.tensor, torch.cuda.current_stream()), memory
    pool = np.zeros((num_pages, page_bytes), np.uint8)
    return (HostCopier if kind == "host" else LateCopier)(pool), pool
