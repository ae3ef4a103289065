"""Page copies between a device's pool and the host's arena, of which the device addresses what is
registered with it by now. What is not goes by memory that it always addresses: later, and as right.
"""

import weakref
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kernels.page_sums.select import PageNumbers, copy_pages, warm_up
from services.worker.device.copying.copies import Copy, Store
from services.worker.device.copying.pieces import PIECE_BYTES, HostMemory, Pieces
from shared.arena import Arena, Bytes
from shared.blocks import BLOCK_TOKENS
from shared.runtime.metrics import counter

ARENA_DETOURS = counter(
    "arena_detour_pages", "Pages copied from or to pieces that it does not address", ["direction"]
)


class DeviceLink(HostMemory, Protocol):
    """Copies between the pool and host memory that the device addresses. `PageCopier` says who
    calls what.
    """

    def warm_up(self, page_bytes: int) -> None:
        """Get ready to copy such pages of the host's, so that no copy waits for it."""
        ...

    def staging(self, num_pages: int, page_bytes: int) -> Bytes:
        """Host memory of our own that the device addresses: uint8 [num_pages, page_bytes]."""
        ...

    def load(self, source: Bytes, source_pages: PageNumbers, pool_pages: PageNumbers) -> Copy:
        """Host to pool. The copy keeps `source` until it is over."""
        ...

    def hold(self, copies: list[Copy]) -> None:
        """What is launched from now on runs when these loads are over."""
        ...

    def store(
        self,
        pool_pages: PageNumbers,
        target: Bytes,
        target_pages: PageNumbers,
        num_tokens: int = BLOCK_TOKENS,
    ) -> Store:
        """Pool to host, beside steps; of the pages, the first `num_tokens` tokens count."""
        ...

    def write(self, pool_pages: list[int], data: Bytes) -> None:
        """Put bytes, uint8 ``[pages, page_bytes]``, into pages of the pool; returns when they are
        there.
        """
        ...

    def wait_idle(self) -> None:
        """Until every load and store is over."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class _ByStaging:
    """A store whose bytes are in staging memory first. Who waits for it brings them on; who does
    not, and lost the lease of the arena's pages meanwhile, has written nothing there.
    """

    store: Store
    staged: Bytes
    arena_pages: PageNumbers
    pages: Bytes

    def is_over(self) -> bool:
        return self.store.is_over()

    def wait(self) -> None:
        self.store.wait()
        copy_pages(self.pages, self.arena_pages, self.staged, np.arange(len(self.staged)))

    def checksums(self) -> list[int]:
        return self.store.checksums()


class PiecewiseCopier:
    """A `PageCopier` over such a device.

    Args:
        piece_bytes: registered at a time.
    """

    def __init__(self, link: DeviceLink, piece_bytes: int = PIECE_BYTES) -> None:
        self._link = link
        self._piece_bytes = piece_bytes
        self._pieces: weakref.WeakKeyDictionary[Arena, Pieces] = weakref.WeakKeyDictionary()

    def attach(self, arena: Arena) -> None:
        warm_up(arena.pages)
        self._link.warm_up(arena.page_bytes)
        pieces = self._pieces[arena] = Pieces(arena, self._link, self._piece_bytes)
        finalizer = weakref.finalize(arena, pieces.let_go)
        finalizer.atexit = False  # of a process that ends the system takes everything back

    def wait_registered(self, arena: Arena) -> None:
        """Until this arena is as fast as it becomes: to measure it."""
        self._pieces[arena].wait()

    def load(self, arena: Arena, arena_pages: PageNumbers, pool_pages: PageNumbers) -> Copy:
        if self._pieces[arena].have(arena_pages):
            return self._link.load(arena.pages, arena_pages, pool_pages)
        ARENA_DETOURS.labels("load").inc(len(arena_pages))
        staged = self._link.staging(len(arena_pages), arena.page_bytes)
        numbers = np.arange(len(arena_pages))
        copy_pages(staged, numbers, arena.pages, arena_pages)
        return self._link.load(staged, numbers, pool_pages)

    def hold(self, copies: list[Copy]) -> None:
        self._link.hold(copies)

    def store(
        self,
        pool_pages: PageNumbers,
        arena: Arena,
        arena_pages: PageNumbers,
        num_tokens: int = BLOCK_TOKENS,
    ) -> Store:
        if self._pieces[arena].have(arena_pages):
            return self._link.store(pool_pages, arena.pages, arena_pages, num_tokens)
        ARENA_DETOURS.labels("store").inc(len(arena_pages))
        staged = self._link.staging(len(arena_pages), arena.page_bytes)
        store = self._link.store(pool_pages, staged, np.arange(len(staged)), num_tokens)
        return _ByStaging(store, staged, arena_pages, arena.pages)

    def write(self, pool_pages: list[int], data: Bytes) -> None:
        self._link.write(pool_pages, data)

    def close(self) -> None:
        self._link.wait_idle()
        for pieces in list(self._pieces.values()):
            pieces.close()
