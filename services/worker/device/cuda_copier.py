"""Page copies between a CUDA pool and the host's arena, on streams of their own.

The arena's memory is registered with CUDA, so that the GPU reads and writes it itself, at the
link's speed and beside the host.
"""

import weakref
from dataclasses import dataclass

import torch

from kernels.page_copy import copy_pages
from services.worker.device.copies import Copy, CopyFailed
from shared.arena import Arena, Bytes
from shared.errors import SymphonyError


@dataclass(frozen=True, slots=True, eq=False)
class CudaCopy:
    """Pages under way; `event` is behind them on their stream."""

    event: torch.cuda.Event

    def is_over(self) -> bool:
        return bool(self.event.query())

    def wait(self) -> None:
        try:
            self.event.synchronize()
        except RuntimeError as error:
            raise CopyFailed(str(error)) from error


class CudaCopier:
    """A `PageCopier` for a pool in device memory.

    Args:
        pool: ``[num_pages, ...]``, contiguous, on a CUDA device.
        compute: the stream that steps are launched on.
    """

    def __init__(self, pool: torch.Tensor, compute: torch.cuda.Stream) -> None:
        self._pool = pool.view(torch.uint8).flatten(1)
        self._compute = compute
        self._loads = torch.cuda.Stream(pool.device)
        self._stores = torch.cuda.Stream(pool.device)
        self._writes = torch.cuda.Stream(pool.device)
        self._registered: weakref.WeakKeyDictionary[Arena, torch.Tensor] = (
            weakref.WeakKeyDictionary()
        )

    def attach(self, arena: Arena) -> None:
        pages = torch.from_numpy(arena.pages)
        with torch.cuda.device(self._pool.device):
            status = int(torch.cuda.cudart().cudaHostRegister(pages.data_ptr(), pages.nbytes, 0))
        if status:
            raise SymphonyError(f"CUDA did not register the arena: error {status}")
        self._registered[arena] = pages
        weakref.finalize(arena, _unregister, pages.data_ptr())

    def load(self, arena: Arena, arena_pages: list[int], pool_pages: list[int]) -> Copy:
        with torch.cuda.stream(self._loads):
            copy_pages(self._pool, pool_pages, self._registered[arena], arena_pages)
        return self._copy(self._loads)

    def hold(self, copies: list[Copy]) -> None:
        for copy in copies:
            assert isinstance(copy, CudaCopy)
            self._compute.wait_event(copy.event)

    def mark(self) -> object:
        event = torch.cuda.Event()
        event.record(self._compute)
        return event

    def store(
        self, mark: object, pool_pages: list[int], arena: Arena, arena_pages: list[int]
    ) -> Copy:
        assert isinstance(mark, torch.cuda.Event)
        self._stores.wait_event(mark)
        with torch.cuda.stream(self._stores):
            copy_pages(self._registered[arena], arena_pages, self._pool, pool_pages)
        return self._copy(self._stores)

    def write(self, pool_pages: list[int], data: Bytes) -> None:
        with torch.cuda.stream(self._writes):
            pages = torch.tensor(pool_pages, device=self._pool.device)
            self._pool[pages] = torch.from_numpy(data).to(self._pool.device)
        self._writes.synchronize()

    def _copy(self, stream: torch.cuda.Stream) -> Copy:
        event = torch.cuda.Event(blocking=True)  # who waits for it leaves its core to others
        event.record(stream)
        return CudaCopy(event)


def _unregister(address: int) -> None:
    """Nobody holds the arena any more; its memory is unmapped next."""
    torch.cuda.cudart().cudaHostUnregister(address)
