"""SGMV on the CPU that reads every tile once, where it lies (numba).

Two passes over all segments of a step: shrink (``x A``, for all targets of a site at once) and
expand (``y += (x A) B``). Both are bound by reading weights. Where whole segments can be dealt out
in about equal shares, one a thread, a thread does both passes of its own: threads are woken once,
and do not wait for each other between the passes. Else each pass is cut into equal shares of
*bytes*, wherever segments and targets begin: shrink between groups of four rank rows, expand
between columns. bf16 is widened in registers. Tensors go in as addresses, because a decode calls
this some fifty times a step.
"""

import threading

import numba
import numpy as np
import torch
from numba import carray, njit, prange

from kernels.bits import LOOSE, float_of_bits, narrow, pointer, widen
from kernels.compile_lock import call_compiled
from kernels.sgmv.blocks import (
    LINE_BYTES,
    TOGETHER,
    expand_four,
    expand_one,
    shrink_four,
    shrink_one,
)
from kernels.sgmv.interface import (
    BLOCK,
    COLUMN,
    LAYER,
    NUM_COLUMNS,
    NUM_ROWS,
    OFFSET,
    ROW,
    A,
    AdapterTables,
    B,
    Segments,
    Site,
)

# Stands for the kind of the elements in a signature: bf16 as its bits, or float32.
_KINDS = {torch.bfloat16: np.zeros(1, np.uint16), torch.float32: np.zeros(1, np.float32)}

UNIT = 32  # columns between which expand can be cut
SUMS = 4096  # of expand that are kept at once: 16 KB of the first cache
ROWS_OF_SUMS = 32  # at most, so that rank rows are read in pieces of 128 columns or more
# Reading a weight takes as long as multiplying it with so many rows.
READING = 6
# Costs (weights times rows) from which a second thread pays for being woken. To wake it takes 50 to
# 100 us between products of torch, which has threads of its own: below, that is more than it saves.
SHARED_FROM = 1 << 23
# How much more than its share a thread may have where segments are dealt out as wholes.
UNEVEN_MAX = 1.2


def supports(x: torch.Tensor) -> bool:
    """Whether this kernel takes tensors like `x`."""
    return x.is_cpu and x.dtype in _KINDS


def add_lora_cpu(
    x: torch.Tensor,
    y: torch.Tensor,
    pool: torch.Tensor,
    layer: int,
    site: Site,
    segments: Segments,
    tables: AdapterTables,
    rows_limit: int = 1 << 30,
) -> None:
    """As `select.add_lora`, for segments of fewer than `rows_limit` rows.

    Args:
        x, y, pool: bf16 or float32, `y` float32 if the others are.
    """
    call_compiled(
        _add, (x.dtype, y.dtype), _KINDS[x.dtype], _KINDS[y.dtype],
        x.data_ptr(), x.stride(0), x.shape[1], y.data_ptr(), y.stride(0),
        pool.data_ptr(), pool.stride(0), layer, rows_limit, _num_threads(),
        site_array(site), segments.starts, segments.lines,
        tables.pages, tables.ranks, tables.num_tiles, tables.tiles,
    )  # fmt: skip


_LOCAL = threading.local()


def _num_threads() -> int:
    """Asked once a thread: numba's own answer takes a third of a small segment."""
    count: int | None = getattr(_LOCAL, "num_threads", None)
    if count is None:
        count = _LOCAL.num_threads = numba.get_num_threads()
    return count


_SITES: dict[int, tuple[Site, "np.typing.NDArray[np.int64]"]] = {}  # by identity


def site_array(site: Site) -> "np.typing.NDArray[np.int64]":
    """Targets, columns and widths; made once, for a model has a handful of sites."""
    known = _SITES.get(id(site))
    if known is None:
        array = np.array([site.targets, site.columns, site.widths], np.int64)
        known = _SITES[id(site)] = (site, array)  # held, so that no other site gets its identity
    return known[1]


