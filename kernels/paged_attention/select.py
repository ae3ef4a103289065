"""Which implementation serves which sequences of a batch."""

import torch

from kernels.paged_attention.gather import paged_attention_gather
from kernels.paged_attention.interface import AttentionShape, DeviceBatch, RaggedBatch
from kernels.plain import is_plain
from kernels.triton_kernels import triton_kernels

try:
    from kernels.paged_attention import chunk, cpu, store
except ImportError:  # numba is optional: the gathering implementation does everything, slower
    cpu = None  # type: ignore[assignment]

PACKAGE = "paged_attention"

# From this many new queries on, packing each page once for all of them beats streaming it per
# query. Over 2,000 tokens: with AMX 2.2x to 4.6x at 4; without, 1.0x to 2.5x at 4 and 1.8x to 3.1x
# at 8. With no history at all the few pages are streamed in half of the time.
CHUNK_FROM_QUERIES_WITH_AMX = 4
CHUNK_FROM_QUERIES = 8
# From this many on, torch's own attention over gathered pages is as fast (0.9x to 1.1x).
GATHER_FROM_QUERIES = 129


def paged_attention(
    query: torch.Tensor, pool: torch.Tensor, layer: int, batch: RaggedBatch, shape: AttentionShape
) -> torch.Tensor:
    """Causal attention of packed ragged queries over paged KV: ``softmax(scale * q K^T) V``.

    Args:
        query: ``[num_rows, num_heads, head_dim]``, last dimension contiguous.
        pool: ``[num_pages, 2, num_kv_heads, block_tokens, head_dim]``, contiguous; holds the new
            rows' keys and values already.
        layer: which of the batch's page tables to use.

    On a CUDA device, a batch that is `on_device` is attended without a look at its lists.

    Returns:
        ``[num_rows, num_heads, head_dim]`` in the query's dtype.
    """
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    if batch.on_device is not None:
        fused = triton_kernels(PACKAGE, query.device)
        if fused is not None and fused.supports(query, pool):
            fused.paged_attention_triton(
                query, pool, batch.page_tables, layer, batch.on_device, shape, out
            )
            return out
        batch = _on_host(batch.on_device, batch.page_tables)
        out.zero_()
    if cpu is None or is_plain() or not cpu.supports(query):
        paged_attention_gather(query, pool, layer, batch, shape, out, range(batch.num_seqs))
        return out
    implementations = cpu.paged_attention_cpu, chunk.paged_attention_chunk, paged_attention_gather
    chunk_from = CHUNK_FROM_QUERIES_WITH_AMX if chunk.uses_amx(pool) else CHUNK_FROM_QUERIES
    limits, runs = (chunk_from, GATHER_FROM_QUERIES), batch.arrays.runs
    if batch.is_invariant:
        limits = 0, 1 << 62  # `chunk` alone: it sums a row page by page, whatever is beside it
    if limits not in runs:
        runs[limits] = _runs(batch.query_starts, limits)
    for seqs, kind in runs[limits]:
        implementations[kind](query, pool, layer, batch, shape, out, seqs)
    return out


def _runs(starts: list[int], limits: tuple[int, ...]) -> list[tuple[range, int]]:
    """Consecutive sequences of one kind: how many of the limits their new queries reach.

    >>> _runs([0, 1, 2, 102, 103], (4, 128))
    [(range(0, 2), 0), (range(2, 3), 1), (range(3, 4), 0)]
    """
    runs: list[tuple[range, int]] = []
    for seq in range(len(starts) - 1):
        kind = sum(starts[seq + 1] - starts[seq] >= limit for limit in limits)
        if runs and runs[-1][1] == kind:
            runs[-1] = (range(runs[-1][0].start, seq + 1), kind)
        else:
            runs.append((range(seq, seq + 1), kind))
    return runs


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
        slot_pages: int32 ``[num_tokens]``. A token whose page is -1 is padding: it is not written,
            or to the pool's last page. No two others have the same place.
        slot_offsets: int32 ``[num_tokens]``.
    """
    fused = triton_kernels(PACKAGE, pool.device)
    if fused is not None and key.dtype == pool.dtype:
        fused.store_kv(key, value, pool, slot_pages, slot_offsets)
        return
    if cpu is not None and not is_plain() and cpu.supports(key) and key.dtype == pool.dtype:
        store.store_kv_cpu(key, value, pool, slot_pages, slot_offsets)
        return
    pool[slot_pages, 0, :, slot_offsets] = key
    pool[slot_pages, 1, :, slot_offsets] = value


def is_fused(device: torch.device) -> bool:
    """Whether batches that are on this device are attended there, without a look from the host."""
    return triton_kernels(PACKAGE, device) is not None


def can_be_invariant(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether batches of tensors like these may be `is_invariant`."""
    return cpu is not None and cpu.supports(torch.empty(0, dtype=dtype, device=device))


def _on_host(batch: DeviceBatch, page_tables: torch.Tensor) -> RaggedBatch:
    """A batch read back, without its padding: what a device without kernels of ours has to do."""
    starts, contexts, slots = (
        each.tolist() for each in (batch.query_starts, batch.context_lens, batch.slots)
    )
    num_seqs = len(contexts)
    while num_seqs and not contexts[num_seqs - 1]:
        num_seqs -= 1
    return RaggedBatch(starts[: num_seqs + 1], contexts[:num_seqs], slots[:num_seqs], page_tables)


def warm_up(pool: torch.Tensor, num_heads: int | None = None) -> None:
    """Compile what serves tensors like `pool`, so that the first request does not wait for it.

    Args:
        num_heads: of the queries; by default one a KV head. Kernels for a GPU are made for it.
    """
    num_heads, head_dim = num_heads or pool.shape[2], pool.shape[4]
    query = torch.zeros((2, num_heads, head_dim), dtype=pool.dtype, device=pool.device)
    table = torch.zeros((1, 1, 1), dtype=torch.int32, device=pool.device)
    shape = AttentionShape(1.0)
    # A decode, and a chunk of one token.
    batch = RaggedBatch([0, 1, 2], [1, 1], [0, 0], table)
    paged_attention(query, pool, 0, batch, shape)
    if cpu is not None and cpu.supports(query):
        out = torch.empty_like(query)
        nowhere = torch.tensor([-1, -1], dtype=torch.int32)
        rows = torch.zeros((2, pool.shape[2], head_dim), dtype=pool.dtype)
        store_kv(rows, rows, pool, nowhere, nowhere)
        chunk.paged_attention_chunk(query, pool, 0, batch, shape, out, range(2))
    if pool.device.type == "cuda":
        starts, contexts, slots = (
            torch.tensor(numbers, dtype=torch.int32, device=pool.device)
            for numbers in (batch.query_starts, batch.context_lens, batch.slots)
        )
        # As if contexts could be long, so that what combines splits is made too.
        on_device = DeviceBatch(starts, contexts, slots, 1, 1, context_len_max=4096)
        batch = RaggedBatch([0, 1, 2], [1, 1], [0, 0], table, on_device)
        paged_attention(query, pool, 0, batch, shape)
