"""Tables of adapters: made empty, and grown by their owner."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kernels.sgmv.interface import TILE_FIELDS, A, AdapterTables, B, Ints

LINES_MIN, BLOCKS_MIN, TILES_MIN = 4, 2, 2

Tile = tuple[int, int, int, int, int, int, int]
"""The fields of `shared.adapters.layout.Tile`, in their order."""


def make_tables(num_layers: int, num_targets: int) -> AdapterTables:
    """Tables without adapters.

    Args:
        num_targets: of the card, outer ones too.
    """
    return AdapterTables(
        pages=np.zeros((num_layers, LINES_MIN, BLOCKS_MIN), np.int32),
        ranks=np.zeros((LINES_MIN, num_targets), np.int32),
        num_tiles=np.zeros((LINES_MIN, num_targets, 2), np.int32),
        tiles=np.zeros((LINES_MIN, num_targets, 2, TILES_MIN, TILE_FIELDS), np.int32),
    )


def enter_line(
    tables: AdapterTables,
    line: int,
    ranks: Sequence[int],
    tiles_a: Sequence[Sequence[Tile]],
    tiles_b: Sequence[Sequence[Tile]],
    pages: Sequence[Sequence[int]],
) -> None:
    """Write an adapter's line, in place of what it held; tables that are too small are doubled.

    Doubled tables are other arrays with the same in them: a kernel that runs on the old ones
    meanwhile reads what it should, as long as the line is not one of its own.

    Args:
        line: 0 or more.
        ranks: of each target, filled up to fours; 0: the adapter does not have it.
        tiles_a, tiles_b: of each target's two matrices, none where the rank is 0.
        pages: of each layer: pool page of each block of the image.
    """
    num_layers, _, _ = tables.pages.shape
    num_targets = tables.ranks.shape[1]
    assert len(pages) == num_layers
    assert len(ranks) == len(tiles_a) == len(tiles_b) == num_targets
    assert all(rank % 4 == 0 for rank in ranks), "zero rows fill ranks up to fours"
    num_tiles_max = max(map(len, (*tiles_a, *tiles_b)), default=0)
    _make_room(tables, line + 1, len(pages[0]), num_tiles_max)
    tables.pages[:, line, : len(pages[0])] = pages
    tables.ranks[line] = ranks
    for target in range(num_targets):
        for matrix, tiles in ((A, tiles_a[target]), (B, tiles_b[target])):
            tables.num_tiles[line, target, matrix] = len(tiles)
            if tiles:
                tables.tiles[line, target, matrix, : len(tiles)] = tiles


def _make_room(tables: AdapterTables, num_lines: int, num_blocks: int, num_tiles: int) -> None:
    _, lines, blocks = tables.pages.shape
    tiles = tables.tiles.shape[3]
    num_lines, num_blocks = _doubled(lines, num_lines), _doubled(blocks, num_blocks)
    num_tiles = _doubled(tiles, num_tiles)
    if (num_lines, num_blocks, num_tiles) == (lines, blocks, tiles):
        return
    num_layers, num_targets = tables.pages.shape[0], tables.ranks.shape[1]
    tables.pages = _grown(tables.pages, (num_layers, num_lines, num_blocks))
    tables.ranks = _grown(tables.ranks, (num_lines, num_targets))
    tables.num_tiles = _grown(tables.num_tiles, (num_lines, num_targets, 2))
    shape = (num_lines, num_targets, 2, num_tiles, TILE_FIELDS)
    tables.tiles = _grown(tables.tiles, shape)


def _doubled(size: int, wanted: int) -> int:
    """`size`, doubled until it is enough.

    >>> [_doubled(4, wanted) for wanted in (1, 4, 5, 17)]
    [4, 4, 8, 32]
    """
    while size < wanted:
        size *= 2
    return size


def _grown(old: npt.NDArray[np.int32], shape: tuple[int, ...]) -> Ints:
    new = np.zeros(shape, np.int32)
    new[tuple(slice(size) for size in old.shape)] = old
    return new