@njit(parallel=True, fastmath=LOOSE, error_model="numpy", nogil=True, cache=True)
def _add(  # type: ignore[no-untyped-def]
    kind, kind_out, x, x_stride, num_in, y, y_stride, pool, page_size, layer, rows_limit,
    num_shares, site, starts, lines, pages, ranks, num_tiles, tiles,
):  # fmt: skip
    shrink_cost = expand_cost = size = np.int64(0)
    for segment in range(lines.shape[0]):
        num_rows, line = np.int64(starts[segment + 1] - starts[segment]), lines[segment]
        if line < 0 or num_rows <= 0 or num_rows >= rows_limit:
            continue
        for index in range(site.shape[1]):
            rank = np.int64(ranks[line, site[0, index]])
            units = (site[2, index] + UNIT - 1) // UNIT
            size += num_rows * rank
            shrink_cost += rank // TOGETHER * _cost(num_in * TOGETHER, num_rows)
            expand_cost += units * _cost(rank * UNIT, num_rows)
    if size == 0:
        return
    shrunk = _zeros(size)
    if shrink_cost + expand_cost < SHARED_FROM:
        _shrink(
            kind, x, x_stride, num_in, pool, page_size, layer, rows_limit, site, starts, lines,
            pages, ranks, num_tiles, tiles, shrunk, 0, shrink_cost,
        )  # fmt: skip
        _expand(
            kind, kind_out, y, y_stride, pool, page_size, layer, rows_limit, site, starts, lines,
            pages, ranks, num_tiles, tiles, shrunk, 0, expand_cost,
        )  # fmt: skip
        return
    cuts = _cuts(num_in, rows_limit, num_shares, site, starts, lines, ranks)
    is_even = cuts[num_shares, 2] <= UNEVEN_MAX * (shrink_cost + expand_cost) / num_shares
    if not is_even:  # each share cuts segments, and none is expanded before all are shrunk
        for share in range(num_shares + 1):
            cuts[share, 0] = shrink_cost * share // num_shares
            cuts[share, 1] = expand_cost * share // num_shares
    for phase in range(1 if is_even else 2):
        for share in prange(num_shares):
            if is_even or phase == 0:
                _shrink(
                    kind, x, x_stride, num_in, pool, page_size, layer, rows_limit, site, starts,
                    lines, pages, ranks, num_tiles, tiles, shrunk, cuts[share, 0],
                    cuts[share + 1, 0],
                )  # fmt: skip
            if is_even or phase == 1:
                _expand(
                    kind, kind_out, y, y_stride, pool, page_size, layer, rows_limit, site, starts,
                    lines, pages, ranks, num_tiles, tiles, shrunk, cuts[share, 1],
                    cuts[share + 1, 1],
                )  # fmt: skip


@njit(nogil=True, cache=True)
def _cuts(num_in, rows_limit, num_shares, site, starts, lines, ranks):  # type: ignore[no-untyped-def]
    """Where shares of whole segments begin, int64 ``[num_shares + 1, 3]``: in the costs of shrink,
    of expand, and, in the last row, the costs of the largest share."""
    cuts = np.zeros((num_shares + 1, 3), np.int64)
    of_segment = np.zeros((lines.shape[0], 2), np.int64)
    total = 0
    for segment in range(lines.shape[0]):
        num_rows, line = np.int64(starts[segment + 1] - starts[segment]), lines[segment]
        if line < 0 or num_rows <= 0 or num_rows >= rows_limit:
            continue
        for index in range(site.shape[1]):
            rank = np.int64(ranks[line, site[0, index]])
            units = (site[2, index] + UNIT - 1) // UNIT
            of_segment[segment, 0] += rank // TOGETHER * _cost(num_in * TOGETHER, num_rows)
            of_segment[segment, 1] += units * _cost(rank * UNIT, num_rows)
        total += of_segment[segment, 0] + of_segment[segment, 1]
    share, shrink_at, expand_at = 1, 0, 0
    for segment in range(lines.shape[0]):
        shrink_at += of_segment[segment, 0]
        expand_at += of_segment[segment, 1]
        half = (of_segment[segment, 0] + of_segment[segment, 1]) // 2
        while share < num_shares and shrink_at + expand_at + half >= total * share // num_shares:
            cuts[share, 0], cuts[share, 1] = shrink_at, expand_at
            share += 1
    cuts[num_shares, 0], cuts[num_shares, 1] = shrink_at, expand_at
    for share in range(num_shares):
        own = cuts[share + 1, 0] - cuts[share, 0] + cuts[share + 1, 1] - cuts[share, 1]
        cuts[num_shares, 2] = max(cuts[num_shares, 2], own)
    return cuts


