"""Paged attention on the CPU that reads every page once, in place (numba).

For decodes and short prefills, which are bound by memory: the history streams through the caches
page by page, bf16 is widened in registers, and the softmax is online, so nothing is gathered,
copied or repeated for grouped heads. One task a (sequence, KV head).
"""

from typing import Any

import numba
import numpy as np
import torch
from llvmlite import ir
from numba import njit, prange, types
from numba.extending import intrinsic, overload

from kernels.compile_lock import compiling
from kernels.paged_attention.interface import AttentionShape, RaggedBatch

LOWEST = np.float32(-1e30)


_COMPILED: set[tuple[tuple[np.dtype[Any], bool], ...]] = set()


def paged_attention_cpu(
    query: torch.Tensor,
    pool: torch.Tensor,
    layer: int,
    batch: RaggedBatch,
    shape: AttentionShape,
    out: torch.Tensor,
    seqs: range,
) -> None:
    """Write ``softmax(mask(scale * q K^T)) V`` of the sequences `seqs` into their rows of `out`.

    Args:
        query: ``[num_rows, num_heads, head_dim]`` bf16 or float32, last dimension contiguous.
        pool: ``[num_pages, 2, num_kv_heads, block_tokens, head_dim]``, same dtype, contiguous.
        out: like `query`; only the rows of `seqs` are written.
    """
    first, last = seqs.start, seqs.stop
    arrays = (
        _raw(query),
        _raw(pool),
        batch.page_tables[layer].numpy(),
        np.asarray(batch.slots[first:last], np.int64),
        np.asarray(batch.query_starts[first : last + 1], np.int64),
        np.asarray(batch.context_lens[first:last], np.int64),
    )
    result = _raw(out)
    numbers = (np.float32(shape.scale), shape.window, np.float32(shape.softcap))
    # What numba compiles for; whatever else differs is the same at every call.
    signature = tuple((array.dtype, array.flags.c_contiguous) for array in (*arrays, result))
    if signature in _COMPILED:
        _attend(*arrays, *numbers, result)
        return
    with compiling():
        _attend(*arrays, *numbers, result)
    _COMPILED.add(signature)


def supports(query: torch.Tensor) -> bool:
    """Whether this kernel takes tensors like `query`."""
    return query.device.type == "cpu" and query.dtype in (torch.bfloat16, torch.float32)


def _raw(tensor: torch.Tensor) -> "np.typing.NDArray[np.generic]":
    """The tensor's memory: float32 as it is, bf16 as its bits."""
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy()
    return tensor.numpy()


@intrinsic
def _float_of_bits(typing_context, bits):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.uint32), generate


@intrinsic
def _bits_of_float(typing_context, value):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.bitcast(args[0], ir.IntType(32))

    return types.uint32(types.float32), generate


def _widen(raw):  # type: ignore[no-untyped-def]
    """A stored element as float32 (compiled code only)."""
    raise NotImplementedError


@overload(_widen, inline="always")
def _overload_widen(raw):  # type: ignore[no-untyped-def]
    if raw == types.uint16:
        return lambda raw: _float_of_bits(np.uint32(raw) << np.uint32(16))
    return lambda raw: np.float32(raw)  # noqa: PLW0108


def _narrow(value, like):  # type: ignore[no-untyped-def]
    """A float32 as an element of the kind of `like` (compiled code only)."""
    raise NotImplementedError


@overload(_narrow, inline="always")
def _overload_narrow(value, like):  # type: ignore[no-untyped-def]
    if like == types.uint16:

        def round_to_nearest_even(value, like):  # type: ignore[no-untyped-def]
            bits = _bits_of_float(np.float32(value))
            odd = (bits >> np.uint32(16)) & np.uint32(1)
            return np.uint16((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16))

        return round_to_nearest_even
    return lambda value, like: np.float32(value)


