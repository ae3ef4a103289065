"""Page copies between a CUDA pool and the host arena, on streams of their own.

The arena's memory is registered with CUDA, so copies are asynchronous and at the link's full speed.
"""

import torch

from shared.arena import Arena, Bytes
from shared.errors import SymphonyError


class CudaCopier:
    """A `PageCopier` for a pool in device memory.

    Args:
        pool: ``[num_pages, ...]``, contiguous, on a CUDA device.
    """

    def __init__(self, pool: torch.Tensor) -> None:
        self._pool = pool.view(torch.uint8).flatten(1)
        self._loads = torch.cuda.Stream(pool.device)
        self._stores = torch.cuda.Stream(pool.device)
        self._registered: dict[int, torch.Tensor] = {}

    def load(self, arena: Arena, arena_pages: list[int], pool_pages: list[int]) -> None:
        pages = self._pages(arena)
        with torch.cuda.stream(self._loads):
            for source, target in zip(arena_pages, pool_pages, strict=True):
                self._pool[target].copy_(pages[source], non_blocking=True)
        self._loads.synchronize()

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._pool.device))
        return event

    def store(self, mark: object, pool_page: int, target: Bytes) -> None:
        assert isinstance(mark, torch.cuda.Event)
        with torch.cuda.stream(self._stores):
            self._stores.wait_event(mark)
            torch.from_numpy(target).copy_(self._pool[pool_page], non_blocking=True)
        self._stores.synchronize()

    def _pages(self, arena: Arena) -> torch.Tensor:
        """The arena as a tensor, registered with CUDA on first sight."""
        key = id(arena)
        if key not in self._registered:
            tensor = torch.from_numpy(arena.pages)
            status = torch.cuda.cudart().cudaHostRegister(tensor.data_ptr(), tensor.nbytes, 0)
            if int(status):
                raise SymphonyError(f"CUDA did not register the arena: error {int(status)}")
            self._registered[key] = tensor
        return self._registered[key]