@njit(nogil=True, cache=True)
def _zeros(size):  # type: ignore[no-untyped-def]
    """Where functions are parallel, numba would wake the other threads for them."""
    return np.zeros(size, np.float32)


@njit(inline="always")
def _cost(num_weights, num_rows):  # type: ignore[no-untyped-def]
    """Of reading weights and multiplying each with as many rows."""
    return num_weights * (READING + num_rows)


@njit(inline="always")
def _units(begin, end, at, cost, count):  # type: ignore[no-untyped-def]
    """Which of `count` units of this cost, the first of which begins `at`, begin in this share."""
    first = min(max((begin - at + cost - 1) // cost, 0), count)
    return first, min(max((end - at + cost - 1) // cost, 0), count)


@njit(inline="always")
def row_of(kind, address, at, count):  # type: ignore[no-untyped-def]
    """`count` elements that begin `at` elements behind the address."""
    return carray(pointer(address + at * kind.itemsize), count, kind.dtype)


@njit(inline="always")
def tile_begin(tile, layer, line, pages, page_size):  # type: ignore[no-untyped-def]
    """Where in the pool a tile begins, in elements."""
    own = tile[LAYER] if tile[LAYER] >= 0 else layer
    return np.int64(pages[own, line, tile[BLOCK]]) * page_size + tile[OFFSET]


@njit(inline="always")
def _next_tile(  # type: ignore[no-untyped-def]
    kind, pool, page_size, layer, site, lines, pages, num_tiles, tiles, segment, index, number,
    which,
):  # fmt: skip
    """Address of the tile that is needed behind this one, where that is easily known, else 0."""
    number += 1
    if number >= num_tiles[lines[segment], site[0, index], which]:
        number, index = 0, index + 1
    if index >= site.shape[1]:
        index, segment = 0, segment + 1
    if segment >= lines.shape[0] or lines[segment] < 0:
        return 0
    line, target = lines[segment], site[0, index]
    if number >= num_tiles[line, target, which]:
        return 0
    at = tile_begin(tiles[line, target, which, number], layer, line, pages, page_size)
    return pool + at * kind.itemsize


@njit(fastmath=LOOSE, error_model="numpy", nogil=True, cache=True)
def _shrink(  # type: ignore[no-untyped-def]
    kind, x, x_stride, num_in, pool, page_size, layer, rows_limit, site, starts, lines,
    pages, ranks, num_tiles, tiles, shrunk, begin, end,
):  # fmt: skip
    """``x A`` of the groups of rank rows whose costs begin in ``begin .. end``."""
    at, place = 0, 0
    for segment in range(lines.shape[0]):
        start, line = np.int64(starts[segment]), lines[segment]
        num_rows = starts[segment + 1] - start
        if line < 0 or num_rows <= 0 or num_rows >= rows_limit:
            continue
        for index in range(site.shape[1]):
            target = site[0, index]
            rank = np.int64(ranks[line, target])
            cost = _cost(num_in * TOGETHER, num_rows)
            first, last = _units(begin, end, at, cost, rank // TOGETHER)
            if first < last:
                for number in range(num_tiles[line, target, A]):
                    tile = tiles[line, target, A, number]
                    following = _next_tile(
                        kind, pool, page_size, layer, site, lines, pages, num_tiles, tiles,
                        segment, index, number, A,
                    )  # fmt: skip
                    _shrink_tile(
                        kind, x + (start * x_stride + tile[COLUMN]) * kind.itemsize,
                        x_stride * kind.itemsize, num_rows,
                        pool + tile_begin(tile, layer, line, pages, page_size) * kind.itemsize,
                        tile[ROW], tile[NUM_ROWS], tile[NUM_COLUMNS], first * TOGETHER,
                        last * TOGETHER, following, shrunk.ctypes.data + place * 4, rank,
                    )  # fmt: skip
            at += rank // TOGETHER * cost
            place += num_rows * rank


@njit(fastmath=LOOSE, error_model="numpy", nogil=True, cache=True)
def _shrink_tile(  # type: ignore[no-untyped-def]
    kind, x, x_bytes, num_rows, tile, tile_row, tile_rows, width, first, last, following, shrunk,
    rank,
):  # fmt: skip
    """What a tile's rank rows in ``first .. last`` add to those of each row of a segment."""
    size = kind.itemsize
    steps = width * size // LINE_BYTES
    done = steps * (LINE_BYTES // size)
    end = min(tile_row + tile_rows, last)
    for group in range(max(tile_row, first), end, TOGETHER):
        a = tile + (group - tile_row) * width * size
        ahead = a + TOGETHER * width * size
        if group + TOGETHER >= end and following:
            ahead = following
        to = shrunk + group * 4
        if steps:
            fours = num_rows // 4
            for row in range(0, fours * 4, 4):
                shrink_four(
                    kind, x + row * x_bytes, x_bytes, a, width * size, ahead, steps,
                    to + row * rank * 4, rank * 4,
                )  # fmt: skip
            for row in range(fours * 4, num_rows):
                shrink_one(
                    kind, x + row * x_bytes, x_bytes, a, width * size, ahead, steps,
                    to + row * rank * 4, rank * 4,
                )  # fmt: skip
        if done < width:
            _shrink_rest(kind, x, x_bytes, num_rows, a, width, done, to, rank)


@njit(fastmath=LOOSE, error_model="numpy", nogil=True, cache=True)
def _shrink_rest(kind, x, x_bytes, num_rows, a, width, done, to, rank):  # type: ignore[no-untyped-def]
    """The columns behind the last whole line."""
    count = width - done
    for row in range(num_rows):
        source = row_of(kind, x + row * x_bytes, done, count)
        out = carray(pointer(to + row * rank * 4), TOGETHER, np.float32)
        for i in range(TOGETHER):
            weights = row_of(kind, a, i * width + done, count)
            for column in range(count):
                out[i] += widen(source[column]) * widen(weights[column])


@njit(fastmath=LOOSE, error_model="numpy", nogil=True, cache=True)
def _expand(  # type: ignore[no-untyped-def]
    kind, kind_out, y, y_stride, pool, page_size, layer, rows_limit, site, starts, lines,
    pages, ranks, num_tiles, tiles, shrunk, begin, end,
):  # fmt: skip
    """``y += scale * shrunk B`` of the columns whose costs begin in ``begin .. end``."""
    sums = np.empty(SUMS, np.float32)
    at, place = 0, 0
    for segment in range(lines.shape[0]):
        start, line = np.int64(starts[segment]), lines[segment]
        num_rows = starts[segment + 1] - start
        if line < 0 or num_rows <= 0 or num_rows >= rows_limit:
            continue
        for index in range(site.shape[1]):
            target = site[0, index]
            rank = np.int64(ranks[line, target])
            if rank == 0:
                continue
            units = (site[2, index] + UNIT - 1) // UNIT
            cost = _cost(rank * UNIT, num_rows)
            first, last = _units(begin, end, at, cost, units)
            if first < last:
                page = pool + np.int64(pages[layer, line, 0]) * page_size * kind.itemsize
                scale = scale_of(page, target)
                # As many columns at once as there is room for the sums of some rows.
                together = min(num_rows, ROWS_OF_SUMS)
                most = SUMS // together // UNIT * UNIT
                until = min(last * UNIT, site[2, index])
                for column in range(first * UNIT, until, most):
                    width = min(most, until - column)
                    for row in range(0, num_rows, together):
                        count = min(together, num_rows - row)
                        sums[: count * width] = 0.0
                        _expand_columns(
                            kind, pool, page_size, layer, site, lines, pages, num_tiles, tiles,
                            segment, index, shrunk.ctypes.data + (place + row * rank) * 4, rank,
                            scale, sums.ctypes.data, count, column, width,
                        )  # fmt: skip
                        _add_sums(
                            kind_out, y, (start + row) * y_stride + site[1, index] + column,
                            y_stride, sums, count, width,
                        )  # fmt: skip
            at += units * cost
            place += num_rows * rank


@njit(fastmath=LOOSE, error_model="numpy", nogil=True, cache=True)
def _expand_columns(  # type: ignore[no-untyped-def]
    kind, pool, page_size, layer, site, lines, pages, num_tiles, tiles, segment, index, shrunk,
    rank, scale, sums, num_rows, column, width,
):  # fmt: skip
    """The sums of some rows of a segment, in these columns of a target."""
    line, target = lines[segment], site[0, index]
    for number in range(num_tiles[line, target, B]):
        tile = tiles[line, target, B, number]
        following = _next_tile(
            kind, pool, page_size, layer, site, lines, pages, num_tiles, tiles, segment, index,
            number, B,
        )  # fmt: skip
        _expand_tile(
            kind, pool + tile_begin(tile, layer, line, pages, page_size) * kind.itemsize,
            tile[NUM_ROWS], tile[COLUMN], tile[NUM_COLUMNS], following,
            shrunk + tile[ROW] * 4, rank, scale, sums, num_rows, column, width,
        )  # fmt: skip


@njit(fastmath=LOOSE, error_model="numpy", nogil=True, cache=True)
def _expand_tile(  # type: ignore[no-untyped-def]
    kind, tile, tile_rows, tile_column, tile_width, following, shrunk, rank, scale, sums,
    num_rows, column, width,
):  # fmt: skip
    """What a tile adds to the sums of the columns from `column` on."""
    begin = max(column, np.int64(tile_column))
    count = min(column + width, np.int64(tile_column) + tile_width) - begin
    if count <= 0:
        return
    size = kind.itemsize
    steps = count * size // LINE_BYTES
    done = steps * (LINE_BYTES // size)
    sums += (begin - column) * 4
    for group in range(0, tile_rows, TOGETHER):
        b = tile + (group * tile_width + begin - tile_column) * size
        ahead = b + TOGETHER * tile_width * size
        if group + TOGETHER >= tile_rows and following:
            ahead = following
        factors = shrunk + group * 4
        if steps:
            fours = num_rows // 4
            for row in range(0, fours * 4, 4):
                expand_four(
                    kind, factors + row * rank * 4, rank * 4, scale, b, tile_width * size, ahead,
                    steps, sums + row * width * 4, width * 4,
                )  # fmt: skip
            for row in range(fours * 4, num_rows):
                expand_one(
                    kind, factors + row * rank * 4, rank * 4, scale, b, tile_width * size, ahead,
                    steps, sums + row * width * 4, width * 4,
                )  # fmt: skip
        if done < count:
            _expand_rest(
                kind, factors, rank, scale, b, tile_width, done, count, sums, width, num_rows
            )


@njit(fastmath=LOOSE, error_model="numpy", nogil=True, cache=True)
def _expand_rest(  # type: ignore[no-untyped-def]
    kind, factors, rank, scale, b, tile_width, done, count, sums, width, num_rows
):
    """The columns behind the last whole line."""
    for row in range(num_rows):
        mine = carray(pointer(sums + row * width * 4), count, np.float32)
        source = carray(pointer(factors + row * rank * 4), TOGETHER, np.float32)
        for i in range(TOGETHER):
            weights = row_of(kind, b, i * tile_width, count)
            for column in range(done, count):
                mine[column] += source[i] * scale * widen(weights[column])


@njit(fastmath=LOOSE, error_model="numpy", nogil=True, cache=True)
def _add_sums(kind, y, at, stride, sums, num_rows, width):  # type: ignore[no-untyped-def]
    for row in range(num_rows):
        out = row_of(kind, y, at + row * stride, width)
        mine = sums[row * width : (row + 1) * width]
        for i in range(width):
            out[i] = narrow(widen(out[i]) + mine[i], out[i])


@njit(inline="always")
def scale_of(page, target):  # type: ignore[no-untyped-def]
    """A target's float32 in the header of an image's page, which need not be aligned."""
    halves = carray(pointer(page + target * 4), 2, np.uint16)
    return float_of_bits(np.uint32(halves[0]) | np.uint32(halves[1]) << np.uint32(16))
