"""RMS norm, rotary embedding and gated activation of packed rows on a CUDA device (Triton).

Between the products of a decode step there are few bytes, so what counts is the number of launches:
torch makes six of a norm, ten of a rotary embedding and two of a gate, of some 2 us each. Here each
is one. In a prefill each is one pass over memory: bound by bandwidth, with s bytes an element
``2 s`` an element for a norm or a rotary embedding, ``3 s`` for a gate.
"""

import torch
import triton
import triton.language as tl

from kernels.paged_attention.tiles import power_of_two
from kernels.pointwise.interface import SILU, Heads, Norm, Rotary, Slots, rows_of

WIDTH_MAX = 1 << 15  # of a row that one program keeps
HEADS_TILE = 8
GATE_TILE = 1024


def supports(tensor: torch.Tensor) -> bool:
    """Whether these kernels take tensors like this one."""
    is_known = tensor.dtype in (torch.bfloat16, torch.float16, torch.float32)
    return is_known and tensor.shape[-1] <= WIDTH_MAX


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float) -> torch.Tensor:
    """See `select.rms_norm`."""
    width = x.shape[-1]
    if (rows := rows_of(x)) is None:
        return rms_norm(x.contiguous(), weight, eps, offset)
    num_outer, num_inner, outer, inner = rows
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if num_rows := num_outer * num_inner:
        padded = power_of_two(width)
        _norm_kernel[(num_rows,)](
            x, weight, out, num_inner, outer, inner, eps, offset,
            width=width, padded=padded, num_warps=_warps(padded), enable_fp_fusion=True,
        )  # fmt: skip
    return out


