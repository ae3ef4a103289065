"""The arguments of an SGMV kernel: which rows run on which adapter, and where its weights lie.

``y[rows] += scale * (x[rows] A) B`` for each segment of rows of one adapter. The weights stay where
they are, in pages of the model's KV pool, cut into tiles (`shared.adapters.layout`): a kernel works
tile by tile. A page of an image begins, in block 0 of each layer, with the float32 scales of all
targets.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]

NO_ADAPTER = -1
A, B = 0, 1

# Columns of a tile's entry.
LAYER, BLOCK, OFFSET, ROW, NUM_ROWS, COLUMN, NUM_COLUMNS = range(7)
TILE_FIELDS = 7


@dataclass(frozen=True, slots=True)
class Segments:
    """Rows of one adapter that follow each other.

    Attributes:
        starts: int32 [S + 1]: rows of x where each begins; ends with their number.
        lines: int32 [S]: of the adapter tables; `NO_ADAPTER` for rows of the base model.
    """

    starts: Ints
    lines: Ints


@dataclass(frozen=True, slots=True)
class Site:
    """A place in a layer with one input and one output, to which one or more targets add.

    Attributes:
        targets: their numbers.
        columns: where in the output each of them begins.
        widths: outputs of each.
    """

    targets: tuple[int, ...]
    columns: tuple[int, ...]
    widths: tuple[int, ...]


@dataclass(slots=True)
class AdapterTables:
    """Where the weights of resident adapters lie, a line for each; grown by their owner.

    Attributes:
        pages: int32 [num_layers, lines, blocks]: pool page of each block of an image.
        ranks: int32 [lines, targets]: rows of its matrices, a multiple of 4; 0: not a target.
        num_tiles: int32 [lines, targets, 2]: of A and of B.
        tiles: int32 [lines, targets, 2, tiles_max, TILE_FIELDS]: see `shared.adapters.layout.Tile`.
    """

    pages: Ints
    ranks: Ints
    num_tiles: Ints
    tiles: Ints
