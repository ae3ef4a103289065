"""A link to the device as slow as one likes: a CPU's pool is memory as the arena is, where a GPU's
lies behind a bus. With it loads take, against this model, what they would take there.
"""

import time

from kernels.page_sums.select import PageNumbers
from services.worker.device.copying.copies import Copy, PageCopier, Store
from shared.arena import Arena, Bytes
from shared.blocks import BLOCK_TOKENS
from shared.line import Line


class _Crossing:
    """A copy whose bytes are there, and count as under way for as long as the link would take."""

    def __init__(self, copy: Copy, over_at_ns: int) -> None:
        self._copy = copy
        self._over_at_ns = over_at_ns

    def is_over(self) -> bool:
        return time.monotonic_ns() >= self._over_at_ns and self._copy.is_over()

    def wait(self) -> None:
        _sleep_until(self._over_at_ns)
        self._copy.wait()


class SlowLink:
    """A page copier whose way to the pool carries so much and no more; back it is as fast as ever.

    Args:
        bytes_per_s: above 0.
    """

    def __init__(self, copier: PageCopier, bytes_per_s: float) -> None:
        self._copier = copier
        self._line = Line(bytes_per_s)

    def attach(self, arena: Arena) -> None:
        self._copier.attach(arena)

    def load(self, arena: Arena, arena_pages: PageNumbers, pool_pages: PageNumbers) -> Copy:
        over_at_ns = self._line.send(len(pool_pages) * arena.page_bytes, time.monotonic_ns())
        return _Crossing(self._copier.load(arena, arena_pages, pool_pages), over_at_ns)

    def hold(self, copies: list[Copy]) -> None:
        self._copier.hold(copies)

    def store(
        self,
        pool_pages: PageNumbers,
        arena: Arena,
        arena_pages: PageNumbers,
        num_tokens: int = BLOCK_TOKENS,
    ) -> Store:
        return self._copier.store(pool_pages, arena, arena_pages, num_tokens)

    def write(self, pool_pages: list[int], data: Bytes) -> None:
        over_at_ns = self._line.send(data.nbytes, time.monotonic_ns())
        self._copier.write(pool_pages, data)
        _sleep_until(over_at_ns)

    def close(self) -> None:
        self._copier.close()


def _sleep_until(at_ns: int) -> None:
    if (left_ns := at_ns - time.monotonic_ns()) > 0:
        time.sleep(left_ns / 1e9)
