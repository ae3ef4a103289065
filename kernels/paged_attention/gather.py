"""Paged attention by gathering each sequence's pages, then torch's own attention.

Works on every torch device and dtype; costs a copy of the history it reads.
"""

import torch
import torch.nn.functional as F

from kernels.paged_attention.interface import AttentionShape, RaggedBatch


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
    _, _, num_kv_heads, block_tokens, head_dim = pool.shape
    enable_gqa = num_kv_heads != query.shape[1]
    for seq in seqs:
        first, last = batch.query_starts[seq], batch.query_starts[seq + 1]
        context, num_new = batch.context_lens[seq], last - first
        begin = 0  # first position any of the new queries sees, rounded down to its block
        if shape.window:
            begin = max(0, context - num_new - shape.window + 1) // block_tokens * block_tokens
        num_blocks = (context + block_tokens - 1) // block_tokens
        pages = batch.page_tables[layer, seq, begin // block_tokens : num_blocks]
        kv = pool[pages]  # [blocks, 2, kv heads, block tokens, head dim]
        kv = kv.permute(1, 2, 0, 3, 4).reshape(2, num_kv_heads, -1, head_dim)
        kv = kv[:, :, : context - begin]
        q = query[first:last].transpose(0, 1)
        if num_new == context and not shape.softcap and not _windowed(shape, context):
            attended = F.scaled_dot_product_attention(
                q[None], kv[0][None], kv[1][None],
                is_causal=True, scale=shape.scale, enable_gqa=enable_gqa,
            )  # fmt: skip
        else:
            attended = _masked(q, kv, begin, context, shape, enable_gqa)
        out[first:last] = attended[0].transpose(0, 1)


def _windowed(shape: AttentionShape, context: int) -> bool:
    return bool(shape.window) and context > shape.window


def _masked(
    q: torch.Tensor,
    kv: torch.Tensor,
    begin: int,
    context: int,
    shape: AttentionShape,
    enable_gqa: bool,
) -> torch.Tensor:
    """Attention of the last ``q.shape[1]`` positions over ``begin .. context``; [1, H, n, D]."""
    num_new = q.shape[1]
    query_at = torch.arange(context - num_new, context, device=q.device)[:, None]
    key_at = torch.arange(begin, context, device=q.device)[None]
    seen = key_at <= query_at
    if shape.window:
        seen &= query_at - key_at < shape.window
    if not shape.softcap:
        return F.scaled_dot_product_attention(
            q[None], kv[0][None], kv[1][None],
            attn_mask=seen, scale=shape.scale, enable_gqa=enable_gqa,
        )  # fmt: skip
    keys, values = kv[0], kv[1]
    if enable_gqa:
        group = q.shape[0] // keys.shape[0]
        keys, values = keys.repeat_interleave(group, 0), values.repeat_interleave(group, 0)
    scores = (q.float() @ keys.float().transpose(1, 2)) * shape.scale
    scores = torch.tanh(scores / shape.softcap) * shape.softcap
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
    return (weights @ values.float())[None].to(q.dtype)
