"""An adapter's weights out of the pages, as tensors: for implementations that are made of torch's
products, and for tests."""

import torch

from kernels.sgmv.interface import (
    BLOCK,
    COLUMN,
    LAYER,
    NUM_COLUMNS,
    NUM_ROWS,
    OFFSET,
    ROW,
    AdapterTables,
)

SCALE_BYTES = 4


def matrix(
    pool: torch.Tensor,
    layer: int,
    tables: AdapterTables,
    line: int,
    target: int,
    which: int,
    out: torch.Tensor,
) -> None:
    """Write one of a target's matrices into `out`.

    Args:
        pool: ``[num_pages, elements]``.
        which: `A` or `B`.
        out: ``[rank, columns]`` of any dtype, on the pool's device.
    """
    count = tables.num_tiles[line, target, which]
    for tile in tables.tiles[line, target, which, :count].tolist():
        own = tile[LAYER] if tile[LAYER] >= 0 else layer
        page = pool[int(tables.pages[own, line, tile[BLOCK]])]
        rows, columns = tile[NUM_ROWS], tile[NUM_COLUMNS]
        stored = page[tile[OFFSET] : tile[OFFSET] + rows * columns].view(rows, columns)
        out[tile[ROW] : tile[ROW] + rows, tile[COLUMN] : tile[COLUMN] + columns] = stored


def scales(pool: torch.Tensor, layer: int, tables: AdapterTables, line: int) -> torch.Tensor:
    """float32 ``[num_targets]`` of an adapter in a layer, on the pool's device.

    Args:
        pool: ``[num_pages, elements]``.
    """
    num_elements = tables.ranks.shape[1] * SCALE_BYTES // pool.element_size()
    header = pool[int(tables.pages[layer, line, 0]), :num_elements]
    return header.clone().view(torch.float32)  # a page may begin where no float32 may
