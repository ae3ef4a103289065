"""Page copies between a CUDA pool and host memory, on streams of their own.

Host memory that is registered with CUDA the GPU reads and writes itself, at the link's speed and
beside the host; `piecewise_copier.py` says what becomes of the rest.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kernels.page_copy import PageNumbers, copy_numbered, copy_pages, on_device
from kernels.page_sums.xxh3 import LENGTH_MIN
from kernels.triton_kernels import triton_kernels
from services.worker.device.copying.copies import (
    Copy,
    CopyFailed,
    Store,
    SummedByHost,
)
from services.worker.device.copying.parts import by_part
from services.worker.device.copying.piecewise_copier import PiecewiseCopier
from shared.arena import Bytes, Pages
from shared.blocks import BLOCK_TOKENS
from shared.errors import SymphonyError


@dataclass(frozen=True, slots=True, eq=False)
class CudaCopy:
    """Pages under way; `event` is behind them on their stream, `memory` is the host's side."""

    event: torch.cuda.Event
    memory: Bytes

    def is_over(self) -> bool:
        return bool(self.event.query())

    def wait(self) -> None:
        try:
            self.event.synchronize()
        except RuntimeError as error:
            raise CopyFailed(str(error)) from error


@dataclass(frozen=True, slots=True, eq=False)
class CudaStore(CudaCopy):
    """Attributes:
    sums: int64 [pages], pinned: the bits of the checksums that the device finds.
    """

    sums: torch.Tensor

    def checksums(self) -> list[int]:
        found: list[int] = self.sums.numpy().view(np.uint64).tolist()
        return found


@dataclass(frozen=True, slots=True, eq=False)
class JoinedStores:
    """Stores of one call, one behind the other on their stream: which pages each has of it."""

    stores: list[tuple[Pages, Store]]

    def is_over(self) -> bool:
        return self.stores[-1][1].is_over()

    def wait(self) -> None:
        for _, store in self.stores:
            store.wait()

    def checksums(self) -> list[int]:
        found = {
            place: each
            for at, store in self.stores
            for place, each in zip(at.tolist(), store.checksums(), strict=True)
        }
        return [found[place] for place in range(len(found))]


