"""Paged attention on a CUDA device, and writing new keys and values into pages (Triton).

Nothing here reads a device tensor on the host, and no size depends on one: launches can be recorded
in a CUDA graph and replayed with other lengths in the same tensors.

One kernel serves decodes and prompt chunks. Its tile is some queries of a sequence with all the
query heads of one KV head as rows: a page is read once for the group, a decode fills the 16 rows of
the matrix unit with heads, and a short chunk fills its tile with heads instead of padding. The tile
goes over its keys page by page with an online softmax. Where there are fewer tiles than the device
can run, several programs share the keys of a tile and a second kernel combines their results.

Bounds, with n new tokens, a context c, H query and G KV heads, head_dim D, s bytes an element:

- Decode moves ``2 c G D s`` bytes a sequence and computes ``4 c H D``: ``2 H / (G s)`` operations a
  byte. At bf16 and groups of 8 that is 8, where an H200 could do 200: bound by bandwidth.
- A chunk computes ``4 n H D (c - n / 2)`` on the same bytes (and ``2 n H D s`` of queries and
  results), so from about n = 200 G / H on it is bound by the matrix units.
- Combining reads ``4 (D + 2)`` bytes a row, head and used split, which were written before. A
  decode's share is at least 128 tokens: at bf16, each of the two is ``H / (128 G)`` of its pages.
- `store_kv` reads and writes ``2 T G D s`` bytes and computes nothing: bound by bandwidth.
"""

from functools import cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from kernels.packed_tiles import find_tile, padded
from kernels.paged_attention.interface import AttentionShape, DeviceBatch
from kernels.paged_attention.tiles import (
    Splits,
    Tiles,
    choose_packed_splits,
    choose_packed_tiles,
    choose_splits,
    choose_tiles,
    power_of_two,
)

HEAD_DIM_MAX = 256
LOG2_E = 1.4426950408889634
# Without a device (in Triton's interpreter) there is nothing to fill.
MULTIPROCESSORS_OF_NO_DEVICE = 1


def supports(query: torch.Tensor, pool: torch.Tensor) -> bool:
    """Whether these kernels take tensors like `query` and `pool`."""
    block_tokens = pool.shape[3]
    return (
        query.dtype in (torch.bfloat16, torch.float16, torch.float32)
        and query.shape[2] <= HEAD_DIM_MAX
        and block_tokens >= 16
        and block_tokens == power_of_two(block_tokens)
    )


def paged_attention_triton(
    query: torch.Tensor,
    pool: torch.Tensor,
    page_tables: torch.Tensor,
    layer: int,
    batch: DeviceBatch,
    shape: AttentionShape,
    out: torch.Tensor,
    multiprocessors: int | None = None,
) -> None:
    """Write ``softmax(mask(scale * q K^T)) V`` of all sequences into their rows of `out`.

    Args:
        query: ``[num_rows, num_heads, head_dim]`` bf16, fp16 or float32, last dimension contiguous.
        pool: ``[num_pages, 2, num_kv_heads, block_tokens, head_dim]``, same dtype, contiguous.
        page_tables: int32 ``[num_layers, num_slots, max_blocks]``, contiguous.
        batch: decodes first, one row each, or packed; all tensors on the query's device.
        out: like `query`; every row of every sequence is written, zeros where the context is 0.
        multiprocessors: to be filled; by default those of the device.
    """
    assert pool.is_contiguous() and page_tables.is_contiguous(), "read by their shapes"
    assert query.stride(2) == 1 and out.stride(2) == 1, "rows are read and written whole"
    assert query.dtype == pool.dtype and supports(query, pool)
    if multiprocessors is None:
        multiprocessors = _multiprocessors(query.device)
    if batch.is_packed:
        _launch_packed(query, pool, page_tables[layer], batch, shape, out, multiprocessors)
        return
    num_chunks = batch.num_seqs - batch.num_decodes
    if batch.num_decodes:
        _launch(query, pool, page_tables[layer], batch, shape, out, multiprocessors, decode=True)
    if num_chunks and batch.query_len_max:
        _launch(query, pool, page_tables[layer], batch, shape, out, multiprocessors, decode=False)