@njit(inline="always", fastmath=True)
def _exp(x):  # type: ignore[no-untyped-def]
    """e^x for x <= 0 in float32, relative error 2e-7; vectorizes, unlike a call into libm."""
    y = max(x, np.float32(-87.0)) * np.float32(1.4426950408889634)
    whole = np.floor(y)
    f = y - whole
    series = np.float32(0.001333355814) + f * np.float32(0.000154035303)
    series = np.float32(0.009618129107) + f * series
    series = np.float32(0.055504108664) + f * series
    series = np.float32(0.240226506959) + f * series
    series = np.float32(0.693147180559) + f * series
    power = np.uint32(np.int32(whole) + np.int32(127)) << np.uint32(23)
    return (np.float32(1.0) + f * series) * _float_of_bits(power)


@njit(parallel=True, fastmath=True, nogil=True, cache=True)
def _attend(query, pool, tables, slots, starts, contexts, scale, window, softcap, out):  # type: ignore[no-untyped-def]
    num_kv_heads = pool.shape[2]
    for task in prange(contexts.shape[0] * num_kv_heads):
        seq = task // num_kv_heads
        if starts[seq + 1] > starts[seq]:
            _attend_head(
                query, pool, tables[slots[seq]], starts[seq], starts[seq + 1] - starts[seq],
                contexts[seq], task % num_kv_heads, scale, window, softcap, out,
            )  # fmt: skip


@njit(fastmath=True, nogil=True, cache=True)
def _attend_head(query, pool, pages, start, num_new, context, kv_head, scale, window, softcap, out):  # type: ignore[no-untyped-def]
    block_tokens, head_dim = pool.shape[3], pool.shape[4]
    group = query.shape[1] // pool.shape[2]
    num_rows = num_new * group  # row r is query r // group, head kv_head * group + r % group
    q = np.empty((num_rows, head_dim), np.float32)
    for r in range(num_rows):
        for d in range(head_dim):
            q[r, d] = _widen(query[start + r // group, kv_head * group + r % group, d]) * scale
    acc = np.zeros((num_rows, head_dim), np.float32)
    top = np.full(num_rows, LOWEST)
    total = np.zeros(num_rows, np.float32)
    scores = np.empty(block_tokens, np.float32)
    first_block = 0
    if window > 0:
        first_block = max(0, context - num_new - window + 1) // block_tokens
    for block in range(first_block, (context + block_tokens - 1) // block_tokens):
        page_keys = pool[pages[block], 0, kv_head]
        page_values = pool[pages[block], 1, kv_head]
        at = block * block_tokens
        count = min(block_tokens, context - at)
        for r in range(num_rows):
            position = context - num_new + r // group
            end = min(count, position + 1 - at)
            begin = max(0, position - window + 1 - at) if window > 0 else 0
            if end <= begin:
                continue
            for j in range(begin, end):
                dot = np.float32(0.0)
                for d in range(head_dim):
                    dot += q[r, d] * _widen(page_keys[j, d])
                scores[j] = dot
            if softcap > 0.0:
                for j in range(begin, end):
                    scores[j] = softcap * np.float32(np.tanh(scores[j] / softcap))
            highest = top[r]
            for j in range(begin, end):
                highest = max(highest, scores[j])
            shrink = _exp(top[r] - highest)
            added = np.float32(0.0)
            for j in range(begin, end):
                weight = _exp(scores[j] - highest)
                scores[j] = weight
                added += weight
            total[r] = total[r] * shrink + added
            top[r] = highest
            for d in range(head_dim):
                acc[r, d] *= shrink
            for j in range(begin, end):
                weight = scores[j]
                for d in range(head_dim):
                    acc[r, d] += weight * _widen(page_values[j, d])
    for r in range(num_rows):
        row, head = start + r // group, kv_head * group + r % group
        inverse = np.float32(1.0) / total[r]
        for d in range(head_dim):
            out[row, head, d] = _narrow(acc[r, d] * inverse, out[row, head, d])


def set_num_threads(num_threads: int) -> None:
    """Use this many cores."""
    numba.set_num_threads(min(num_threads, numba.config.NUMBA_NUM_THREADS))
