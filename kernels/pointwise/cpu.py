"""RMS norm, rotary embedding and gated activation of packed rows on the CPU (numba).

Called once or more a layer, also for a single row, so the call itself counts: tensors go in as
addresses, because unpacking them into arrays would take longer than the work. Rows of a prefill are
shared out among threads.
"""

from typing import Any

import numpy as np
import torch
from numba import carray, njit, prange

from kernels.bits import LOOSE, narrow, pointer, sigmoid, widen
from kernels.compile_lock import call_compiled
from kernels.pointwise.interface import SILU, Heads, Norm, Rotary, Slots, rows_of

# Elements from which a second thread pays for being woken.
SHARED_FROM = 1 << 16

# Stands for the kind of the elements in a signature: bf16 as its bits, or float32.
_KINDS = {torch.bfloat16: np.zeros(1, np.uint16), torch.float32: np.zeros(1, np.float32)}


def supports(tensor: torch.Tensor) -> bool:
    """Whether these kernels take tensors like this one."""
    return tensor.device.type == "cpu" and tensor.dtype in _KINDS


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float) -> torch.Tensor:
    """See `select.rms_norm`; bf16 or float32."""
    width = x.shape[-1]
    if (rows := rows_of(x)) is None:
        return rms_norm(x.contiguous(), weight, eps, offset)
    num_outer, num_inner, outer, inner = rows
    out = torch.empty(x.shape, dtype=x.dtype)
    _call(
        _rms_norm if num_outer * num_inner * width < SHARED_FROM else _rms_norm_shared,
        x.dtype, x.data_ptr(), weight.data_ptr(), out.data_ptr(),
        num_outer, num_inner, width, outer, inner, eps, offset,
    )  # fmt: skip
    return out


