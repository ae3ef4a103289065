"""Random LoRA adapters in the pages of a pool, for benchmarks and tests of kernels."""

from dataclasses import dataclass, field

import numpy as np
import torch

from kernels.sgmv import AdapterTables, Segments, Site, enter_line, make_tables
from shared.adapters.layout import ImageLayout, Tile, layout_image
from shared.wire.messages.adapters import LoraCard

NAN = float("nan")


@dataclass
class Weights:
    """Of one target in one layer: ``[rank, num_in]``, ``[rank, num_out]`` (transposed)."""

    a: torch.Tensor
    b: torch.Tensor
    scale: float


@dataclass
class RandomAdapters:
    """A pool of pages in a random order, and the tables of the adapters in it.

    What belongs to no adapter is NaN. Weights are real random numbers: random bits would be
    denormals as bf16, and three times as slow.

    Attributes:
        pool: ``[num_pages, elements]``.
        num_lines: adapters entered.
    """

    card: LoraCard
    dtype: torch.dtype
    num_pages: int
    seed: int = 0
    pool: torch.Tensor = field(init=False)
    tables: AdapterTables = field(init=False)
    num_lines: int = 0

    def __post_init__(self) -> None:
        card = self.card
        self._generator = torch.Generator().manual_seed(self.seed)
        self.pool = torch.full((self.num_pages, card.page_bytes // card.element_bytes), NAN)
        self.pool = self.pool.to(self.dtype)
        self.tables = make_tables(card.num_layers, len(card.targets) + len(card.outer))
        self._free = torch.randperm(self.num_pages, generator=self._generator).tolist()

    def add(self, ranks: dict[str, int]) -> dict[tuple[int, int], Weights]:
        """Enter an adapter of these ranks as the next line.

        Returns:
            its weights by layer and number of the target; outer ones are the same in every layer.
        """
        layout = layout_image(self.card, ranks)
        pages = np.array(
            [self._free.pop() for _ in range(self.card.num_layers * layout.num_blocks)]
        )
        pages = pages.reshape(self.card.num_layers, layout.num_blocks)
        weights: dict[tuple[int, int], Weights] = {}
        scales = torch.zeros(self.card.num_layers, len(layout.targets))
        for number, placed in enumerate(layout.targets):
            rank = ranks.get(placed.target.name, 0)
            if not rank:
                continue
            is_outer = number >= len(self.card.targets)
            for layer in range(self.card.num_layers):
                if layer and is_outer:
                    weights[layer, number] = weights[0, number]
                else:
                    weights[layer, number] = self._draw(
                        rank, placed.target.num_in, placed.target.num_out
                    )
                scales[layer, number] = weights[layer, number].scale
        self._write(layout, pages, weights, scales)
        enter_image(self.tables, self.num_lines, layout, pages.tolist())
        self.num_lines += 1
        return weights

    def _draw(self, rank: int, num_in: int, num_out: int) -> Weights:
        a = torch.randn(rank, num_in, generator=self._generator) * num_in**-0.5
        b = torch.randn(rank, num_out, generator=self._generator) * rank**-0.5
        scale = 0.5 + float(torch.rand((), generator=self._generator))
        return Weights(a.to(self.dtype), b.to(self.dtype), float(np.float32(scale)))

    def _write(
        self,
        layout: ImageLayout,
        pages: "np.typing.NDArray[np.int64]",
        weights: dict[tuple[int, int], Weights],
        scales: torch.Tensor,
    ) -> None:
        for layer in range(self.card.num_layers):
            header = scales[layer].view(self.dtype)
            self.pool[pages[layer, 0], : len(header)] = header
        for (layer, number), its in weights.items():
            for which, stored in (("a", its.a), ("b", its.b)):
                rank = layout.targets[number].rank
                filled = torch.zeros(rank, stored.shape[1], dtype=self.dtype)
                filled[: len(stored)] = stored
                for tile in getattr(layout.targets[number], which):
                    page = self.pool[pages[tile.layer if tile.layer >= 0 else layer, tile.block]]
                    part = filled[
                        tile.row : tile.row + tile.num_rows,
                        tile.column : tile.column + tile.num_columns,
                    ]
                    page[tile.offset : tile.offset + part.numel()] = part.flatten()


def enter_image(
    tables: AdapterTables, line: int, layout: ImageLayout, pages: list[list[int]]
) -> None:
    """`enter_line` with the tiles of a layout."""
    tiles_a = [[_fields(tile) for tile in placed.a] for placed in layout.targets]
    tiles_b = [[_fields(tile) for tile in placed.b] for placed in layout.targets]
    ranks = [placed.rank for placed in layout.targets]
    enter_line(tables, line, ranks, tiles_a, tiles_b, pages)


def _fields(tile: Tile) -> tuple[int, int, int, int, int, int, int]:
    return (
        tile.layer, tile.block, tile.offset, tile.row, tile.num_rows, tile.column, tile.num_columns
    )  # fmt: skip


def segments_of(lengths: list[tuple[int, int]]) -> Segments:
    """From (line, rows) of each segment, in their order."""
    starts = np.cumsum([0, *(rows for _, rows in lengths)])
    lines = [line for line, _ in lengths]
    return Segments(starts.astype(np.int32), np.array(lines, np.int32))


def site_of(card: LoraCard, names: list[str], gap: int = 0) -> Site:
    """Targets side by side in one output, `gap` columns apart."""
    known = [*card.targets, *card.outer]
    numbers = [next(i for i, each in enumerate(known) if each.name == name) for name in names]
    widths = [known[number].num_out for number in numbers]
    columns = [sum(widths[:i]) + i * gap for i in range(len(widths))]
    return Site(tuple(numbers), tuple(columns), tuple(widths))
