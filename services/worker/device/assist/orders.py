"""What helpers get: once, what they work for; with each pass, whose images it runs on; and
with each order, which rows.
"""

from dataclasses import dataclass
from pathlib import Path

import torch

from kernels.sgmv.interface import Site
from shared.wire.messages.adapters import LoraCard, LoraTarget

PASSES_AHEAD = 2  # a step, and the next one that is launched before it is over


@dataclass(frozen=True, slots=True)
class AssistedImage:
    """An adapter's image in the arena.

    Attributes:
        ranks: of each target that it has, by name.
        pages: ``[layer][block]``, of the arena.
        generations: ``[layer][block]``: under which the bytes in each page were promised.
        epoch: of the connection that they were promised on.
    """

    adapter_hash: str
    ranks: dict[str, int]
    pages: list[list[int]]
    generations: list[list[int]]
    epoch: int


@dataclass(frozen=True, slots=True)
class Spec:
    """What a helper works for.

    Attributes:
        dtype: of the model, and of its pages.
        sites: by the numbers that orders call them by.
        tokens_max: rows of an order.
        rows_max: of one core; None: the helper is to measure it.
        is_streamed: orders are given by a device's stream, and the host is ahead of it.
    """

    card: LoraCard
    dtype: torch.dtype
    sites: tuple[Site, ...]
    tokens_max: int
    rows_max: int | None = None
    is_streamed: bool = False

    def num_in(self, site: int) -> int:
        """Columns of a site's input."""
        return self._targets[self.sites[site].targets[0]].num_in

    def num_out(self, site: int) -> int:
        """Columns of a site's output."""
        its = self.sites[site]
        return max(column + width for column, width in zip(its.columns, its.widths, strict=True))

    @property
    def in_bytes(self) -> int:
        """Of the inputs of the largest order."""
        widest = max(map(self.num_in, range(len(self.sites))))
        return self.tokens_max * widest * self.dtype.itemsize

    @property
    def out_bytes(self) -> int:
        """Of what the largest order gives, in float32."""
        return self.tokens_max * max(map(self.num_out, range(len(self.sites)))) * 4

    @property
    def passes_max(self) -> int:
        """That may be in flight at once."""
        return PASSES_AHEAD if self.is_streamed else 1

    @property
    def orders_max(self) -> int:
        """That may be in flight at once: all of some passes, or one."""
        of_pass = len(self.sites) * self.card.num_layers
        return self.passes_max * of_pass if self.is_streamed else 1

    @property
    def _targets(self) -> tuple[LoraTarget, ...]:
        return (*self.card.targets, *self.card.outer)


@dataclass(frozen=True, slots=True)
class ArenaFile:
    """Which arena: where a kvstore has made another one meanwhile, the path leads to that.

    Attributes:
        identity: of the file: its device and inode.
    """

    epoch: int
    path: Path
    identity: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Pass:
    """Attributes:
    images: by line.
    """

    arena: ArenaFile
    images: dict[int, AssistedImage]
