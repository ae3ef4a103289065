"""Where a server of pages takes them from, without copying: the map of a slab, and what is in the
arena and not on disk yet.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from services.kvstore.peers.stream import Parts
from services.kvstore.tiers.disk import BlockReader, BlockRecord, BlockStore, DiskDamaged
from services.kvstore.tiers.values import ValueHeader, pack_header
from shared.arena import Bytes
from shared.blocks import BlockKey


@dataclass(frozen=True, slots=True)
class SourcePage:
    """A page to send.

    Attributes:
        parts: its value (`values.py`): header and page, in memory that stays.
        is_valid: for a page that may be given to another purpose meanwhile: asked when it has been
            sent, whether it was the page all the time.
    """

    parts: Parts
    is_valid: Callable[[], bool] | None = None


class Pages(Protocol):
    """What a source holds at one moment."""

    def find(self, key: BlockKey, layer: int, page_bytes: int) -> SourcePage | None:
        """The page of this block and layer, None unless there is one of this size. What it leads to
        is valid until the snapshot ends.
        """
        ...


class PageSource(Protocol):
    """Where pages are; many threads ask at a time."""

    def open(self) -> AbstractContextManager[Pages]:
        """A snapshot, which is not kept for long.

        Raises:
            DiskFailed: at the beginning or while it is used.
        """
        ...


@dataclass(frozen=True, slots=True)
class ArenaPage:
    """A page in the arena.

    Attributes:
        page: uint8 [page_bytes].
        header: what goes before it.
        is_valid: whether its word has been unchanged since it was found.
    """

    page: Bytes
    header: ValueHeader
    is_valid: Callable[[], bool]


FindInArena = Callable[[BlockKey, int], ArenaPage | None]


class DiskSource:
    """What is on disk, and before that what `find_in_arena` knows of.

    Args:
        damaged: called when the database cannot be used, in the thread that found it so.
        find_in_arena: by key and layer; asked in many threads at a time.
    """

    def __init__(
        self,
        disk: BlockStore,
        damaged: Callable[[DiskDamaged], None],
        find_in_arena: FindInArena = lambda key, layer: None,
    ) -> None:
        self._disk = disk
        self._damaged = damaged
        self._find_in_arena = find_in_arena

    @contextmanager
    def open(self) -> Iterator[Pages]:
        try:
            with self._disk.read() as reader:
                yield _Snapshot(reader, self._find_in_arena)
        except DiskDamaged as error:
            self._damaged(error)
            raise


FindPart = Callable[[BlockKey, int, int], SourcePage | None]
"""As `Pages.find`, of what is no page of KV; asked in many threads at a time."""


class WithParts:
    """A `PageSource` of another one's pages, and of what `find_part` finds."""

    def __init__(self, source: PageSource, find_part: FindPart) -> None:
        self._source = source
        self._find_part = find_part

    @contextmanager
    def open(self) -> Iterator[Pages]:
        with self._source.open() as pages:
            yield _PagesAndParts(pages, self._find_part)


@dataclass(frozen=True, slots=True)
class _PagesAndParts:
    pages: Pages
    find_part: FindPart

    def find(self, key: BlockKey, layer: int, page_bytes: int) -> SourcePage | None:
        found = self.pages.find(key, layer, page_bytes)
        return self.find_part(key, layer, page_bytes) if found is None else found


class _Snapshot:
    def __init__(self, reader: BlockReader, find_in_arena: FindInArena) -> None:
        self._reader = reader
        self._find_in_arena = find_in_arena

    def find(self, key: BlockKey, layer: int, page_bytes: int) -> SourcePage | None:
        if (found := self._find_in_arena(key, layer)) is not None:
            if found.header.page_bytes != page_bytes:
                return None
            return SourcePage([pack_header(found.header), found.page.data], found.is_valid)
        stored = self._reader.page(key, layer)
        if stored is None or stored.record.page_bytes != page_bytes:
            return None
        return SourcePage([header_of(stored.record, layer), stored.page])


def header_of(record: BlockRecord, layer: int) -> bytes:
    """What goes before a page of this block and layer (`values.py`)."""
    header = ValueHeader(
        record.key, record.parent, record.fingerprint, layer, record.num_layers,
        record.page_bytes, record.created_s, record.tokens, record.checksums[layer], record.owner,
    )  # fmt: skip
    return pack_header(header)
