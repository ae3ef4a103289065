"""Paged attention by gathering each sequence's pages, then torch's own attention.

Works on every torch device and dtype; costs a copy of the history it reads.
"""

import torch
import torch.nn.functional as F

from kernels.paged_attention.interface import AttentionShape, RaggedBatch

# Up to this many queries, two plain products are faster than torch's blocked attention with a mask.
MATMUL_UP_TO_QUERIES = 128


def paged_attention_gather(
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
        query: ``[num_rows, num_heads, head_dim]``.
        pool: ``[num_pages, 2, num_kv_heads, block_tokens, head_dim]``.
        out: like `query`; only the rows of `seqs` are written.
    """
    num_kv_heads, block_tokens = pool.shape[2:4]
    enable_gqa = num_kv_heads != query.shape[1]
    for seq in seqs:
        first, last = batch.query_starts[seq], batch.query_starts[seq + 1]
        context, num_new = batch.context_lens[seq], last - first
        # First position any of the new queries sees, rounded down to its block.
        begin = shape.first_seen(context - num_new) // block_tokens * block_tokens
        num_blocks = (context + block_tokens - 1) // block_tokens
        pages = batch.page_tables[layer, batch.slots[seq], begin // block_tokens : num_blocks]
        kv = _in_sequence(pool, pages)
        kv = kv[:, :, : context - begin]
        q = query[first:last].transpose(0, 1)
        if num_new == context and not shape.softcap and not shape.first_seen(context - 1):
            attended = F.scaled_dot_product_attention(
                q[None], kv[0][None], kv[1][None],
                is_causal=True, scale=shape.scale, enable_gqa=enable_gqa,
            )[0]  # fmt: skip
        else:
            attended = _masked(q, kv, begin, context, shape)
        out[first:last] = attended.transpose(0, 1)


def _in_sequence(pool: torch.Tensor, pages: torch.Tensor) -> torch.Tensor:
    """Keys and values of a sequence's pages as ``[2, kv heads, tokens, head_dim]``."""
    _, _, num_kv_heads, block_tokens, head_dim = pool.shape
    if pool.device.type != "cpu":
        gathered = pool[pages].permute(1, 2, 0, 3, 4)
        return gathered.reshape(2, num_kv_heads, -1, head_dim)
    # Indexing and reordering would copy twice; on a CPU, one copy a page is faster.
    shape = (2, num_kv_heads, len(pages), block_tokens, head_dim)
    kv = torch.empty(shape, dtype=pool.dtype)
    for index, page in enumerate(pages.tolist()):
        kv[:, :, index] = pool[page]
    return kv.view(2, num_kv_heads, -1, head_dim)


def _masked(
    q: torch.Tensor, kv: torch.Tensor, begin: int, context: int, shape: AttentionShape
) -> torch.Tensor:
    """Attention of the last ``q.shape[1]`` positions over ``begin .. context``; [H, n, D]."""
    num_heads, num_new, head_dim = q.shape
    query_at = torch.arange(context - num_new, context, device=q.device)[:, None]
    key_at = torch.arange(begin, context, device=q.device)[None]
    seen = key_at <= query_at
    if shape.window:
        seen &= query_at - key_at < shape.window
    if shape.chunk:
        seen &= key_at >= query_at - query_at % shape.chunk
    if not shape.softcap and num_new > MATMUL_UP_TO_QUERIES:
        return F.scaled_dot_product_attention(
            q[None], kv[0][None], kv[1][None],
            attn_mask=seen, scale=shape.scale, enable_gqa=num_heads != kv.shape[1],
        )[0]  # fmt: skip
    # The queries of all heads that share a KV head are rows of one product.
    rows = q.reshape(kv.shape[1], -1, head_dim)
    if shape.softcap:
        rows, kv = rows.float(), kv.float()
    scores = torch.bmm(rows * shape.scale, kv[0].transpose(1, 2))
    if shape.softcap:
        scores = torch.tanh(scores / shape.softcap) * shape.softcap
    scores = scores.view(kv.shape[1], -1, num_new, context - begin)
    weights = scores.float().masked_fill(~seen, float("-inf")).softmax(-1).to(kv.dtype)
    attended = torch.bmm(weights.view(kv.shape[1], -1, context - begin), kv[1])
    return attended.view(num_heads, num_new, head_dim).to(q.dtype)
