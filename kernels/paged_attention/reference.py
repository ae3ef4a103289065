"""Naive paged attention in float64: slow, obvious, the truth the others are measured against."""

import torch

from kernels.paged_attention.interface import AttentionShape, RaggedBatch


def paged_attention_reference(
    query: torch.Tensor, pool: torch.Tensor, layer: int, batch: RaggedBatch, shape: AttentionShape
) -> torch.Tensor:
    """``softmax(mask(scale * q K^T)) V`` for each sequence and head.

    Args:
        query: ``[num_rows, num_heads, head_dim]``.
        pool: ``[num_pages, 2, num_kv_heads, block_tokens, head_dim]``.

    Returns:
        ``[num_rows, num_heads, head_dim]`` in the query's dtype.
    """
    block_tokens = pool.shape[3]
    group = query.shape[1] // pool.shape[2]
    out = torch.empty_like(query)
    for seq, context in enumerate(batch.context_lens):
        first, last = batch.query_starts[seq], batch.query_starts[seq + 1]
        for row in range(first, last):
            position = context - (last - row)
            for head in range(query.shape[1]):
                past = torch.arange(shape.first_seen(position), position + 1)
                pages = batch.page_tables[layer, batch.slots[seq], past // block_tokens]
                seen = pool[pages, :, head // group, past % block_tokens].double()
                scores = shape.scale * (seen[:, 0] @ query[row, head].double())
                if shape.softcap:
                    scores = shape.softcap * torch.tanh(scores / shape.softcap)
                out[row, head] = (scores.softmax(0) @ seen[:, 1]).to(out.dtype)
    return out
