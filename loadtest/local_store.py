"""A kvstore of one arena within the process: it keeps what is committed and stages what it has."""

from pathlib import Path

from services.worker.core.effects import BlockWrite
from services.worker.core.kv.staged import Staged
from shared.arena import Arena, PageState
from shared.blocks import BlockKey

GENERATION = 1
EPOCH = 1


class LocalStore:
    """Args:
    folder: for the arena's file; on /dev/shm, as in a deployment.
    """

    def __init__(self, folder: Path, num_pages: int, page_bytes: int) -> None:
        self.arena = Arena.create(folder / "bench-arena", num_pages, page_bytes)
        self._free = list(range(num_pages))
        self._pages: dict[BlockKey, list[int]] = {}  # of each layer
        self._num_stages = 0

    @property
    def has_room(self) -> bool:
        """Whether pages can be leased."""
        return bool(self._free)

    def lease(self, num_pages: int) -> list[int]:
        """Pages to write into, as far as there are any."""
        num_given = min(num_pages, len(self._free))
        return [self._free.pop() for _ in range(num_given)]

    def give_back(self, pages: list[int]) -> None:
        """Leased pages that were not used."""
        self._free += pages

    def commit(self, writes: list[BlockWrite]) -> None:
        """Take blocks over."""
        for write in writes:
            self._pages[write.key] = write.arena_pages
            for page in write.arena_pages:
                self.arena.set_word(page, GENERATION, PageState.READY)

    def stage(self, keys: list[BlockKey]) -> Staged:
        """What it has of the first of these blocks."""
        self._num_stages += 1
        known: list[BlockKey] = []
        for key in keys:
            if key not in self._pages:
                break
            known.append(key)
        blocks = [self._pages[key] for key in known]
        pages = [list(layer) for layer in zip(*blocks, strict=True)]
        generations = [[GENERATION] * len(known) for _ in pages]
        return Staged(self._num_stages, known, pages, generations, epoch=EPOCH)

    def close(self) -> None:
        """Remove the arena's file."""
        self.arena.path.unlink(missing_ok=True)
