"""Copies of pages between a device's pool and the host's arena, as the mover orders them.

A copy is started and waited for apart, so that a device with copy engines of its own has several
under way, and steps wait for them on the device and not on the host.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kernels.page_sums.select import (
    PageNumbers,
    copy_pages,
    copy_pages_summed,
    page_sums,
    warm_up,
)
from services.worker.device.copying.parts import by_part
from shared.arena import Arena, Bytes
from shared.blocks import BLOCK_TOKENS


class CopyFailed(Exception):
    """The bytes of a copy are not there."""


class Copy(Protocol):
    """A copy under way."""

    def is_over(self) -> bool:
        """Whether `wait` would not wait."""
        ...

    def wait(self) -> None:
        """Return when the bytes are there.

        Raises:
            CopyFailed: they will not be.
        """
        ...


class Store(Copy, Protocol):
    """A copy from the pool under way."""

    def checksums(self) -> list[int]:
        """xxh3-64 of each stored page, once `wait` has returned."""
        ...


class PageCopier(Protocol):
    """Copies pages between a pool and arenas. The mover's threads call `load` and `store`, each
    one of them; who launches steps calls `hold`. A call takes a run of pages, and does
    nothing in Python for each of them.
    """

    def attach(self, arena: Arena) -> None:
        """Get ready for copies from and to this arena, for as long as it is in use."""
        ...

    def load(self, arena: Arena, arena_pages: PageNumbers, pool_pages: PageNumbers) -> Copy:
        """Arena to pool."""
        ...

    def hold(self, copies: list[Copy]) -> None:
        """What is launched from now on runs when these loads are over."""
        ...

    def store(
        self,
        pool_pages: PageNumbers,
        arena: Arena,
        arena_pages: PageNumbers,
        num_tokens: int = BLOCK_TOKENS,
    ) -> Store:
        """Pool to arena: what steps that have landed computed, so that no step is waited for. Of
        the pages, the first `num_tokens` tokens count; what is behind them may come along."""
        ...

    def write(self, pool_pages: list[int], data: Bytes) -> None:
        """Put bytes, uint8 ``[pages, page_bytes]``, into pages of the pool; returns when they are
        there. Called by a thread of its own."""
        ...

    def close(self) -> None:
        """Let go of all arenas: nothing is copied any more."""
        ...


class _Over:
    def is_over(self) -> bool:
        return True

    def wait(self) -> None:
        return None


OVER: Copy = _Over()  # a copy that took its time when it was started


class Stored(_Over):
    """A store that took its time when it was started."""

    def __init__(self, checksums: list[int]) -> None:
        self._checksums = checksums

    def checksums(self) -> list[int]:
        return self._checksums


@dataclass(frozen=True, slots=True, eq=False)
class SummedByHost:
    """A store whose pages the host reads once more, where no one else has seen their bytes.

    Attributes:
        pages, at: where they come to lie.
    """

    copy: Copy
    pages: Bytes
    at: PageNumbers

    def is_over(self) -> bool:
        return self.copy.is_over()

    def wait(self) -> None:
        self.copy.wait()

    def checksums(self) -> list[int]:
        return page_sums(self.pages, self.at)


class HostCopier:
    """The pool is in host memory: pages are copied at once.

    Args:
        parts: uint8 [num_pages, page_bytes] each, all of one shape; one behind the other.
    """

    def __init__(self, *parts: Bytes) -> None:
        self._parts = parts
        self._part_pages = len(parts[0])

    def attach(self, arena: Arena) -> None:
        warm_up(arena.pages)

    def load(self, arena: Arena, arena_pages: PageNumbers, pool_pages: PageNumbers) -> Copy:
        sources = np.asarray(arena_pages, np.int64)
        for part, at, pages in by_part(pool_pages, self._part_pages):
            copy_pages(self._parts[part], pages, arena.pages, sources[at])
        return OVER

    def hold(self, copies: list[Copy]) -> None:
        return None

    def store(
        self,
        pool_pages: PageNumbers,
        arena: Arena,
        arena_pages: PageNumbers,
        num_tokens: int = BLOCK_TOKENS,
    ) -> Store:
        targets, sums = np.asarray(arena_pages, np.int64), [0] * len(pool_pages)
        for part, at, pages in by_part(pool_pages, self._part_pages):
            found = copy_pages_summed(arena.pages, targets[at], self._parts[part], pages)
            for place, each in zip(at.tolist(), found, strict=True):
                sums[place] = each
        return Stored(sums)

    def write(self, pool_pages: list[int], data: Bytes) -> None:
        for part, at, pages in by_part(pool_pages, self._part_pages):
            self._parts[part][pages] = data[at]

    def close(self) -> None:
        return None
