"""Paged attention of many new tokens on a CPU, by products of small matrices (numba).

For prompt chunks, also over a long history. A task is a tile of queries with all heads that share a
KV head. It takes one page at a time: keys and values are packed as the products want them, into
scratch that stays in the cache, and serve all rows of the tile; the softmax is online. Nothing is
gathered, and pages that the tile does not see are not read.
"""

import numba
import numpy as np
import torch
from numba import njit, prange

from kernels.bits import LOOSE, narrow, widen
from kernels.compile_lock import call_compiled
from kernels.paged_attention.interface import AttentionShape, RaggedBatch
from kernels.paged_attention.products import (
    COLUMNS,
    ROWS,
    are_finite,
    begin_products,
    end_products,
    has_amx,
    multiply,
    pack_keys,
    pack_values,
    padded,
    per_word,
    zeros,
)
from kernels.paged_attention.raw import raw, raw_rows
from kernels.paged_attention.softmax import (
    LOWEST,
    capped,
    first_seen,
    highest_of,
    power_of_two,
    powers,
)

# Rows of a tile (a row is a query of one head): enough that packing a page costs little beside.
TILE_ROWS = 128


def paged_attention_chunk(
    query: torch.Tensor,
    pool: torch.Tensor,
    layer: int,
    batch: RaggedBatch,
    shape: AttentionShape,
    out: torch.Tensor,
    seqs: range,
    amx: bool | None = None,
) -> None:
    """Write ``softmax(mask(scale * q K^T)) V`` of the sequences `seqs` into their rows of `out`.

    Args:
        query: ``[num_rows, num_heads, head_dim]`` bf16 or float32, last dimension contiguous.
        pool: ``[num_pages, 2, num_kv_heads, block_tokens, head_dim]``, same dtype, contiguous.
        out: like `query`; only the rows of `seqs` are written.
        amx: multiply with AMX, in bf16; by default where the dtype and the machine allow it.
    """
    if amx is None:
        amx = uses_amx(pool)
    assert not amx or uses_amx(pool), "a process that may not use AMX would die of it"
    num_kv_heads = pool.shape[2]
    starts = batch.query_starts
    tiles = []
    for seq in seqs:
        num_new = starts[seq + 1] - starts[seq]
        position = batch.context_lens[seq] - num_new
        for first, last in _cut(num_new, query.shape[1] // num_kv_heads, len(seqs) * num_kv_heads):
            tiles.append((batch.slots[seq], starts[seq] + first, last - first, position + first))
    if not tiles:
        return
    elements, *steps = raw_rows(query)
    arrays = (
        elements,
        raw(pool),
        batch.arrays.page_tables[layer],
        np.array(tiles, np.int64),
        np.empty(0, np.uint16 if amx else np.float32),
        np.empty(0, np.uint32 if amx else np.float32),
        raw(out),
    )
    numbers = (*steps, *powers(shape), shape.reach)
    kind = tuple((array.dtype, array.flags.c_contiguous) for array in arrays)
    call_compiled(_attend_chunks, kind, *arrays, *numbers)


def uses_amx(pool: torch.Tensor) -> bool:
    """Whether chunks over a pool like this are multiplied with AMX."""
    return pool.dtype == torch.bfloat16 and pool.shape[-1] % 2 == 0 and has_amx()


def _cut(num_new: int, group: int, num_others: int) -> list[tuple[int, int]]:
    """First and last (exclusive) query of each tile of a sequence: tiles of about one size.

    Args:
        num_others: sequences times KV heads; if they are few and do not share the cores evenly,
            more tiles do.

    >>> _cut(100, 3, 4)
    [(0, 34), (34, 68), (68, 100)]
    """
    num_rows, num_threads = num_new * group, numba.get_num_threads()
    num_tiles = -(-num_rows // TILE_ROWS)
    is_uneven = num_others % num_threads != 0 and num_others < 4 * num_threads
    if is_uneven and num_rows >= TILE_ROWS // 2:
        num_tiles += num_tiles % 2
    length = -(-num_new // max(1, num_tiles))
    return [(first, min(first + length, num_new)) for first in range(0, num_new, max(1, length))]


@njit(parallel=True, fastmath=LOOSE, error_model="numpy", nogil=True, cache=True)
def _attend_chunks(  # type: ignore[no-untyped-def]
    query, pool, tables, tiles, left, right, out, row_step, head_step, scale, cap, reach
):
    num_kv_heads = pool.shape[2]
    for task in prange(tiles.shape[0] * num_kv_heads):
        tile, kv_head = task // num_kv_heads, task % num_kv_heads
        slot, start, num_queries, position = tiles[tile]
        _attend_tile(
            query, pool, tables[slot], left, right, out, start, num_queries, position, kv_head,
            row_step, head_step, scale, cap, reach,
        )  # fmt: skip


@njit(fastmath=LOOSE, error_model="numpy", nogil=True, cache=True)
def _attend_tile(  # type: ignore[no-untyped-def]
    query, pool, pages, left, right, out, start, num_queries, position, kv_head, row_step,
    head_step, scale, cap, reach,
):  # fmt: skip
    """`num_queries` queries from row `start` on, the first of them at `position`.

    Row r is query r // group, head kv_head * group + r % group.
    """
    block_tokens, head_dim = pool.shape[3], pool.shape[4]
    group = out.shape[1] // pool.shape[2]
    num_rows = num_queries * group
    rows = padded(num_rows, ROWS)
    tokens, depth = padded(block_tokens, COLUMNS), padded(head_dim, COLUMNS)
    queries = zeros(left, rows, depth)
    keys = zeros(right, depth // per_word(right), tokens)
    values = zeros(right, tokens // per_word(right), depth)
    scores = zeros(np.empty(0, np.float32), rows, tokens)
    weights = zeros(left, rows, tokens)
    acc = zeros(np.empty(0, np.float32), rows, depth)
    top = np.full(num_rows, LOWEST)
    total = np.zeros(num_rows, np.float32)
    for r in range(num_rows):
        place = (start + r // group) * row_step + (kv_head * group + r % group) * head_step
        for d in range(head_dim):
            queries[r, d] = narrow(widen(query[place + d]), queries[r, d])
    before = begin_products(right)
    context = position + num_queries  # as far as the last query sees
    first_block = first_seen(position, reach) // block_tokens
    for block in range(first_block, (context + block_tokens - 1) // block_tokens):
        at = block * block_tokens
        count = min(block_tokens, context - at)
        # Rows that see anything of this page, and whether one sees less than all of it.
        seeing, behind = max(0, at - position), num_queries
        is_ragged = at + block_tokens - 1 > position
        if reach != 0:
            behind = min(num_queries, _sight_ends(at + count, reach) - position)
            is_ragged |= first_seen(context - 1, reach) > at
        first, last = seeing * group, behind * group
        from_row, to_row = first // ROWS * ROWS, padded(last, ROWS)
        weights[from_row:first] = 0  # of the page before this one
        weights[last:to_row] = 0
        page_values = pool[pages[block], 1, kv_head]
        pack_keys(pool[pages[block], 0, kv_head], keys)
        multiply(queries, keys, scores, from_row, to_row, tokens, depth, True)
        for r in range(first, last):
            begin, end = 0, block_tokens
            if is_ragged:
                query_at = position + r // group
                end = min(count, query_at + 1 - at)
                begin = max(0, first_seen(query_at, reach) - at)
                weights[r, :begin] = 0
                weights[r, end:] = 0
            shrink = _soften(scores[r, begin:end], weights[r, begin:end], scale, cap, r, top, total)
            if shrink != np.float32(1.0):
                for d in range(depth):
                    acc[r, d] *= shrink
        if is_ragged and not are_finite(page_values, count):
            # Not even no weight makes such a value harmless to rows that must not see it.
            for r in range(first, last):
                query_at = position + r // group
                begin = max(0, first_seen(query_at, reach) - at)
                for j in range(begin, min(count, query_at + 1 - at)):
                    weight = widen(weights[r, j])
                    for d in range(head_dim):
                        acc[r, d] += weight * widen(page_values[j, d])
            continue
        pack_values(page_values, count, values)
        multiply(weights, values, acc, from_row, to_row, depth, tokens, False)
    end_products(right, before)
    for r in range(num_rows):
        row, head = start + r // group, kv_head * group + r % group
        inverse = np.float32(1.0) / total[r]
        for d in range(head_dim):
            out[row, head, d] = narrow(acc[r, d] * inverse, out[row, head, d])


@njit(inline="always", error_model="numpy")
def _sight_ends(end, reach):  # type: ignore[no-untyped-def]
    """The first position whose query sees nothing before `end`, if `reach` limits what it sees."""
    if reach < 0:
        return (end - reach - 1) // -reach * -reach
    return end + reach - 1


@njit(fastmath=LOOSE, error_model="numpy", nogil=True, inline="always")
def _soften(scores, weights, scale, cap, r, top, total):  # type: ignore[no-untyped-def]
    """One row's step of the online softmax; returns by how much its sums so far shrink."""
    highest = top[r]
    if cap > np.float32(0.0):
        for j in range(scores.shape[0]):
            scores[j] = capped(scores[j] * scale, cap)
            highest = highest_of(highest, scores[j])
    else:
        for j in range(scores.shape[0]):
            scores[j] *= scale
            highest = highest_of(highest, scores[j])
    shrink = power_of_two(top[r] - highest)
    added = np.float32(0.0)
    for j in range(scores.shape[0]):
        weight = power_of_two(scores[j] - highest)
        weights[j] = narrow(weight, weights[j])
        added += weight
    total[r] = total[r] * shrink + added
    top[r] = highest
    return shrink