def store_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    pool: torch.Tensor,
    slot_pages: torch.Tensor,
    slot_offsets: torch.Tensor,
) -> None:
    """``pool[slot_pages[t], 0 and 1, :, slot_offsets[t]] = key[t] and value[t]`` for every token t.

    Args:
        key, value: ``[num_tokens, num_kv_heads, head_dim]``, last dimension contiguous.
        pool: ``[num_pages, 2, num_kv_heads, block_tokens, head_dim]``, same dtype, contiguous.
        slot_pages: int32 ``[num_tokens]``; a token whose page is negative is padding and is not
            written. No two tokens have the same place.
        slot_offsets: int32 ``[num_tokens]``.
    """
    num_tokens, num_kv_heads, head_dim = key.shape
    assert pool.is_contiguous() and key.dtype == value.dtype == pool.dtype
    assert key.stride(2) == 1 and value.stride(2) == 1 and key.shape == value.shape
    if num_tokens == 0:
        return
    _store_kernel[(num_tokens,)](
        key, value, pool, slot_pages, slot_offsets,
        key.stride(0), key.stride(1), value.stride(0), value.stride(1),
        num_kv_heads=num_kv_heads, num_kv_heads_padded=power_of_two(num_kv_heads),
        head_dim=head_dim, head_dim_padded=power_of_two(head_dim), block_tokens=pool.shape[3],
        enable_fp_fusion=True,
    )  # fmt: skip


