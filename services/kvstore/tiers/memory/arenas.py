"""Arena files of this host, one a page size, made when the first worker asks."""

import asyncio
import logging
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from services.kvstore.core.base.tier_sizes import (
    SHARED_SHARE,
    TierSizes,
    may_grow,
    num_pages_ahead,
)
from services.kvstore.tiers.memory.filling import Filling
from shared.arena import Arena
from shared.errors import NoCapacity
from shared.private import check_private
from shared.runtime.memory import measure_memory

log = logging.getLogger(__name__)

FIRST_BYTES = 64 * 1024 * 1024  # of an arena, before it is used: a fifth of a second, or less


def remove_arenas(directory: Path) -> None:
    """Remove what an earlier life left.

    Raises:
        ConfigError: the folder is not this user's alone.
    """
    check_private(directory, "SYMPHONY_ARENA_DIR")
    for pattern in ("*.arena", "*.arena.new", "*.lease"):
        for path in directory.glob(pattern):
            path.unlink(missing_ok=True)


class Arenas:
    """Arenas by page size. One is served as soon as its first pages can be used; the others come
    in the background: all of them where a setting gives their number, else as they are used. In
    the second case all arenas share the size, in equal parts, as far as the earlier ones have not
    grown beyond theirs.

    Every life of the kvstore makes new ones. A worker that mapped an earlier one keeps its mapping,
    which is not filled any more; it is answered `unknown_worker`, opens again, and maps the new.

    Attributes:
        by_page_bytes: the ones that exist; shared with the threads.
        on_grown: called in a thread: page size, and how many pages can be used now.
    """

    def __init__(self, directory: Path, sizes: TierSizes) -> None:
        self._directory = directory
        self._sizes = sizes
        self.on_grown: Callable[[int, int], None] = lambda page_bytes, num_pages: None
        self._lock = asyncio.Lock()
        self._fillings: dict[int, Filling] = {}
        self.by_page_bytes: dict[int, Arena] = {}

    async def get(self, page_bytes: int, num_layers: int) -> Arena:
        """The arena of this page size.

        Raises:
            NoCapacity: there is no room for one that is of use to a model of `num_layers`.
        """
        async with self._lock:
            if (arena := self.by_page_bytes.get(page_bytes)) is not None:
                return arena
            awaited = sum(filling.num_bytes_left for filling in self._fillings.values())
            free_bytes = max(self._free_bytes() - awaited, 0)
            share_bytes = self._share_bytes(len(self._fillings) + 1)
            num_bytes = min(share_bytes, int(free_bytes * SHARED_SHARE))
            num_pages = num_bytes // page_bytes
            if num_pages < 2 * num_layers:
                raise NoCapacity(
                    f"{self._directory} has room for {max(num_pages, 0)} arena pages of"
                    f" {page_bytes:,} bytes, a block takes {num_layers}"
                )
            path = self._directory / f"kv-{page_bytes}.arena"
            num_first = min(max(FIRST_BYTES // page_bytes, 2 * num_layers), num_pages)
            try:
                arena = await asyncio.to_thread(_make, path, num_pages, page_bytes, num_first)
            except OSError as error:
                raise NoCapacity(f"{path}: {error.strerror}") from None
            log.info("arena made", extra={"path": str(path), "num_pages": num_pages})
            for filling in self._fillings.values():
                filling.limit(share_bytes)
            self.by_page_bytes[page_bytes] = arena
            self._fillings[page_bytes] = self._fill(arena, num_first)
            return arena

    def _share_bytes(self, num_arenas: int) -> int:
        return self._sizes.arena_bytes // (1 if self._sizes.is_arena_set else num_arenas)

    def _fill(self, arena: Arena, num_first: int) -> Filling:
        on_ready = partial(self._report, arena.page_bytes)
        if self._sizes.is_arena_set:
            return Filling(arena, num_first, arena.num_pages, on_ready)
        return Filling(arena, num_first, num_pages_ahead(0, arena.page_bytes), on_ready, _may_take)

    def grow(self, page_bytes: int, num_pages: int) -> None:
        """So many pages of an arena are soon to be used."""
        self._fillings[page_bytes].grow(num_pages)

    def capacity_bytes(self, page_bytes: int) -> int:
        """What all pages of an arena may take, now or later."""
        return self._fillings[page_bytes].num_bytes_max

    def num_ready(self, page_bytes: int) -> int:
        """How many pages of an arena can be used now."""
        return self._fillings[page_bytes].num_ready

    def close(self) -> None:
        """Unmap and remove every arena, and the folder if it is then empty."""
        for filling in self._fillings.values():
            filling.stop()
        self._fillings.clear()
        for arena in self.by_page_bytes.values():
            arena.path.unlink(missing_ok=True)
            arena.close()
        self.by_page_bytes.clear()
        with suppress(OSError):
            self._directory.rmdir()

    def _report(self, page_bytes: int, num_pages: int) -> None:
        self.on_grown(page_bytes, num_pages)

    def _free_bytes(self) -> int:
        return shutil.disk_usage(self._directory).free


def _may_take(num_bytes: int) -> bool:
    return may_grow(measure_memory(), num_bytes)


def _make(path: Path, num_pages: int, page_bytes: int, num_first: int) -> Arena:
    arena = Arena.create(path, num_pages, page_bytes, num_first)
    try:
        arena.populate(0, num_first)  # now, not while a pass waits for a page
    except OSError:
        path.unlink(missing_ok=True)
        arena.close()
        raise
    return arena
