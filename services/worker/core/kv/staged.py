"""What the kvstore has of a turn's or a session's history."""

from dataclasses import dataclass, field, replace

from shared.blocks import BlockKey
from shared.wire.messages import KvPlace


@dataclass(frozen=True, slots=True)
class Staged:
    """The kvstore's answer: pages [layer][block] of the first blocks asked for, pinned.

    Attributes:
        generations: what each page's word must hold for its bytes to be the ones promised.
        num_from_disk: pages that come from disk first.
        epoch: connection to a kvstore that the pages belong to; another one's mean nothing.
        ready_in_ns: for each layer, when its last page was promised to be in the arena, from when
            the answer came; empty: all are there.
        source_bytes_per_s: how fast pages come into the arena lately; 0: unknown.
        num_here: its first blocks that are in the arena already, all layers.
        coming_from: where the first of the others is; None: all are here.
        heard_at_ns: when the answer came.
    """

    ticket: int
    keys: list[BlockKey]
    pages: list[list[int]]
    generations: list[list[int]]
    num_from_disk: int = 0
    epoch: int = 0
    ready_in_ns: list[int] = field(default_factory=list)
    source_bytes_per_s: float = 0.0
    num_here: int = 0
    heard_at_ns: int = 0
    coming_from: KvPlace | None = None

    @property
    def num_blocks(self) -> int:
        return len(self.keys)

    def ready_at_ns(self, layer: int) -> int:
        """When this layer's pages were promised to be in the arena; 0: they are."""
        return self.heard_at_ns + self.ready_in_ns[layer] if self.ready_in_ns else 0

    def head(self, num_blocks: int) -> "Staged":
        """The first so many of its blocks."""
        if num_blocks >= self.num_blocks:
            return self
        pages, generations = (
            [of_layer[:num_blocks] for of_layer in each] for each in (self.pages, self.generations)
        )
        return replace(self, keys=self.keys[:num_blocks], pages=pages, generations=generations)
