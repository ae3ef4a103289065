"""Paged attention on the CPU that reads every page once, in place (numba).

For decodes and the shortest prefills, which are bound by memory: the history streams through the
caches page by page, bf16 is widened in registers, and the softmax is online, so nothing is
gathered, copied or repeated for grouped heads. One task a (sequence, KV head).
"""

import numba
import numpy as np
import torch
from numba import njit, prange

from kernels.bits import LOOSE, narrow, widen
from kernels.compile_lock import call_compiled
from kernels.paged_attention.interface import AttentionShape, RaggedBatch
from kernels.paged_attention.raw import raw, raw_rows
from kernels.paged_attention.softmax import (
    LOWEST,
    capped,
    first_seen,
    highest_of,
    power_of_two,
    powers,
)


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
    on_host = batch.arrays
    call_compiled(
        _attend,
        (query.dtype, out.is_contiguous()),
        *raw_rows(query),
        raw(pool),
        on_host.page_tables[layer],
        on_host.slots[first:last],
        on_host.query_starts[first : last + 1],
        on_host.context_lens[first:last],
        *powers(shape),
        shape.reach,
        raw(out),
    )


def supports(query: torch.Tensor) -> bool:
    """Whether this kernel takes tensors like `query`."""
    return query.device.type == "cpu" and query.dtype in (torch.bfloat16, torch.float32)


@njit(parallel=True, fastmath=LOOSE, error_model="numpy", nogil=True, cache=True)
def _attend(  # type: ignore[no-untyped-def]
    query, row_step, head_step, pool, tables, slots, starts, contexts, scale, cap, reach, out
):
    num_kv_heads = pool.shape[2]
    for task in prange(contexts.shape[0] * num_kv_heads):
        seq = task // num_kv_heads
        if starts[seq + 1] > starts[seq]:
            _attend_head(
                query, row_step, head_step, pool, tables[slots[seq]], starts[seq],
                starts[seq + 1] - starts[seq], contexts[seq], task % num_kv_heads, scale, cap,
                reach, out,
            )  # fmt: skip


@njit(fastmath=LOOSE, error_model="numpy", nogil=True, cache=True)
def _attend_head(  # type: ignore[no-untyped-def]
    query, row_step, head_step, pool, pages, start, num_new, context, kv_head, scale, cap, reach,
    out,
):  # fmt: skip
    block_tokens, head_dim = pool.shape[3], pool.shape[4]
    group = out.shape[1] // pool.shape[2]
    num_rows = num_new * group  # row r is query r // group, head kv_head * group + r % group
    q = np.empty((num_rows, head_dim), np.float32)
    for r in range(num_rows):
        place = (start + r // group) * row_step + (kv_head * group + r % group) * head_step
        for d in range(head_dim):
            q[r, d] = widen(query[place + d]) * scale
    acc = np.zeros((num_rows, head_dim), np.float32)
    top = np.full(num_rows, LOWEST)
    total = np.zeros(num_rows, np.float32)
    scores = np.empty(block_tokens, np.float32)
    first_block = first_seen(context - num_new, reach) // block_tokens
    for block in range(first_block, (context + block_tokens - 1) // block_tokens):
        page_keys = pool[pages[block], 0, kv_head]
        page_values = pool[pages[block], 1, kv_head]
        at = block * block_tokens
        count = min(block_tokens, context - at)
        for r in range(num_rows):
            position = context - num_new + r // group
            end = min(count, position + 1 - at)
            begin = max(0, first_seen(position, reach) - at)
            if end <= begin:
                continue
            for j in range(begin, end):
                dot = np.float32(0.0)
                for d in range(head_dim):
                    dot += q[r, d] * widen(page_keys[j, d])
                scores[j] = dot
            if cap > 0.0:
                for j in range(begin, end):
                    scores[j] = capped(scores[j], cap)
            highest = top[r]
            for j in range(begin, end):
                highest = highest_of(highest, scores[j])
            shrink = power_of_two(top[r] - highest)
            added = np.float32(0.0)
            for j in range(begin, end):
                weight = power_of_two(scores[j] - highest)
                scores[j] = weight
                added += weight
            total[r] = total[r] * shrink + added
            top[r] = highest
            for d in range(head_dim):
                acc[r, d] *= shrink
            for j in range(begin, end):
                weight = scores[j]
                for d in range(head_dim):
                    acc[r, d] += weight * widen(page_values[j, d])
    for r in range(num_rows):
        row, head = start + r // group, kv_head * group + r % group
        inverse = np.float32(1.0) / total[r]
        for d in range(head_dim):
            out[row, head, d] = narrow(acc[r, d] * inverse, out[row, head, d])


def set_num_threads(num_threads: int) -> None:
    """Use this many cores."""
    numba.set_num_threads(min(num_threads, numba.config.NUMBA_NUM_THREADS))