def rotate(
    query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `select.rotate`."""
    outs = []
    for x in (query, key):
        _, num_heads, num_tokens, width = x.shape
        _, head, token, _ = x.stride()
        out = torch.empty((1, num_tokens, num_heads, width), dtype=x.dtype)
        _call(
            _rotate if out.numel() < SHARED_FROM else _rotate_shared,
            x.dtype, x.data_ptr(), cos.data_ptr(), sin.data_ptr(), out.data_ptr(),
            num_tokens, num_heads, width, cos.shape[-1], token, head,
        )  # fmt: skip
        outs.append(out.transpose(1, 2))
    return outs[0], outs[1]


def add_norm(
    residual: torch.Tensor,
    branch: torch.Tensor,
    scale: float,
    after: Norm | None,
    before: Norm | None,
) -> torch.Tensor:
    """See `select.add_norm`; bf16 or float32."""
    num_rows, width = residual.shape
    out = residual if before is None else torch.empty_like(residual)
    none = Norm(residual, 0.0, 0.0)  # its weight is not read
    _call(
        _add_norm if num_rows * width < SHARED_FROM else _add_norm_shared,
        residual.dtype, residual.data_ptr(), branch.data_ptr(), out.data_ptr(), num_rows, width,
        float(scale), after is not None, *_numbers(after or none), before is not None,
        *_numbers(before or none),
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
    """See `select.rotate_store`; bf16 or float32."""
    query, key, value = heads
    num_tokens, num_heads, width = query.shape
    out = torch.empty((num_tokens, num_heads, width), dtype=query.dtype)
    cos, sin, rows = rotary or Rotary(query, query, slots.offsets)
    none = Norm(query, 0.0, 0.0)
    if rotary is not None:  # compiled for one kind of table: see `RotaryTable`
        cos, sin = cos.float(), sin.float()
    num_kv_heads, block = pool.shape[2:4]
    is_large = out.numel() + key.numel() >= SHARED_FROM
    call_compiled(
        _rotate_store_shared if is_large else _rotate_store,
        query.dtype, _KINDS[query.dtype], _KINDS[torch.float32],
        query.data_ptr(), key.data_ptr(), value.data_ptr(), out.data_ptr(), pool.data_ptr(),
        slots.pages.data_ptr(), slots.offsets.data_ptr(),
        0 if rotary is None else cos.shape[-1], cos.data_ptr(), sin.data_ptr(), rows.data_ptr(),
        query_norm is not None, *_numbers(query_norm or none),
        key_norm is not None, *_numbers(key_norm or none),
        num_tokens, num_heads, num_kv_heads, width, block,
        query.stride(0), query.stride(1), key.stride(0), key.stride(1),
        value.stride(0), value.stride(1),
    )  # fmt: skip
    return out


def gate(gate: torch.Tensor, up: torch.Tensor, activation: int) -> torch.Tensor:
    """See `select.gate`."""
    out = torch.empty(gate.shape, dtype=gate.dtype)
    width = gate.shape[-1]
    num_rows = gate.shape[-2]
    _call(
        _gate if num_rows * width < SHARED_FROM else _gate_shared,
        gate.dtype, gate.data_ptr(), up.data_ptr(), out.data_ptr(),
        num_rows, width, gate.stride(-2), up.stride(-2), activation,
    )  # fmt: skip
    return out


def warm_up(dtype: torch.dtype) -> None:
    """Compile everything for elements of this kind, so that no step waits for it."""
    for num_rows in (1, SHARED_FROM // 64):
        rows = torch.zeros((1, num_rows, 64), dtype=dtype)
        rms_norm(rows, rows[0, 0], 1.0, 0.0)
        rotate(rows[:, None], rows[:, None], rows, rows)
        gate(rows, rows, SILU)
        norm = Norm(rows[0, 0], 1.0, 0.0)
        add_norm(rows[0], rows[0].clone(), 1.0, norm, norm)
        heads = Heads(rows[0, :, None], rows[0, :, None], rows[0, :, None])
        nowhere = torch.full((num_rows,), -1, dtype=torch.int32)
        pool = torch.zeros((1, 2, 1, 1, 64), dtype=dtype)
        turns = Rotary(rows[0].float(), rows[0].float(), nowhere.long() + 1)
        rotate_store(heads, pool, Slots(nowhere, nowhere), turns, norm, norm)


def _numbers(norm: Norm) -> tuple[int, float, float]:
    return norm.weight.data_ptr(), float(norm.eps), float(norm.offset)


def _call(function: Any, dtype: torch.dtype, *numbers: float) -> None:
    call_compiled(function, dtype, _KINDS[dtype], *numbers)


@njit(fastmath=LOOSE, error_model="numpy", inline="always")
def _row(kind, address, at, width):  # type: ignore[no-untyped-def]
    """`width` elements that begin `at` elements behind the address."""
    return carray(pointer(address + at * kind.itemsize), width, kind.dtype)


@njit(fastmath=LOOSE, error_model="numpy", nogil=True, cache=True)
def _rms_norm(kind, x, weight, out, num_outer, num_inner, width, outer, inner, eps, offset):  # type: ignore[no-untyped-def]
    scales = _row(kind, weight, 0, width)
    for i in range(num_outer):
        for j in range(num_inner):
            source = _row(kind, x, i * outer + j * inner, width)
            target = _row(kind, out, (i * num_inner + j) * width, width)
            total = np.float32(0.0)
            for d in range(width):
                value = widen(source[d])
                total += value * value
            mean = total / np.float32(width)
            scale = np.float32(1.0) / np.sqrt(mean + np.float32(eps))
            for d in range(width):
                value = widen(source[d]) * scale * (np.float32(offset) + widen(scales[d]))
                target[d] = narrow(value, target[d])


@njit(fastmath=LOOSE, error_model="numpy", nogil=True, cache=True, parallel=True)
def _rms_norm_shared(kind, x, weight, out, num_outer, num_inner, width, outer, inner, eps, offset):  # type: ignore[no-untyped-def]
    size = kind.itemsize
    for i in prange(num_outer):
        _rms_norm(
            kind, x + i * outer * size, weight, out + i * num_inner * width * size,
            1, num_inner, width, outer, inner, eps, offset,
        )  # fmt: skip


@njit(fastmath=LOOSE, error_model="numpy", nogil=True, cache=True)
def _rotate(kind, x, cos, sin, out, num_tokens, num_heads, width, rotary, token, head):  # type: ignore[no-untyped-def]
    half = rotary // 2
    for t in range(num_tokens):
        c = _row(kind, cos, t * rotary, rotary)
        s = _row(kind, sin, t * rotary, rotary)
        for h in range(num_heads):
            source = _row(kind, x, t * token + h * head, width)
            target = _row(kind, out, (t * num_heads + h) * width, width)
            for d in range(half):
                a, b = widen(source[d]), widen(source[d + half])
                low = a * widen(c[d]) - b * widen(s[d])
                high = b * widen(c[d + half]) + a * widen(s[d + half])
                target[d] = narrow(low, target[d])
                target[d + half] = narrow(high, target[d])
            for d in range(rotary, width):
                target[d] = source[d]


@njit(fastmath=LOOSE, error_model="numpy", nogil=True, cache=True, parallel=True)
def _rotate_shared(kind, x, cos, sin, out, num_tokens, num_heads, width, rotary, token, head):  # type: ignore[no-untyped-def]
    size = kind.itemsize
    for t in prange(num_tokens):
        _rotate(
            kind, x + t * token * size, cos + t * rotary * size, sin + t * rotary * size,
            out + t * num_heads * width * size, 1, num_heads, width, rotary, token, head,
        )  # fmt: skip


@njit(fastmath=LOOSE, error_model="numpy", nogil=True, cache=True)
def _gate(kind, gate, up, out, num_rows, width, gate_stride, up_stride, activation):  # type: ignore[no-untyped-def]
    for t in range(num_rows):
        gates = _row(kind, gate, t * gate_stride, width)
        ups = _row(kind, up, t * up_stride, width)
        target = _row(kind, out, t * width, width)
        if activation == SILU:
            for d in range(width):
                g = widen(gates[d])
                target[d] = narrow(g * sigmoid(g) * widen(ups[d]), target[d])
        else:
            for d in range(width):
                g = widen(gates[d])
                cubic = g + np.float32(0.044715) * g * g * g
                share = sigmoid(np.float32(1.5957691216057308) * cubic)
                target[d] = narrow(g * share * widen(ups[d]), target[d])


@njit(fastmath=LOOSE, error_model="numpy", nogil=True, cache=True, parallel=True)
def _gate_shared(kind, gate, up, out, num_rows, width, gate_stride, up_stride, activation):  # type: ignore[no-untyped-def]
    size = kind.itemsize
    for t in prange(num_rows):
        _gate(
            kind, gate + t * gate_stride * size, up + t * up_stride * size,
            out + t * width * size, 1, width, gate_stride, up_stride, activation,
        )  # fmt: skip


@njit(fastmath=LOOSE, error_model="numpy", inline="always")
def _scale_of(source, width, eps):  # type: ignore[no-untyped-def]
    """One over the root mean square of a row."""
    total = np.float32(0.0)
    for d in range(width):
        value = widen(source[d])
        total += value * value
    return np.float32(1.0) / np.sqrt(total / np.float32(width) + np.float32(eps))


@njit(fastmath=LOOSE, error_model="numpy", nogil=True, cache=True)
def _add_norm(  # type: ignore[no-untyped-def]
    kind, residual, branch, out, num_rows, width, scale,
    has_after, after, after_eps, after_offset, has_before, before, before_eps, before_offset,
):  # fmt: skip
    factor = np.float32(scale)
    after_scales, before_scales = _row(kind, after, 0, width), _row(kind, before, 0, width)
    for t in range(num_rows):
        stream = _row(kind, residual, t * width, width)
        added = _row(kind, branch, t * width, width)
        target = _row(kind, out, t * width, width)
        if has_after:
            norm = _scale_of(added, width, after_eps)
            for d in range(width):
                weight = np.float32(after_offset) + widen(after_scales[d])
                part = widen(narrow(widen(added[d]) * norm * weight, stream[d]))
                part = widen(narrow(part * factor, stream[d]))
                stream[d] = narrow(widen(stream[d]) + part, stream[d])
        else:
            for d in range(width):
                part = widen(narrow(widen(added[d]) * factor, stream[d]))
                stream[d] = narrow(widen(stream[d]) + part, stream[d])
        if has_before:
            norm = _scale_of(stream, width, before_eps)
            for d in range(width):
                weight = np.float32(before_offset) + widen(before_scales[d])
                target[d] = narrow(widen(stream[d]) * norm * weight, target[d])


@njit(fastmath=LOOSE, error_model="numpy", nogil=True, cache=True, parallel=True)
def _add_norm_shared(  # type: ignore[no-untyped-def]
    kind, residual, branch, out, num_rows, width, scale,
    has_after, after, after_eps, after_offset, has_before, before, before_eps, before_offset,
):  # fmt: skip
    size = kind.itemsize
    for t in prange(num_rows):
        at = t * width * size
        _add_norm(
            kind, residual + at, branch + at, out + at, 1, width, scale,
            has_after, after, after_eps, after_offset, has_before, before, before_eps,
            before_offset,
        )  # fmt: skip


@njit(fastmath=LOOSE, error_model="numpy", inline="always")
def _turn(kind, source, target, width, rotary, c, s, has_norm, scales, eps, offset):  # type: ignore[no-untyped-def]
    """One head of one token: normed, if it is to be, and turned."""
    norm = _scale_of(source, width, eps) if has_norm else np.float32(1.0)
    if has_norm:
        for d in range(width):
            weight = np.float32(offset) + widen(scales[d])
            target[d] = narrow(widen(source[d]) * norm * weight, target[d])
    else:
        for d in range(width):
            target[d] = source[d]
    half = rotary // 2
    for d in range(half):
        a, b = widen(target[d]), widen(target[d + half])
        low = a * widen(c[d]) - b * widen(s[d])
        high = b * widen(c[d + half]) + a * widen(s[d + half])
        target[d] = narrow(low, target[d])
        target[d + half] = narrow(high, target[d])


@njit(fastmath=LOOSE, error_model="numpy", nogil=True, cache=True)
def _rotate_store(  # type: ignore[no-untyped-def]
    kind, turns, query, key, value, out, pool, pages, offsets, rotary, cos, sin, rows,
    has_query_norm, query_weight, query_eps, query_offset,
    has_key_norm, key_weight, key_eps, key_offset,
    num_tokens, num_heads, num_kv_heads, width, block,
    query_token, query_head, key_token, key_head, value_token, value_head,
):  # fmt: skip
    query_scales = _row(kind, query_weight, 0, width)
    key_scales = _row(kind, key_weight, 0, width)
    page_of = carray(pointer(pages), num_tokens, np.int32)
    offset_of = carray(pointer(offsets), num_tokens, np.int32)
    row_of = carray(pointer(rows), num_tokens if rotary else 0, np.int64)
    side = num_kv_heads * block * width  # elements of all keys, or of all values, of a page
    for t in range(num_tokens):
        at = row_of[t] * rotary if rotary else np.int64(0)
        c, s = _row(turns, cos, at, rotary), _row(turns, sin, at, rotary)
        for h in range(num_heads):
            source = _row(kind, query, t * query_token + h * query_head, width)
            target = _row(kind, out, (t * num_heads + h) * width, width)
            _turn(
                kind, source, target, width, rotary, c, s,
                has_query_norm, query_scales, query_eps, query_offset,
            )  # fmt: skip
        page = np.int64(page_of[t])
        if page < 0:
            continue
        for h in range(num_kv_heads):
            place = page * 2 * side + (h * block + np.int64(offset_of[t])) * width
            source = _row(kind, key, t * key_token + h * key_head, width)
            _turn(
                kind, source, _row(kind, pool, place, width), width, rotary, c, s,
                has_key_norm, key_scales, key_eps, key_offset,
            )  # fmt: skip
            source = _row(kind, value, t * value_token + h * value_head, width)
            target = _row(kind, pool, place + side, width)
            for d in range(width):
                target[d] = source[d]


@njit(fastmath=LOOSE, error_model="numpy", nogil=True, cache=True, parallel=True)
def _rotate_store_shared(  # type: ignore[no-untyped-def]
    kind, turns, query, key, value, out, pool, pages, offsets, rotary, cos, sin, rows,
    has_query_norm, query_weight, query_eps, query_offset,
    has_key_norm, key_weight, key_eps, key_offset,
    num_tokens, num_heads, num_kv_heads, width, block,
    query_token, query_head, key_token, key_head, value_token, value_head,
):  # fmt: skip
    size = kind.itemsize
    for t in prange(num_tokens):
        _rotate_store(
            kind, turns, query + t * query_token * size, key + t * key_token * size,
            value + t * value_token * size, out + t * num_heads * width * size, pool,
            pages + t * 4, offsets + t * 4, rotary, cos, sin, rows + t * 8,
            has_query_norm, query_weight, query_eps, query_offset,
            has_key_norm, key_weight, key_eps, key_offset,
            1, num_heads, num_kv_heads, width, block,
            query_token, query_head, key_token, key_head, value_token, value_head,
        )  # fmt: skip
