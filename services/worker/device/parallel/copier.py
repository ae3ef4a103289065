"""Copies of pages that lie in slices: each rank copies its own, from and to the same arena."""

from pathlib import Path
from typing import Protocol

import numpy as np

from kernels.page_sums.select import PageNumbers, page_sums, warm_up
from services.worker.device.copying.copies import OVER, Copy, CopyFailed, Store, Stored
from shared.arena import Arena, ArenaError, Bytes
from shared.blocks import BLOCK_TOKENS

Order = tuple[str, tuple[object, ...]]
"""A method of a rank's `Slices`, and its arguments."""


class Slices:
    """A rank's pool, and its part of an arena's pages.

    Args:
        pool: uint8 ``[num_pages, page_bytes]``: of its slices.
    """

    def __init__(self, pool: Bytes, rank: int) -> None:
        self._pool = pool
        width = pool.shape[1]
        self._part = slice(rank * width, (rank + 1) * width)
        self._arena: Arena | None = None

    def do(self, order: Order) -> bool:
        """Carry an order out; False: it cannot be."""
        name, arguments = order
        done: bool = getattr(self, name)(*arguments)
        return done

    def attach(self, path: str, identity: tuple[int, int]) -> bool:
        """Map an arena in place of the last one."""
        if self._arena is not None:
            self._arena.close()
        try:
            self._arena = Arena.attach(Path(path))
        except (ArenaError, OSError):
            self._arena = None
        return self._pages(identity) is not None

    def load(
        self, identity: tuple[int, int], arena_pages: PageNumbers, pool_pages: PageNumbers
    ) -> bool:
        """Arena to pool."""
        if (pages := self._pages(identity)) is None:
            return False
        self._pool[pool_pages] = pages[arena_pages]
        return True

    def store(
        self, identity: tuple[int, int], arena_pages: PageNumbers, pool_pages: PageNumbers
    ) -> bool:
        """Pool to arena."""
        if (pages := self._pages(identity)) is None:
            return False
        pages[arena_pages] = self._pool[pool_pages]
        return True

    def write(self, pool_pages: list[int], data: Bytes) -> bool:
        """Bytes, uint8 ``[pages, page_bytes]``, to pool."""
        self._pool[pool_pages] = data
        return True

    def _pages(self, identity: tuple[int, int]) -> Bytes | None:
        """This rank's part of an arena's pages; None: another one is mapped here, or none."""
        if self._arena is None or self._arena.identity != identity:
            return None
        part: Bytes = self._arena.pages[:, self._part]
        return part


class CopyingRanks(Protocol):
    """All ranks but the first."""

    @property
    def num_ranks(self) -> int: ...

    def copy(self, own: Slices, orders: list[Order]) -> bool:
        """Have each rank carry its order out, the first one's slices with them.

        Raises:
            RankLost: a rank does not answer.
        """
        ...


class _Failed:
    """A copy that was not made by all ranks."""

    def is_over(self) -> bool:
        return True

    def wait(self) -> None:
        raise CopyFailed("a rank has not copied its slice")


class RanksCopier:
    """Copies whole pages, as `PageCopier` does, once all ranks have copied their slices.

    Args:
        own: the first rank's.
    """

    def __init__(self, own: Slices, ranks: CopyingRanks) -> None:
        self._own = own
        self._ranks = ranks

    def attach(self, arena: Arena) -> None:
        warm_up(arena.pages)
        self._all("attach", str(arena.path), arena.identity)

    def load(self, arena: Arena, arena_pages: PageNumbers, pool_pages: PageNumbers) -> Copy:
        numbers = np.asarray(arena_pages, np.int64), np.asarray(pool_pages, np.int64)
        return OVER if self._all("load", arena.identity, *numbers) else _Failed()

    def hold(self, copies: list[Copy]) -> None:
        return None

    def store(
        self,
        pool_pages: PageNumbers,
        arena: Arena,
        arena_pages: PageNumbers,
        num_tokens: int = BLOCK_TOKENS,
    ) -> Store:
        numbers = np.asarray(arena_pages, np.int64), np.asarray(pool_pages, np.int64)
        if not self._all("store", arena.identity, *numbers):
            raise CopyFailed("a rank has not stored its slice")
        return Stored(page_sums(arena.pages, arena_pages))

    def write(self, pool_pages: list[int], data: Bytes) -> None:
        parts = np.split(data, self._ranks.num_ranks, axis=1)
        done = self._ranks.copy(
            self._own, [("write", (pool_pages, np.ascontiguousarray(part))) for part in parts]
        )
        assert done, "it cannot be refused"

    def close(self) -> None:
        return None

    def _all(self, name: str, *arguments: object) -> bool:
        return self._ranks.copy(self._own, [(name, arguments)] * self._ranks.num_ranks)