class CudaLink:
    """A `DeviceLink` to a pool in device memory.

    Args:
        parts: of the pool, one behind the other: ``[num_pages, ...]``, contiguous, of one shape, on
            a CUDA device.
        compute: the stream that steps are launched on.
    """

    def __init__(self, parts: Sequence[torch.Tensor], compute: torch.cuda.Stream) -> None:
        self._parts = [part.view(torch.uint8).flatten(1) for part in parts]
        self._device = device = self._parts[0].device
        self._compute = compute
        self._loads = torch.cuda.Stream(device, priority=-1)  # a pass waits for them
        self._stores = torch.cuda.Stream(device)
        self._sums = torch.cuda.Stream(device)
        self._writes = torch.cuda.Stream(device)

    def register(self, memory: Bytes) -> None:
        with torch.cuda.device(self._device):
            status = torch.cuda.cudart().cudaHostRegister(memory.ctypes.data, memory.nbytes, 0)
        if int(status):
            raise SymphonyError(f"CUDA did not register host memory: error {int(status)}")

    def unregister(self, memory: Bytes) -> None:
        torch.cuda.cudart().cudaHostUnregister(memory.ctypes.data)

    def warm_up(self, page_bytes: int) -> None:
        """Compile the kernels, on a page of its own."""
        host = self.staging(1, page_bytes)
        with torch.cuda.stream(self._stores):
            page = torch.zeros((1, page_bytes), dtype=torch.uint8, device=self._device)
            self._store(host, [0], page, [0]).wait()
            copy_pages(page, [0], *from_first(host, [0]))
        self._stores.synchronize()

    def staging(self, num_pages: int, page_bytes: int) -> Bytes:
        memory: Bytes = pinned((num_pages, page_bytes), torch.uint8).numpy()
        return memory

    def load(self, source: Bytes, source_pages: PageNumbers, pool_pages: PageNumbers) -> Copy:
        numbers = np.asarray(source_pages, np.int64)
        with torch.cuda.stream(self._loads):
            for part, at, pages in self._by_part(pool_pages):
                copy_pages(part, pages, *from_first(source, numbers[at]))
        return self._copy(self._loads, source)

    def hold(self, copies: list[Copy]) -> None:
        for copy in copies:
            assert isinstance(copy, CudaCopy)
            self._compute.wait_event(copy.event)

    def store(
        self,
        pool_pages: PageNumbers,
        target: Bytes,
        target_pages: PageNumbers,
        num_tokens: int = BLOCK_TOKENS,
    ) -> Store:
        numbers = np.asarray(target_pages, np.int64)
        with torch.cuda.stream(self._stores):
            stores = [
                (at, self._store(target, numbers[at], part, pages))
                for part, at, pages in self._by_part(pool_pages)
            ]
        return stores[0][1] if len(stores) == 1 else JoinedStores(stores)

    def write(self, pool_pages: list[int], data: Bytes) -> None:
        with torch.cuda.stream(self._writes):
            for part, at, pages in self._by_part(pool_pages):
                numbers = torch.tensor(pages, device=self._device)
                part[numbers] = torch.from_numpy(data[at]).to(self._device)
        self._writes.synchronize()

    def _by_part(self, pool_pages: PageNumbers) -> Iterator[tuple[torch.Tensor, Pages, Pages]]:
        for number, at, pages in by_part(pool_pages, len(self._parts[0])):
            yield self._parts[number], at, pages

    def wait_idle(self) -> None:
        self._loads.synchronize()
        self._stores.synchronize()

    def _store(
        self, target: Bytes, target_pages: PageNumbers, source: torch.Tensor, pages: PageNumbers
    ) -> Store:
        """Pages of device memory to the host, on the stream of stores, and beside that what they
        sum up to: it takes a little of the device, and would take the link's time."""
        memory, to = from_first(target, target_pages)
        numbers = on_device(source.device, to, pages)
        kernels = triton_kernels("page_sums", source.device)
        if kernels is None or source.shape[1] < LENGTH_MIN:
            copy_numbered(memory, source, numbers)
            return SummedByHost(self._copy(self._stores, target), target, target_pages)
        sums = pinned((len(to),), torch.int64)
        self._sums.wait_stream(self._stores)
        with torch.cuda.stream(self._sums):
            kernels.page_sums(source, numbers[1], sums)
        copy_numbered(memory, source, numbers)
        self._stores.wait_stream(self._sums)  # what is freed here is used again behind both
        return CudaStore(_end(self._stores), target, sums)

    def _copy(self, stream: torch.cuda.Stream, memory: Bytes) -> Copy:
        return CudaCopy(_end(stream), memory)


def pinned(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Memory of the host's that the device addresses."""
    return torch.empty(shape, dtype=dtype, pin_memory=True)


def _end(stream: torch.cuda.Stream) -> torch.cuda.Event:
    event = torch.cuda.Event(blocking=True)  # who waits for it leaves its core to others
    event.record(stream)
    return event


def from_first(memory: Bytes, pages: PageNumbers) -> tuple[torch.Tensor, Pages]:
    """The same pages of memory that begins with the first of them: who launches a kernel looks
    whether the device addresses where its memory begins, and an arena may not be registered there.
    """
    numbers = np.asarray(pages, np.int64)
    first = int(numbers.min())
    return torch.from_numpy(memory[first:]), numbers - first


def cuda_copier(pool: torch.Tensor, compute: torch.cuda.Stream) -> PiecewiseCopier:
    """A `PageCopier` for a pool in device memory, in one part; arguments as of `CudaLink`."""
    return PiecewiseCopier(CudaLink([pool], compute))
