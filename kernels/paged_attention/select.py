"""Which implementation serves which sequences of a batch."""

import torch

from kernels.paged_attention.gather import paged_attention_gather
from kernels.paged_attention.interface import AttentionShape, RaggedBatch

try:
    from kernels.paged_attention import cpu
except ImportError:  # numba is optional: the gathering implementation does everything, slower
    cpu = None  # type: ignore[assignment]

# From this many new queries on, gathering the history once and multiplying blocks beats streaming
# it per query: the work is bound by arithmetic, not by memory.
GATHER_FROM_QUERIES = 16


def paged_attention(
    query: torch.Tensor,
    pool: torch.Tensor,
    layer: int,
    batch: RaggedBatch,
    shape: AttentionShape,
) -> torch.Tensor:
    """Causal attention of packed ragged queries over paged KV: ``softmax(scale * q K^T) V``.

    Args:
        query: ``[num_rows, num_heads, head_dim]``, last dimension contiguous.
        pool: ``[num_pages, 2, num_kv_heads, block_tokens, head_dim]``, contiguous; holds the new
            rows' keys and values already.
        layer: which of the batch's page tables to use.

    Returns:
        ``[num_rows, num_heads, head_dim]`` in the query's dtype.
    """
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    if cpu is None or not cpu.supports(query):
        paged_attention_gather(query, pool, layer, batch, shape, out, range(batch.num_seqs))
        return out
    for seqs, is_short in _runs(batch.query_starts):
        implementation = cpu.paged_attention_cpu if is_short else paged_attention_gather
        implementation(query, pool, layer, batch, shape, out, seqs)
    return out


def _runs(starts: list[int]) -> list[tuple[range, bool]]:
    """Consecutive sequences of one kind: few new queries (True) or many.

    >>> _runs([0, 1, 2, 102, 103])
    [(range(0, 2), True), (range(2, 3), False), (range(3, 4), True)]
    """
    runs: list[tuple[range, bool]] = []
    for seq in range(len(starts) - 1):
        is_short = starts[seq + 1] - starts[seq] < GATHER_FROM_QUERIES
        if runs and runs[-1][1] == is_short:
            runs[-1] = (range(runs[-1][0].start, seq + 1), is_short)
        else:
            runs.append((range(seq, seq + 1), is_short))
    return runs


def warm_up(pool: torch.Tensor) -> None:
    """Compile what serves tensors like `pool`, so that the first request does not wait for it."""
    num_heads, head_dim = pool.shape[2], pool.shape[4]
    query = torch.zeros((1, num_heads, head_dim), dtype=pool.dtype, device=pool.device)
    table = torch.zeros((1, 1, 1), dtype=torch.int32, device=pool.device)
    paged_attention(query, pool, 0, RaggedBatch([0, 1], [1], [0], table), AttentionShape(1.0))
