"""What the kvstore has of a turn's or a session's history."""

from dataclasses import dataclass, replace

from shared.blocks import BlockKey


@dataclass(frozen=True, slots=True)
class Staged:
    """The kvstore's answer: pages [layer][block] of the first blocks asked for, pinned.

    Attributes:
        generations: what each page's word must hold for its bytes to be the ones promised.
        num_from_disk: pages that come from disk first.
        epoch: connection to a kvstore that the pages belong to; another one's mean nothing.
    """

    ticket: int
    keys: list[BlockKey]
    pages: list[list[int]]
    generations: list[list[int]]
    num_from_disk: int = 0
    epoch: int = 0

    @property
    def num_blocks(self) -> int:
        return len(self.keys)

    def head(self, num_blocks: int) -> "Staged":
        """The first so many of its blocks."""
        if num_blocks >= self.num_blocks:
            return self
        pages, generations = (
            [of_layer[:num_blocks] for of_layer in each] for each in (self.pages, self.generations)
        )
        return replace(self, keys=self.keys[:num_blocks], pages=pages, generations=generations)
