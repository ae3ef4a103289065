"""SGMV on a CUDA device (Triton).

Nothing here reads a device tensor on the host, and no launch depends on what one holds: it can be
recorded in a CUDA graph and replayed with other segments, adapters and tables in the same tensors.

Two kernels, as in Punica. *Shrink* is cut over groups of 16 rank rows and, because these are few,
over the inputs (split-K): each share writes its sums of ``x A`` into a float32 buffer of its own,
so that results are the same every time. *Expand* adds the shares up, multiplies with the scale and
is cut over the outputs. A program has up to 16 rows of a segment. One row alone is multiplied and
summed without the matrix units: a batch of different adapters has nothing to share. More rows use
them, ``x A`` in three parts of tf32 where weights are bf16 or fp16, so that it keeps its precision.

Bounds, with s bytes an element, rank r, n rows of one adapter: ``r (in + out) s`` bytes of weights
and ``2 n r (in + out)`` operations, so ``2 n / s`` operations a byte: bound by bandwidth for all
decodes. The buffer is ``4 r`` bytes a row and share, written and read once.
"""

from functools import cache

import torch
import triton
import triton.language as tl

from kernels.packed_tiles import find_tile, padded
from kernels.sgmv.device import DeviceAdapterTables, DeviceSegments
from kernels.sgmv.interface import Site

# Fields of a tile, and matrices, as the kernels read them: see `interface`.
_LAYER, _BLOCK, _OFFSET = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
_ROW, _NUM_ROWS = tl.constexpr(3), tl.constexpr(4)
_COLUMN, _NUM_COLUMNS, _FIELDS = tl.constexpr(5), tl.constexpr(6), tl.constexpr(7)

ROWS = 16  # of a program: what the matrix units take at least
RANKS = 16  # rank rows that are multiplied at once, likewise
INPUTS = 128  # of a step of shrink: a line of each rank row is 256 bytes of bf16
OUTPUTS = 128  # of a program of expand
SPLITS_MAX = 8
SHARE_MIN = 512  # inputs of a share at least: below, the buffer costs more than company brings


def supports(x: torch.Tensor) -> bool:
    """Whether these kernels take tensors like `x`."""
    return x.dtype in (torch.bfloat16, torch.float16, torch.float32)