def rotate(
    query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `select.rotate`."""
    _, num_heads, num_tokens, width = query.shape
    num_kv_heads, rotary = key.shape[1], cos.shape[-1]
    outs = [
        torch.empty((1, num_tokens, x.shape[1], width), dtype=x.dtype, device=x.device)
        for x in (query, key)
    ]
    query_tiles = triton.cdiv(num_heads, HEADS_TILE)
    num_tiles = query_tiles + triton.cdiv(num_kv_heads, HEADS_TILE)
    if num_tokens:
        _rotate_kernel[(num_tokens, num_tiles)](
            query, key, cos, sin, *outs,
            query.stride(2), query.stride(1), key.stride(2), key.stride(1),
            num_heads=num_heads, num_kv_heads=num_kv_heads, query_tiles=query_tiles,
            heads_tile=HEADS_TILE, width=width, half=rotary // 2,
            half_padded=power_of_two(rotary // 2), rest_padded=power_of_two(width - rotary),
            num_warps=2, enable_fp_fusion=True,
        )  # fmt: skip
    return outs[0].transpose(1, 2), outs[1].transpose(1, 2)


def add_norm(
    residual: torch.Tensor,
    branch: torch.Tensor,
    scale: float,
    after: Norm | None,
    before: Norm | None,
) -> torch.Tensor:
    """See `select.add_norm`."""
    num_rows, width = residual.shape
    out = residual if before is None else torch.empty_like(residual)
    none = Norm(residual, 0.0, 0.0)  # its weight is not read
    first, second = after or none, before or none
    if num_rows:
        padded = power_of_two(width)
        _add_norm_kernel[(num_rows,)](
            residual, branch, out, scale,
            first.weight, first.eps, first.offset, second.weight, second.eps, second.offset,
            has_after=after is not None, has_before=before is not None,
            width=width, padded=padded, num_warps=_warps(padded), enable_fp_fusion=True,
        )  # fmt: skip
    return out


def rotate_store(
    heads: Heads,
    pool: torch.Tensor,
    slots: Slots,
    rotary: Rotary | None,
    query_norm: Norm | None,
    key_norm: Norm | None,
) -> torch.Tensor:
    """See `select.rotate_store`."""
    query, key, value = heads
    num_tokens, num_heads, width = query.shape
    num_kv_heads, block = pool.shape[2:4]
    out = torch.empty((num_tokens, num_heads, width), dtype=query.dtype, device=query.device)
    cos, sin, rows = rotary or Rotary(query, query, slots.offsets)
    half = 0 if rotary is None else cos.shape[-1] // 2
    none = Norm(query, 0.0, 0.0)
    first, second = query_norm or none, key_norm or none
    query_tiles = triton.cdiv(num_heads, HEADS_TILE)
    if num_tokens:
        _rotate_store_kernel[(num_tokens, query_tiles + triton.cdiv(num_kv_heads, HEADS_TILE))](
            query, key, value, out, pool, slots.pages, slots.offsets, cos, sin, rows,
            first.weight, first.eps, first.offset, second.weight, second.eps, second.offset,
            query.stride(0), query.stride(1), key.stride(0), key.stride(1),
            value.stride(0), value.stride(1),
            has_query_norm=query_norm is not None, has_key_norm=key_norm is not None,
            num_heads=num_heads, num_kv_heads=num_kv_heads, query_tiles=query_tiles,
            heads_tile=HEADS_TILE, block=block, width=width, half=half,
            half_padded=power_of_two(max(half, 1)), width_padded=power_of_two(width),
            rest_padded=power_of_two(max(width - 2 * half, 1)), num_warps=2, enable_fp_fusion=True,
        )  # fmt: skip
    return out


def gate(gate: torch.Tensor, up: torch.Tensor, activation: int) -> torch.Tensor:
    """See `select.gate`."""
    out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    num_rows, width = gate.shape[-2:]
    if num_rows:
        _gate_kernel[(num_rows, triton.cdiv(width, GATE_TILE))](
            gate, up, out, gate.stride(-2), up.stride(-2),
            width=width, tile=GATE_TILE, is_silu=activation == SILU, num_warps=4,
            enable_fp_fusion=True,
        )  # fmt: skip
    return out


def _warps(padded: int) -> int:
    return min(max(padded // 256, 1), 16)


@triton.jit(do_not_specialize=["num_inner", "eps", "offset"])
def _norm_kernel(  # type: ignore[no-untyped-def]
    x, weight, out, num_inner, outer_stride, inner_stride, eps, offset,
    width: tl.constexpr, padded: tl.constexpr,
):  # fmt: skip
    """One row."""
    row = tl.program_id(0)
    at = (row // num_inner).to(tl.int64) * outer_stride
    at += (row % num_inner).to(tl.int64) * inner_stride
    dims = tl.arange(0, padded)
    is_dim = dims < width
    values = tl.load(x + at + dims, mask=is_dim, other=0.0).to(tl.float32)
    scales = tl.load(weight + dims, mask=is_dim, other=0.0).to(tl.float32)
    mean = tl.sum(values * values, 0) / width
    values = values * tl.rsqrt(mean + eps) * (offset + scales)
    target = out + row.to(tl.int64) * width + dims
    tl.store(target, values.to(out.dtype.element_ty), mask=is_dim)


@triton.jit
def _rotate_kernel(  # type: ignore[no-untyped-def]
    query, key, cos, sin, query_out, key_out,
    query_token_stride, query_head_stride, key_token_stride, key_head_stride,
    num_heads: tl.constexpr, num_kv_heads: tl.constexpr, query_tiles: tl.constexpr,
    heads_tile: tl.constexpr, width: tl.constexpr, half: tl.constexpr,
    half_padded: tl.constexpr, rest_padded: tl.constexpr,
):  # fmt: skip
    """Some heads of one token, of its query or of its key."""
    token = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    if tile < query_tiles:
        _rotate_heads(
            query + token * query_token_stride, query_out + token * (num_heads * width),
            cos + token * (2 * half), sin + token * (2 * half), query_head_stride, tile,
            num_heads, heads_tile, width, half, half_padded, rest_padded,
        )  # fmt: skip
    else:
        _rotate_heads(
            key + token * key_token_stride, key_out + token * (num_kv_heads * width),
            cos + token * (2 * half), sin + token * (2 * half), key_head_stride, tile - query_tiles,
            num_kv_heads, heads_tile, width, half, half_padded, rest_padded,
        )  # fmt: skip


@triton.jit
def _rotate_heads(  # type: ignore[no-untyped-def]
    x, out, cos, sin, head_stride, tile,
    num_heads: tl.constexpr, heads_tile: tl.constexpr, width: tl.constexpr, half: tl.constexpr,
    half_padded: tl.constexpr, rest_padded: tl.constexpr,
):  # fmt: skip
    heads = tile * heads_tile + tl.arange(0, heads_tile)[:, None]
    dims = tl.arange(0, half_padded)[None, :]
    is_dim = dims < half
    is_element = (heads < num_heads) & is_dim
    source = x + heads * head_stride + dims
    target = out + heads * width + dims
    low = tl.load(source, mask=is_element, other=0.0).to(tl.float32)
    high = tl.load(source + half, mask=is_element, other=0.0).to(tl.float32)
    low_cos = tl.load(cos + dims, mask=is_dim, other=0.0).to(tl.float32)
    low_sin = tl.load(sin + dims, mask=is_dim, other=0.0).to(tl.float32)
    high_cos = tl.load(cos + half + dims, mask=is_dim, other=0.0).to(tl.float32)
    high_sin = tl.load(sin + half + dims, mask=is_dim, other=0.0).to(tl.float32)
    element = out.dtype.element_ty
    tl.store(target, (low * low_cos - high * low_sin).to(element), mask=is_element)
    tl.store(target + half, (high * high_cos + low * high_sin).to(element), mask=is_element)
    if 2 * half < width:
        others = tl.arange(0, rest_padded)[None, :]
        is_other = (heads < num_heads) & (others < width - 2 * half)
        kept = tl.load(x + heads * head_stride + 2 * half + others, mask=is_other)
        tl.store(out + heads * width + 2 * half + others, kept, mask=is_other)


@triton.jit
def _gate_kernel(  # type: ignore[no-untyped-def]
    gate, up, out, gate_row_stride, up_row_stride,
    width: tl.constexpr, tile: tl.constexpr, is_silu: tl.constexpr,
):  # fmt: skip
    """A piece of one row."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * tile + tl.arange(0, tile)
    is_column = columns < width
    g = tl.load(gate + row * gate_row_stride + columns, mask=is_column, other=0.0).to(tl.float32)
    u = tl.load(up + row * up_row_stride + columns, mask=is_column, other=0.0).to(tl.float32)
    level = g if is_silu else 1.5957691216057308 * (g + 0.044715 * g * g * g)
    power = tl.exp(-tl.abs(level))  # never overflows
    share = tl.where(level < 0.0, power, 1.0) / (1.0 + power)
    tl.store(out + row * width + columns, (g * share * u).to(out.dtype.element_ty), mask=is_column)


@triton.jit(do_not_specialize=["scale", "after_eps", "after_offset", "before_eps", "before_offset"])
def _add_norm_kernel(  # type: ignore[no-untyped-def]
    residual, branch, out, scale, after, after_eps, after_offset,
    before, before_eps, before_offset, has_after: tl.constexpr, has_before: tl.constexpr,
    width: tl.constexpr, padded: tl.constexpr,
):  # fmt: skip
    """One row."""
    element = residual.dtype.element_ty
    at = tl.program_id(0).to(tl.int64) * width
    dims = tl.arange(0, padded)
    is_dim = dims < width
    part = tl.load(branch + at + dims, mask=is_dim, other=0.0).to(tl.float32)
    if has_after:
        weight = tl.load(after + dims, mask=is_dim, other=0.0).to(tl.float32)
        mean = tl.sum(part * part, 0) / width
        part *= tl.rsqrt(mean + after_eps) * (after_offset + weight)
        part = part.to(element).to(tl.float32)
    part = (part * scale).to(element).to(tl.float32)
    stream = tl.load(residual + at + dims, mask=is_dim, other=0.0).to(tl.float32) + part
    stream = stream.to(element)
    tl.store(residual + at + dims, stream, mask=is_dim)
    if has_before:
        values = stream.to(tl.float32)
        weight = tl.load(before + dims, mask=is_dim, other=0.0).to(tl.float32)
        mean = tl.sum(values * values, 0) / width
        values *= tl.rsqrt(mean + before_eps) * (before_offset + weight)
        tl.store(out + at + dims, values.to(element), mask=is_dim)


@triton.jit(
    do_not_specialize=["query_eps", "query_offset", "key_eps", "key_offset"],
    # One layer's part of a table may begin anywhere.
    do_not_specialize_on_alignment=["pages", "offsets", "rows"],
)
def _rotate_store_kernel(  # type: ignore[no-untyped-def]
    query, key, value, out, pool, pages, offsets, cos, sin, rows,
    query_weight, query_eps, query_offset, key_weight, key_eps, key_offset,
    query_token_stride, query_head_stride, key_token_stride, key_head_stride,
    value_token_stride, value_head_stride,
    has_query_norm: tl.constexpr, has_key_norm: tl.constexpr,
    num_heads: tl.constexpr, num_kv_heads: tl.constexpr, query_tiles: tl.constexpr,
    heads_tile: tl.constexpr, block: tl.constexpr, width: tl.constexpr, half: tl.constexpr,
    half_padded: tl.constexpr, width_padded: tl.constexpr, rest_padded: tl.constexpr,
):  # fmt: skip
    """Some heads of one token: of its query, or of its key and its value."""
    token = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    row = 0
    if half > 0:
        row = tl.load(rows + token) * (2 * half)
    if tile < query_tiles:
        _turn_heads(
            query + token * query_token_stride, query_head_stride,
            out + token * (num_heads * width), width, cos + row, sin + row,
            query_weight, query_eps, query_offset, tile, num_heads, has_query_norm,
            heads_tile, width, half, half_padded, width_padded, rest_padded,
        )  # fmt: skip
    else:
        page = tl.load(pages + token).to(tl.int64)
        if page >= 0:
            side = num_kv_heads * block * width
            place = pool + page * (2 * side) + tl.load(offsets + token) * width
            _turn_heads(
                key + token * key_token_stride, key_head_stride, place, block * width,
                cos + row, sin + row, key_weight, key_eps, key_offset, tile - query_tiles,
                num_kv_heads, has_key_norm, heads_tile, width, half, half_padded, width_padded,
                rest_padded,
            )  # fmt: skip
            heads = (tile - query_tiles) * heads_tile + tl.arange(0, heads_tile)[:, None]
            dims = tl.arange(0, width_padded)[None, :]
            is_element = (heads < num_kv_heads) & (dims < width)
            source = value + token * value_token_stride + heads * value_head_stride + dims
            kept = tl.load(source, mask=is_element)
            tl.store(place + side + heads * (block * width) + dims, kept, mask=is_element)


@triton.jit
def _turn_heads(  # type: ignore[no-untyped-def]
    x, head_stride, out, out_head_stride, cos, sin, weight, eps, offset, tile, num_heads,
    has_norm: tl.constexpr, heads_tile: tl.constexpr, width: tl.constexpr, half: tl.constexpr,
    half_padded: tl.constexpr, width_padded: tl.constexpr, rest_padded: tl.constexpr,
):  # fmt: skip
    element = out.dtype.element_ty
    heads = tile * heads_tile + tl.arange(0, heads_tile)[:, None]
    is_head = heads < num_heads
    source, target = x + heads * head_stride, out + heads * out_head_stride
    scales = tl.full((heads_tile, 1), 1.0, tl.float32)
    if has_norm:
        dims = tl.arange(0, width_padded)[None, :]
        whole = tl.load(source + dims, mask=is_head & (dims < width), other=0.0).to(tl.float32)
        scales = tl.rsqrt(tl.sum(whole * whole, 1) / width + eps)[:, None]
    if half > 0:
        dims = tl.arange(0, half_padded)[None, :]
        is_dim = dims < half
        low = _normed(source + dims, is_head & is_dim, scales, weight + dims, is_dim, offset,
                      has_norm, element)  # fmt: skip
        high = _normed(source + half + dims, is_head & is_dim, scales, weight + half + dims,
                       is_dim, offset, has_norm, element)  # fmt: skip
        low_cos = tl.load(cos + dims, mask=is_dim, other=0.0).to(tl.float32)
        low_sin = tl.load(sin + dims, mask=is_dim, other=0.0).to(tl.float32)
        high_cos = tl.load(cos + half + dims, mask=is_dim, other=0.0).to(tl.float32)
        high_sin = tl.load(sin + half + dims, mask=is_dim, other=0.0).to(tl.float32)
        turned = low * low_cos - high * low_sin
        tl.store(target + dims, turned.to(element), mask=is_head & is_dim)
        turned = high * high_cos + low * high_sin
        tl.store(target + half + dims, turned.to(element), mask=is_head & is_dim)
    if 2 * half < width:
        dims = 2 * half + tl.arange(0, rest_padded)[None, :]
        is_dim = dims < width
        rest = _normed(source + dims, is_head & is_dim, scales, weight + dims, is_dim, offset,
                       has_norm, element)  # fmt: skip
        tl.store(target + dims, rest.to(element), mask=is_head & is_dim)


@triton.jit
def _normed(  # type: ignore[no-untyped-def]
    source, is_element, scales, weight, is_dim, offset, has_norm: tl.constexpr,
    element: tl.constexpr,
):  # fmt: skip
    """float32, rounded to the kind of the elements where a norm of its own would."""
    values = tl.load(source, mask=is_element, other=0.0).to(tl.float32)
    if has_norm:
        weights = tl.load(weight, mask=is_dim, other=0.0).to(tl.float32)
        values = (values * scales * (offset + weights)).to(element).to(tl.float32)
    return values