def _launch(
    query: torch.Tensor,
    pool: torch.Tensor,
    table: torch.Tensor,
    batch: DeviceBatch,
    shape: AttentionShape,
    out: torch.Tensor,
    multiprocessors: int,
    *,
    decode: bool,
) -> None:
    """Attention of the batch's decodes, or of its prompt chunks."""
    _, num_heads, head_dim = query.shape
    num_kv_heads, block_tokens = pool.shape[2:4]
    group = num_heads // num_kv_heads
    tiles = choose_tiles(
        decode=decode,
        element_bytes=query.element_size(),
        head_dim=head_dim,
        group=group,
        block_tokens=block_tokens,
    )
    # Each decode is one row, so the first chunk's number is also its first row's.
    first = 0 if decode else batch.num_decodes
    num_seqs = batch.num_decodes if decode else batch.num_seqs - first
    num_rows = batch.num_decodes if decode else query.shape[0] - first
    query_len_max = 1 if decode else batch.query_len_max
    tile_queries = tiles.rows // group
    num_tiles = -(-query_len_max // tile_queries)
    splits = choose_splits(
        decode=decode,
        num_programs=num_tiles * num_kv_heads * num_seqs,
        context_len_max=batch.context_len_max,
        keys=tiles.keys,
        multiprocessors=multiprocessors,
    )
    _attend(
        _Work(query, pool, table, batch, shape, out, tiles, splits, first, num_rows),
        grid=(num_tiles * splits.count, num_kv_heads, num_seqs),
        combine_grid=(query_len_max, num_heads, num_seqs),
        decode=decode,
    )


def _launch_packed(
    query: torch.Tensor,
    pool: torch.Tensor,
    table: torch.Tensor,
    batch: DeviceBatch,
    shape: AttentionShape,
    out: torch.Tensor,
    multiprocessors: int,
) -> None:
    """Attention of all sequences of a packed batch."""
    num_rows, num_heads, head_dim = query.shape
    num_kv_heads, block_tokens = pool.shape[2:4]
    group = num_heads // num_kv_heads
    tiles = choose_packed_tiles(
        element_bytes=query.element_size(),
        head_dim=head_dim,
        group=group,
        block_tokens=block_tokens,
    )
    num_full = num_rows // (tiles.rows // group)
    splits = choose_packed_splits(
        num_programs=num_full * num_kv_heads,
        context_len_max=batch.context_len_max,
        keys=tiles.keys,
        multiprocessors=multiprocessors,
    )
    num_tiles = num_full + batch.num_seqs  # each sequence may have one that is not full
    _attend(
        _Work(query, pool, table, batch, shape, out, tiles, splits, 0, num_rows),
        grid=(num_tiles * splits.count, num_kv_heads, 1),
        combine_grid=(num_rows, num_heads, 1),
        decode=False,
    )


class _Work(NamedTuple):
    """What two launches need to know.

    Attributes:
        first: number of the first sequence, and of its first row.
        num_rows: of all of them.
    """

    query: torch.Tensor
    pool: torch.Tensor
    table: torch.Tensor
    batch: DeviceBatch
    shape: AttentionShape
    out: torch.Tensor
    tiles: Tiles
    splits: Splits
    first: int
    num_rows: int


def _attend(
    work: _Work, *, grid: tuple[int, ...], combine_grid: tuple[int, ...], decode: bool
) -> None:
    query, pool, table, batch, shape, out, tiles, splits, first, num_rows = work
    _, num_heads, head_dim = query.shape
    group = num_heads // pool.shape[2]
    is_split = splits.count > 1
    partial, stats = _partials(out, splits.count, num_rows) if is_split else (out, out)
    scale, cap = _scale_and_cap(shape)
    # Arguments of both kernels, so that they cut the work in the same places.
    cut: dict[str, Any] = {
        "first": first, "num_seqs": batch.num_seqs, "num_splits": splits.count,
        "splits_wanted": splits.wanted, "share_min": splits.share_min,
        "share_max": splits.share_max, "reach": shape.reach,
        "tile_queries": tiles.rows // group, "tile_keys": tiles.keys,
        "num_heads": num_heads, "head_dim": head_dim,
        "head_dim_padded": max(16, power_of_two(head_dim)),
        "is_limited": shape.reach != 0, "is_packed": batch.is_packed,
        "seqs_padded": padded(batch.num_seqs) if batch.is_packed else 1,
        "enable_fp_fusion": True,
    }  # fmt: skip
    _attend_kernel[grid](
        query, pool, table, batch.query_starts, batch.context_lens, batch.slots,
        out, partial, stats, scale, cap, table.shape[1], num_rows,
        query.stride(0), query.stride(1), out.stride(0), out.stride(1),
        tile_rows=tiles.rows, group=group, block_tokens=pool.shape[3],
        is_capped=shape.softcap > 0, is_decode=decode, is_split=is_split,
        # The interpreter keeps bf16 as its bits, and would multiply those.
        widen=_is_interpreted() and query.dtype == torch.bfloat16,
        num_warps=tiles.num_warps, num_stages=tiles.num_stages, **cut,
    )  # fmt: skip
    if is_split:
        splits_padded = power_of_two(splits.count)
        _combine_kernel[combine_grid](
            partial, stats, batch.query_starts, batch.context_lens, out, num_rows,
            out.stride(0), out.stride(1),
            splits_padded=splits_padded,
            num_warps=8 if splits_padded * head_dim > 8192 else 4, **cut,
        )  # fmt: skip


def _partials(out: torch.Tensor, count: int, num_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Room for what each of `count` programs finds of a row's heads: sums; greatest scores and
    weights.
    """
    lines = (count, num_rows, out.shape[1])
    sums = torch.empty((*lines, out.shape[2]), dtype=torch.float32, device=out.device)
    return sums, torch.empty((2, *lines), dtype=torch.float32, device=out.device)


def _scale_and_cap(shape: AttentionShape) -> tuple[float, float]:
    """For scores that are kept as powers of two: what the hardware computes."""
    scale = shape.scale * LOG2_E
    if shape.softcap:
        return 2 * scale / shape.softcap, shape.softcap * LOG2_E
    return scale, 0.0


def _is_interpreted() -> bool:
    """Whether TRITON_INTERPRET was set when this module was imported."""
    return not isinstance(_attend_kernel, triton.JITFunction)


@cache
def _multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return MULTIPROCESSORS_OF_NO_DEVICE
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


# Other numbers, or tensors of numbers that begin elsewhere (one layer's table), are no reason to
# compile again: that would take a second in the middle of serving, or of recording a graph.
_CUT = [
    "num_rows", "first", "num_seqs", "num_splits", "splits_wanted", "share_min", "share_max",
    "reach",
]  # fmt: skip
_LENGTHS = ["query_starts", "context_lens"]


@triton.jit(
    do_not_specialize=[*_CUT, "max_blocks"],
    do_not_specialize_on_alignment=[*_LENGTHS, "slots", "table"],
)
def _attend_kernel(  # type: ignore[no-untyped-def]
    query, pool, table, query_starts, context_lens, slots, out, partial, stats,
    scale, cap, max_blocks, num_rows,
    query_row_stride, query_head_stride, out_row_stride, out_head_stride,
    first, num_seqs, num_splits, splits_wanted, share_min, share_max, reach,
    tile_rows: tl.constexpr, tile_queries: tl.constexpr, tile_keys: tl.constexpr,
    group: tl.constexpr, num_heads: tl.constexpr, head_dim: tl.constexpr,
    head_dim_padded: tl.constexpr, block_tokens: tl.constexpr, is_limited: tl.constexpr,
    is_capped: tl.constexpr, is_decode: tl.constexpr, is_split: tl.constexpr, widen: tl.constexpr,
    is_packed: tl.constexpr, seqs_padded: tl.constexpr,
):  # fmt: skip
    """One tile of queries, of all heads of a KV head, over one share of its keys."""
    kv_head = tl.program_id(1)
    number = tl.program_id(0) // num_splits  # of the tile
    if is_packed:
        seq, number = find_tile(query_starts, number, num_seqs, tile_queries, seqs_padded)
    else:
        seq = first + tl.program_id(2)
    start = tl.load(query_starts + seq)
    num_new = tl.load(query_starts + seq + 1) - start
    context = tl.load(context_lens + seq)
    split = tl.program_id(0) % num_splits
    # The last tiles see the most keys: begun first, they do not end long after the others.
    tile = tl.cdiv(num_new, tile_queries) - 1 - number
    if tile < 0:
        return
    begin, end = _keys_of_tile(
        tile, num_new, context, reach, tile_queries, tile_keys, is_limited
    )  # fmt: skip
    share = _share(end - begin, num_splits, splits_wanted, share_min, share_max)
    is_alone = end - begin <= share
    if is_split:
        begin += split * share
        end = tl.minimum(begin + share, end)
        if begin >= end:
            return  # an unused split: combining knows that there is nothing

    rows = tl.arange(0, tile_rows)
    at = tile * tile_queries + rows // group
    head = kv_head * group + rows % group
    is_row = (rows < tile_queries * group) & (at < num_new)
    dims = tl.arange(0, head_dim_padded)
    is_element = is_row[:, None] & (dims < head_dim)[None, :]
    row = (start + at).to(tl.int64)
    q = tl.load(
        query + row[:, None] * query_row_stride + head[:, None] * query_head_stride + dims[None, :],
        mask=is_element, other=0.0,
    )  # fmt: skip

    acc = tl.zeros((tile_rows, head_dim_padded), tl.float32)
    top = tl.full((tile_rows,), float("-inf"), tl.float32)
    total = tl.zeros((tile_rows,), tl.float32)
    position = context - num_new + at
    pages = table + tl.load(slots + seq).to(tl.int64) * max_blocks
    halves: tl.constexpr = (num_heads // group) * block_tokens * head_dim
    kv = pool + kv_head * (block_tokens * head_dim)
    masked_from = begin
    if not is_limited and not is_decode:
        # Up to here every query of the tile sees every key. (A decode has one such end, behind
        # which a second loop would begin with nothing on its way.)
        all_seen = tl.maximum(context - num_new + tile * tile_queries + 1, 0) // tile_keys
        masked_from = tl.maximum(begin, tl.minimum(end, all_seen))
        acc, top, total = _over_keys(
            q, acc, top, total, begin, masked_from, kv, pages, position, context, scale, cap,
            reach, tile_keys, head_dim, head_dim_padded, block_tokens, halves, False,
            is_limited, is_capped, widen,
        )  # fmt: skip
    acc, top, total = _over_keys(
        q, acc, top, total, masked_from, end, kv, pages, position, context, scale, cap,
        reach, tile_keys, head_dim, head_dim_padded, block_tokens, halves, True,
        is_limited, is_capped, widen,
    )  # fmt: skip

    if not is_split or is_alone:
        acc = acc / tl.where(total > 0.0, total, 1.0)[:, None]
        tl.store(
            out + row[:, None] * out_row_stride + head[:, None] * out_head_stride + dims[None, :],
            acc.to(out.dtype.element_ty), mask=is_element,
        )  # fmt: skip
    else:
        line = (split.to(tl.int64) * num_rows + (row - first)) * num_heads + head
        tl.store(stats + line, top, mask=is_row)
        num_lines = num_splits.to(tl.int64) * num_rows * num_heads
        tl.store(stats + num_lines + line, total, mask=is_row)
        tl.store(partial + line[:, None] * head_dim + dims[None, :], acc, mask=is_element)


@triton.jit
def _over_keys(  # type: ignore[no-untyped-def]
    q, acc, top, total, begin, end, kv, pages, position, context, scale, cap, reach,
    tile_keys: tl.constexpr, head_dim: tl.constexpr, head_dim_padded: tl.constexpr,
    block_tokens: tl.constexpr, halves: tl.constexpr, is_masked: tl.constexpr,
    is_limited: tl.constexpr, is_capped: tl.constexpr, widen: tl.constexpr,
):  # fmt: skip
    """Online softmax over the tiles of keys ``begin .. end``.

    Keeps for every row the highest score (`top`, as a power of two), the sum of the weights under
    it, and the weighted sum of the values. Where no key was seen, `top` is -inf and both are 0.
    """
    offsets = tl.arange(0, tile_keys)
    dims = tl.arange(0, head_dim_padded)
    is_dim = dims < head_dim
    if widen:
        q = q.to(tl.float32)
    # Each page's number is read a tile ahead: the copies of keys and values that are to be on their
    # way during other tiles need it, and a chain of two reads would halve how many can be.
    last = tl.maximum(end - 1, begin)
    page = tl.load(pages + begin * tile_keys // block_tokens, mask=begin < end, other=0)
    for tile in range(begin, end):
        first_key = tile * tile_keys
        lines = kv + page.to(tl.int64) * (2 * halves) + (first_key % block_tokens) * head_dim
        page = tl.load(pages + tl.minimum(tile + 1, last) * tile_keys // block_tokens)
        key_at = first_key + offsets
        # Behind the context there may be anything, NaN too: not even zero times it is harmless.
        is_there = is_dim[None, :]
        if is_masked:
            is_there = is_there & (key_at < context)[:, None]
        where = offsets[:, None] * head_dim + dims[None, :]
        if is_masked or head_dim != head_dim_padded:
            keys = tl.load(lines + where, mask=is_there, other=0.0)
            values = tl.load(lines + halves + where, mask=is_there, other=0.0)
        else:
            keys = tl.load(lines + where)
            values = tl.load(lines + halves + where)
        if widen:
            keys = keys.to(tl.float32)
        scores = tl.dot(q, tl.trans(keys), input_precision="ieee") * scale
        if is_capped:
            # tanh(x) of a score that is 2 x log2(e): no power can overflow.
            power = tl.exp2(-tl.abs(scores))
            tanh = (1.0 - power) / (1.0 + power)
            scores = tl.where(scores < 0.0, -tanh, tanh) * cap
        if is_masked:
            seen = (key_at[None, :] <= position[:, None]) & (key_at < context)[None, :]
            if is_limited:
                seen = seen & (key_at[None, :] >= _first_seen(position, reach)[:, None])
            scores = tl.where(seen, scores, float("-inf"))
        highest = tl.maximum(top, tl.max(scores, 1))
        # A row that has seen no key yet subtracts 0: -inf - -inf would be NaN.
        level = tl.where(highest == float("-inf"), 0.0, highest) if is_masked else highest
        shrink = tl.exp2(top - level)
        weights = tl.exp2(scores - level[:, None])
        total = total * shrink + tl.sum(weights, 1)
        acc = acc * shrink[:, None]
        weights = weights.to(values.dtype)
        if widen:
            weights = weights.to(tl.float32)
            values = values.to(tl.float32)
        acc = tl.dot(weights, values, acc, input_precision="ieee")
        top = highest
    return acc, top, total


@triton.jit
def _find_row(query_starts, row, num_seqs, seqs_padded: tl.constexpr):  # type: ignore[no-untyped-def]
    """The sequence that a packed batch's row belongs to; of padding, the last one."""
    seqs = tl.arange(0, seqs_padded)
    starts = tl.load(query_starts + seqs, mask=seqs < num_seqs, other=0)
    return tl.sum(((seqs < num_seqs) & (starts <= row)).to(tl.int32), 0) - 1


@triton.jit
def _first_seen(position, reach):  # type: ignore[no-untyped-def]
    """As `AttentionShape.first_seen`, where `reach` limits it; below 0 it may be any position."""
    of_chunk = position - position % tl.maximum(-reach, 1)
    return tl.where(reach < 0, of_chunk, position - reach + 1)


@triton.jit
def _keys_of_tile(  # type: ignore[no-untyped-def]
    tile, num_new, context, reach,
    tile_queries: tl.constexpr, tile_keys: tl.constexpr, is_limited: tl.constexpr,
):  # fmt: skip
    """Which tiles of keys the queries of a tile see, any of them: ``begin .. end``."""
    first = context - num_new + tile * tile_queries
    after = context - num_new + tl.minimum((tile + 1) * tile_queries, num_new)
    begin = 0
    if is_limited:
        begin = tl.maximum(_first_seen(first, reach), 0) // tile_keys
    return begin, tl.cdiv(tl.maximum(after, 0), tile_keys)


@triton.jit
def _share(num_tiles, num_splits, splits_wanted, share_min, share_max):  # type: ignore[no-untyped-def]
    """Tiles of keys a split; see `tiles.Splits`."""
    share = tl.minimum(tl.maximum(tl.cdiv(num_tiles, splits_wanted), share_min), share_max)
    return tl.maximum(share, tl.cdiv(num_tiles, num_splits))


@triton.jit(do_not_specialize=_CUT, do_not_specialize_on_alignment=_LENGTHS)
def _combine_kernel(  # type: ignore[no-untyped-def]
    partial, stats, query_starts, context_lens, out, num_rows, out_row_stride, out_head_stride,
    first, num_seqs, num_splits, splits_wanted, share_min, share_max, reach,
    tile_queries: tl.constexpr, tile_keys: tl.constexpr, num_heads: tl.constexpr,
    head_dim: tl.constexpr, head_dim_padded: tl.constexpr, is_limited: tl.constexpr,
    splits_padded: tl.constexpr, is_packed: tl.constexpr, seqs_padded: tl.constexpr,
):  # fmt: skip
    """One query's result of one head from its splits: a mean, weighted by each one's softmax sum
    under the highest score of all."""
    at = tl.program_id(0)
    head = tl.program_id(1)
    if is_packed:
        seq = _find_row(query_starts, at, num_seqs, seqs_padded)
        at -= tl.load(query_starts + seq)
    else:
        seq = first + tl.program_id(2)
    start = tl.load(query_starts + seq)
    num_new = tl.load(query_starts + seq + 1) - start
    context = tl.load(context_lens + seq)
    if at >= num_new:
        return
    begin, end = _keys_of_tile(
        at // tile_queries, num_new, context, reach, tile_queries, tile_keys, is_limited
    )  # fmt: skip
    num_used = tl.cdiv(
        end - begin, _share(end - begin, num_splits, splits_wanted, share_min, share_max)
    )
    if num_used == 1:
        return  # that one has written the result
    splits = tl.arange(0, splits_padded)
    is_used = splits < num_used
    row = (start + at).to(tl.int64)
    line = (splits.to(tl.int64) * num_rows + (row - first)) * num_heads + head
    num_lines = num_splits.to(tl.int64) * num_rows * num_heads
    top = tl.load(stats + line, mask=is_used, other=float("-inf"))
    total = tl.load(stats + num_lines + line, mask=is_used, other=0.0)
    highest = tl.max(top, 0)
    weight = tl.exp2(top - tl.where(highest == float("-inf"), 0.0, highest))
    total = tl.sum(weight * total, 0)
    dims = tl.arange(0, head_dim_padded)
    is_dim = dims < head_dim
    parts = tl.load(
        partial + line[:, None] * head_dim + dims[None, :],
        mask=is_used[:, None] & is_dim[None, :], other=0.0,
    )  # fmt: skip
    result = tl.sum(weight[:, None] * parts, 0) / tl.where(total > 0.0, total, 1.0)
    tl.store(
        out + row * out_row_stride + head * out_head_stride + dims,
        result.to(out.dtype.element_ty), mask=is_dim,
    )  # fmt: skip


@triton.jit(do_not_specialize_on_alignment=["slot_pages", "slot_offsets"])
def _store_kernel(  # type: ignore[no-untyped-def]
    key, value, pool, slot_pages, slot_offsets,
    key_row_stride, key_head_stride, value_row_stride, value_head_stride,
    num_kv_heads: tl.constexpr, num_kv_heads_padded: tl.constexpr,
    head_dim: tl.constexpr, head_dim_padded: tl.constexpr, block_tokens: tl.constexpr,
):  # fmt: skip
    """One token's keys and values of all heads."""
    token = tl.program_id(0).to(tl.int64)
    page = tl.load(slot_pages + token).to(tl.int64)
    if page < 0:
        return
    offset = tl.load(slot_offsets + token)
    heads = tl.arange(0, num_kv_heads_padded)[:, None]
    dims = tl.arange(0, head_dim_padded)[None, :]
    is_element = (heads < num_kv_heads) & (dims < head_dim)
    keys = tl.load(
        key + token * key_row_stride + heads * key_head_stride + dims, mask=is_element
    )  # fmt: skip
    values = tl.load(
        value + token * value_row_stride + heads * value_head_stride + dims, mask=is_element
    )  # fmt: skip
    halves: tl.constexpr = num_kv_heads * block_tokens * head_dim
    place = pool + page * (2 * halves) + (heads * block_tokens + offset) * head_dim + dims
    tl.store(place, keys, mask=is_element)
    tl.store(place + halves, values, mask=is_element)
