"""Copies of pages between a device's pool and the host's arena, as the mover orders them.

A copy is started and waited for apart, so that a device with copy engines of its own has several
under way, and steps wait for them on the device and not on the host.
"""

from typing import Protocol

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


class PageCopier(Protocol):
    """Copies pages between a pool and arenas. The mover's threads call `load` and `store`, each
    one of them; who launches steps calls `hold`.
    """

    def attach(self, arena: Arena) -> None:
        """Get ready for copies from and to this arena, for as long as it is in use."""
        ...

    def load(self, arena: Arena, arena_pages: list[int], pool_pages: list[int]) -> Copy:
        """Arena to pool."""
        ...

    def hold(self, copies: list[Copy]) -> None:
        """What is launched from now on runs when these loads are over."""
        ...

    def mark(self) -> object:
        """A point behind all that was launched up to now."""
        ...

    def store(
        self,
        mark: object,
        pool_pages: list[int],
        arena: Arena,
        arena_pages: list[int],
        num_tokens: int = BLOCK_TOKENS,
    ) -> Copy:
        """Pool to arena, behind `mark`. Of the pages, the first `num_tokens` tokens count; what is
        behind them may come along."""
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


class HostCopier:
    """The pool is in host memory: pages are copied at once.

    Args:
        pool: uint8 [num_pages, page_bytes].
    """

    def __init__(self, pool: Bytes) -> None:
        self._pool = pool

    def attach(self, arena: Arena) -> None:
        return None

    def load(self, arena: Arena, arena_pages: list[int], pool_pages: list[int]) -> Copy:
        for source, target in zip(arena_pages, pool_pages, strict=True):
            self._pool[target] = arena.pages[source]
        return OVER

    def hold(self, copies: list[Copy]) -> None:
        return None

    def mark(self) -> object:
        return None

    def store(
        self,
        mark: object,
        pool_pages: list[int],
        arena: Arena,
        arena_pages: list[int],
        num_tokens: int = BLOCK_TOKENS,
    ) -> Copy:
        for source, target in zip(pool_pages, arena_pages, strict=True):
            arena.pages[target] = self._pool[source]
        return OVER

    def write(self, pool_pages: list[int], data: Bytes) -> None:
        self._pool[pool_pages] = data

    def close(self) -> None:
        return None