def add_lora_triton(
    x: torch.Tensor,
    y: torch.Tensor,
    pool: torch.Tensor,
    layer: int,
    site: Site,
    segments: DeviceSegments,
    tables: DeviceAdapterTables,
) -> None:
    """As `select.add_lora`, for segments and tables on the device.

    Args:
        x, y: last dimension contiguous; rows may lie apart.
        pool: ``[num_pages, ...]``, contiguous, same dtype.
    """
    assert x.dtype == y.dtype == pool.dtype and supports(x)
    assert x.stride(1) == 1 and y.stride(1) == 1 and pool.is_contiguous()
    num_rows, num_in = x.shape
    num_segments = len(segments.lines)
    if not num_rows or not num_segments:
        return
    num_splits = max(1, min(SPLITS_MAX, num_in // SHARE_MIN))
    # Tiles of rows: those that are full, and one of each segment that may not be.
    num_tiles = num_rows // ROWS + num_segments
    rank_tiles = -(-tables.rank_max // RANKS)
    places = _places(site, x.device)
    shape = (num_splits, len(site.targets), num_rows, rank_tiles * RANKS)
    shrunk = torch.empty(shape, dtype=torch.float32, device=x.device)
    halves = pool.view(-1).view(torch.int16)  # in which scales are read
    # The interpreter keeps bf16 as its bits, and would multiply those.
    widen = _is_interpreted() and x.dtype == torch.bfloat16
    cut = {
        "tile_rows": ROWS, "tile_ranks": RANKS, "num_splits": num_splits,
        "segments_padded": padded(num_segments),
        "widen": widen, "enable_fp_fusion": True,
    }  # fmt: skip
    known = (
        tables.pages[layer:], places, segments.starts, segments.lines, tables.pages, tables.ranks,
        tables.num_tiles, tables.tiles, pool[0].numel(), len(site.targets), num_rows,
        *tables.pages.shape[1:], tables.ranks.shape[1], tables.tiles.shape[3],
    )  # fmt: skip
    _shrink_kernel[(num_tiles, num_splits * rank_tiles, len(site.targets))](
        x, pool, shrunk, *known, x.stride(0), num_in, num_segments, rank_tiles,
        tile_inputs=INPUTS, num_warps=4, num_stages=3, **cut,
    )  # fmt: skip
    output_tiles = -(-max(site.widths) // OUTPUTS)
    _expand_kernel[(num_tiles, output_tiles, len(site.targets))](
        y, pool, halves, shrunk, *known, y.stride(0), num_segments, rank_tiles,
        tile_outputs=OUTPUTS, num_warps=4, num_stages=3, **cut,
    )  # fmt: skip


@cache
def _places(site: Site, device: torch.device) -> torch.Tensor:
    """Targets, columns and widths; made by the first launch, so before any is recorded."""
    numbers = [site.targets, site.columns, site.widths]
    return torch.tensor(numbers, dtype=torch.int32, device=device)


def _is_interpreted() -> bool:
    """Whether TRITON_INTERPRET was set when this module was imported."""
    return not isinstance(_shrink_kernel, triton.JITFunction)


# Other numbers, or tensors of numbers that begin elsewhere (one layer's pages), are no reason to
# compile again.
_NUMBERS = [
    "page_size", "num_targets", "num_rows", "lines_max", "blocks_max", "targets_max", "tiles_max",
    "num_segments", "rank_tiles",
]  # fmt: skip
_TABLES = ["layer_pages", "places", "starts", "lines", "pages", "ranks", "num_tiles", "tiles"]


@triton.jit
def _rows(starts, num_segments, tile_rows: tl.constexpr, segments_padded: tl.constexpr):  # type: ignore[no-untyped-def]
    """Which segment a program's tile is of, and its first row; behind every row: it has none."""
    segment, tile = find_tile(
        starts, tl.program_id(0), num_segments, tile_rows, segments_padded
    )  # fmt: skip
    begin = tl.load(starts + segment) + tile * tile_rows
    return segment, tl.where(tile < 0, 1 << 30, begin)


@triton.jit
def _tile_begin(tile, layer_pages, pages, line, lines_max, blocks_max, page_size):  # type: ignore[no-untyped-def]
    """Where in the pool a tile begins, in elements."""
    own = tl.load(tile + _LAYER)
    place = line * blocks_max + tl.load(tile + _BLOCK)
    if own < 0:
        page = tl.load(layer_pages + place)
    else:
        page = tl.load(pages + own.to(tl.int64) * lines_max * blocks_max + place)
    return page.to(tl.int64) * page_size + tl.load(tile + _OFFSET)


@triton.jit(do_not_specialize=_NUMBERS, do_not_specialize_on_alignment=_TABLES)
def _shrink_kernel(  # type: ignore[no-untyped-def]
    x, pool, shrunk, layer_pages, places, starts, lines, pages, ranks, num_tiles, tiles,
    page_size, num_targets, num_rows, lines_max, blocks_max, targets_max, tiles_max,
    x_stride, num_in, num_segments, rank_tiles,
    tile_rows: tl.constexpr, tile_ranks: tl.constexpr, tile_inputs: tl.constexpr,
    num_splits: tl.constexpr, segments_padded: tl.constexpr, widen: tl.constexpr,
):  # fmt: skip
    """16 rank rows of a target, over one share of the inputs, for up to 16 rows of a segment."""
    segment, begin = _rows(starts, num_segments, tile_rows, segments_padded)
    line = tl.load(lines + segment)
    count = tl.minimum(tl.load(starts + segment + 1) - begin, tile_rows)
    if (line < 0) | (count <= 0):
        return
    index = tl.program_id(2)
    target = tl.load(places + index)
    split = tl.program_id(1) % num_splits
    first_rank = tl.program_id(1) // num_splits * tile_ranks
    if first_rank >= tl.load(ranks + line * targets_max + target):
        return
    steps = tl.cdiv(tl.cdiv(num_in, tile_inputs), num_splits)
    first_input = split * steps * tile_inputs
    last_input = tl.minimum(first_input + steps * tile_inputs, num_in)

    matrix = (line * targets_max + target) * 2
    rank = first_rank + tl.arange(0, tile_ranks)
    row = tl.arange(0, tile_rows)
    inputs = tl.arange(0, tile_inputs)
    many = tl.zeros((tile_rows, tile_ranks), tl.float32)
    one = tl.zeros((tile_ranks,), tl.float32)
    for number in range(tl.load(num_tiles + matrix)):
        tile = tiles + (matrix * tiles_max + number) * _FIELDS
        tile_row, tile_count = tl.load(tile + _ROW), tl.load(tile + _NUM_ROWS)
        column, width = tl.load(tile + _COLUMN), tl.load(tile + _NUM_COLUMNS)
        from_input = tl.maximum(first_input, column)
        to_input = tl.minimum(last_input, column + width)
        if (tile_row < first_rank + tile_ranks) & (tile_row + tile_count > first_rank):
            where = _tile_begin(tile, layer_pages, pages, line, lines_max, blocks_max, page_size)
            weights = pool + where + (rank - tile_row) * width
            is_rank = (rank >= tile_row) & (rank < tile_row + tile_count)
            for at in range(from_input, to_input, tile_inputs):
                here = at + inputs
                is_input = here < to_input
                a = tl.load(
                    weights[:, None] + (here - column)[None, :],
                    mask=is_rank[:, None] & is_input[None, :], other=0.0,
                )  # fmt: skip
                if count == 1:
                    its = tl.load(
                        x + begin.to(tl.int64) * x_stride + here, mask=is_input, other=0.0
                    )
                    one += tl.sum(a.to(tl.float32) * its.to(tl.float32)[None, :], axis=1)
                else:
                    theirs = tl.load(
                        x + (begin + row).to(tl.int64)[:, None] * x_stride + here[None, :],
                        mask=(row < count)[:, None] & is_input[None, :], other=0.0,
                    )  # fmt: skip
                    if widen:
                        theirs = theirs.to(tl.float32)
                        many = tl.dot(theirs, tl.trans(a.to(tl.float32)), many)
                    else:
                        many = tl.dot(theirs, tl.trans(a), many, input_precision="ieee")
    ranks_padded = rank_tiles * tile_ranks
    out = shrunk + ((split * num_targets + index).to(tl.int64) * num_rows + begin) * ranks_padded
    if count == 1:
        tl.store(out + rank, one)
    else:
        tl.store(
            out + row[:, None] * ranks_padded + rank[None, :], many, mask=(row < count)[:, None]
        )


@triton.jit(do_not_specialize=_NUMBERS, do_not_specialize_on_alignment=_TABLES)
def _expand_kernel(  # type: ignore[no-untyped-def]
    y, pool, halves, shrunk, layer_pages, places, starts, lines, pages, ranks, num_tiles, tiles,
    page_size, num_targets, num_rows, lines_max, blocks_max, targets_max, tiles_max,
    y_stride, num_segments, rank_tiles,
    tile_rows: tl.constexpr, tile_ranks: tl.constexpr, tile_outputs: tl.constexpr,
    num_splits: tl.constexpr, segments_padded: tl.constexpr, widen: tl.constexpr,
):  # fmt: skip
    """Some outputs of a target, for up to 16 rows of a segment."""
    segment, begin = _rows(starts, num_segments, tile_rows, segments_padded)
    line = tl.load(lines + segment)
    count = tl.minimum(tl.load(starts + segment + 1) - begin, tile_rows)
    if (line < 0) | (count <= 0):
        return
    index = tl.program_id(2)
    target = tl.load(places + index)
    first_output = tl.program_id(1) * tile_outputs
    width = tl.load(places + 2 * num_targets + index)
    if (first_output >= width) | (tl.load(ranks + line * targets_max + target) == 0):
        return
    last_output = tl.minimum(first_output + tile_outputs, width)

    page = tl.load(layer_pages + line * blocks_max).to(tl.int64)
    # A page may begin where no float32 may: two halves.
    of_scale: tl.constexpr = pool.dtype.element_ty.primitive_bitwidth // 16
    precision: tl.constexpr = "tf32x3" if of_scale == 1 else "ieee"
    header = halves + page * page_size * of_scale + target * 2
    low, high = tl.load(header).to(tl.int32) & 0xFFFF, tl.load(header + 1).to(tl.int32)
    scale = (low | (high << 16)).to(tl.float32, bitcast=True)

    matrix = (line * targets_max + target) * 2 + 1
    ranks_padded = rank_tiles * tile_ranks
    row = tl.arange(0, tile_rows)
    output = first_output + tl.arange(0, tile_outputs)
    mine = shrunk + (index.to(tl.int64) * num_rows + begin) * ranks_padded
    share = num_targets.to(tl.int64) * num_rows * ranks_padded
    many = tl.zeros((tile_rows, tile_outputs), tl.float32)
    one = tl.zeros((tile_outputs,), tl.float32)
    for number in range(tl.load(num_tiles + matrix)):
        tile = tiles + (matrix * tiles_max + number) * _FIELDS
        tile_row, tile_count = tl.load(tile + _ROW), tl.load(tile + _NUM_ROWS)
        column, tile_width = tl.load(tile + _COLUMN), tl.load(tile + _NUM_COLUMNS)
        if (column < last_output) & (column + tile_width > first_output):
            where = _tile_begin(tile, layer_pages, pages, line, lines_max, blocks_max, page_size)
            here = output - column
            is_output = (here >= 0) & (here < tile_width) & (output < width)
            for group in range(0, tile_count, tile_ranks):
                rank = group + tl.arange(0, tile_ranks)
                is_rank = rank < tile_count
                b = tl.load(
                    pool + where + rank[:, None] * tile_width + here[None, :],
                    mask=is_rank[:, None] & is_output[None, :], other=0.0,
                ).to(tl.float32)  # fmt: skip
                if count == 1:
                    its = tl.zeros((tile_ranks,), tl.float32)
                    for split in tl.static_range(num_splits):
                        place = mine + split * share + tile_row + rank
                        its += tl.load(place, mask=is_rank, other=0.0)
                    one += tl.sum((its * scale)[:, None] * b, axis=0)
                else:
                    theirs = tl.zeros((tile_rows, tile_ranks), tl.float32)
                    of_rows = mine + row[:, None] * ranks_padded + (tile_row + rank)[None, :]
                    is_found = (row < count)[:, None] & is_rank[None, :]
                    for split in tl.static_range(num_splits):
                        theirs += tl.load(of_rows + split * share, mask=is_found, other=0.0)
                    many = tl.dot(theirs * scale, b, many, input_precision=precision)
    first_column = tl.load(places + num_targets + index)
    if count == 1:
        to_one = y + begin.to(tl.int64) * y_stride + first_column + output
        one += tl.load(to_one, mask=output < width, other=0.0).to(tl.float32)
        tl.store(to_one, one.to(y.dtype.element_ty), mask=output < width)
    else:
        first_of_rows = y + (begin + row).to(tl.int64)[:, None] * y_stride
        to_many = first_of_rows + (first_column + output)[None, :]
        is_mine = (row < count)[:, None] & (output < width)[None, :]
        many += tl.load(to_many, mask=is_mine, other=0.0).to(tl.float32)
        tl.store(to_many, many.to(y.dtype.element_ty), mask=is_mine)
