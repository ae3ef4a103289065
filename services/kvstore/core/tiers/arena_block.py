"""A block as the arena holds it."""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from services.kvstore.core.base.arrived import Arrived
from services.kvstore.core.tiers.source import Source
from shared.blocks import NO_PARENT, BlockKey
from shared.eviction import UNKNOWN_KIND
from shared.owners import NO_OWNER, OwnerKey

NO_PAGE = -1
NO_LAYER = -1


class Announced(NamedTuple):
    """What the disk and other hosts get of a block beside its pages: in arrays, which take a
    quarter of what lists do.

    Attributes:
        tokens: int32.
        checksums: xxh3-64 of the page of each layer, uint64.
        is_saved: it came from the object store.
    """

    fingerprint: str
    tokens: "array[int]"
    checksums: "array[int]"
    is_saved: bool = False


@dataclass(slots=True, eq=False)
class ArenaBlock:
    """A block with pages in the arena, perhaps not of every layer.

    Attributes:
        pages: arena page of each layer, `NO_PAGE` where there is none; changed by the methods only.
        generations: under which each page was given to this block.
        num_present: layers that have a page.
        depth: how many blocks precede it in its sequence, as far as known.
        source: where layers that are not here come from.
        owner: the session that made it.
        parent: key of the block before it.
        arrived: what the peer that it comes from said of it; None: it comes from this host.
        announced: by the worker or the peer that gave it whole; None: it was read from the disk.
        queued: layers waiting for the loader.
        kind: of the most urgent stage that waits for those (`shared.wire.urgency`).
        in_flight: layers that the loader is filling.
        num_pins: tickets that hold it.
        goes_whole: while it is idle: all its pages go at once.
        return_kind: of the sequence that it was last used in, as `shared.eviction` has it.
        is_writing: the writer still reads its pages.
        is_alive: False once forgotten; its pages stay while they are read or filled.
    """

    block_id: int
    key: BlockKey
    page_bytes: int
    pages: list[int]
    generations: list[int]
    num_present: int
    depth: int
    used_at_ns: int
    source: Source
    owner: OwnerKey = NO_OWNER
    parent: BlockKey = NO_PARENT
    arrived: Arrived | None = None
    announced: Announced | None = None
    queued: set[int] = field(default_factory=set)
    in_flight: set[int] = field(default_factory=set)
    kind: int = 0
    num_pins: int = 0
    goes_whole: bool = False
    return_kind: int = UNKNOWN_KIND
    is_writing: bool = False
    is_alive: bool = True

    @property
    def num_layers(self) -> int:
        return len(self.pages)

    @property
    def num_missing(self) -> int:
        """Layers that lack a page."""
        return len(self.pages) - self.num_present

    @property
    def is_whole(self) -> bool:
        """Every layer's bytes are in the arena."""
        return self.num_present == len(self.pages) and not (self.queued or self.in_flight)

    @property
    def is_coming(self) -> bool:
        """Some of it is loading."""
        return bool(self.queued or self.in_flight)

    @property
    def is_idle(self) -> bool:
        """Its pages are neither read nor filled."""
        return not (self.num_pins or self.is_writing or self.queued or self.in_flight)

    @property
    def present(self) -> list[int]:
        """The pages it has, lowest layer first."""
        if self.num_present == len(self.pages):
            return list(self.pages)
        return [page for page in self.pages if page != NO_PAGE]

    def highest_layer(self, below: int) -> int:
        """The highest layer below this one that has a page; there is one."""
        layer = below - 1
        while self.pages[layer] == NO_PAGE:
            layer -= 1
        return layer

    def fill(self, pages: list[int], generations: list[int]) -> list[int]:
        """Take one page for each layer that lacks one; returns those layers."""
        if not self.num_present:
            lacking = list(range(len(self.pages)))
            self.pages, self.generations = pages, generations
        else:
            lacking = [layer for layer, page in enumerate(self.pages) if page == NO_PAGE]
            for layer, page, generation in zip(lacking, pages, generations, strict=True):
                self.pages[layer] = page
                self.generations[layer] = generation
        self.num_present = len(self.pages)
        return lacking

    def strip_highest(self, layer: int) -> int:
        """Leave the page of this layer, the highest that has one; returns the next highest, or
        `NO_LAYER`.
        """
        pages = self.pages
        pages[layer] = NO_PAGE
        self.num_present -= 1
        if not self.num_present:
            return NO_LAYER
        layer -= 1
        while pages[layer] == NO_PAGE:
            layer -= 1
        return layer

    def strip(self, layers: Iterable[int]) -> list[int]:
        """Leave the pages of these layers, as far as it has them; returns them."""
        left: list[int] = []
        for layer in layers:
            if (page := self.pages[layer]) != NO_PAGE:
                self.pages[layer] = NO_PAGE
                left.append(page)
        self.num_present -= len(left)
        return left

    def strip_all(self) -> list[int]:
        """Leave every page; returns them, lowest layer first."""
        left = self.present
        self.pages = [NO_PAGE] * len(self.pages)
        self.num_present = 0
        return left
