"""Causal attention of packed ragged queries over paged KV.

One KV pool, ``[num_pages, 2, num_kv_heads, block_tokens, head_dim]``: a page is the keys and the
values of one block in one layer. Sequences bring new queries at the end of their context; the page
table of the layer at hand says where each block is. Implementations: `reference` (naive, for
tests), `gather` (any torch device), `cpu` (few new tokens, reads pages in place; numba), `chunk`
(more of them, packs each page once; numba), `triton` (the same on a CUDA device, for batches whose
tables and lengths are there).
"""

from kernels.paged_attention.interface import AttentionShape, DeviceBatch, RaggedBatch
from kernels.paged_attention.select import (
    can_be_invariant,
    is_fused,
    paged_attention,
    store_kv,
    warm_up,
)

__all__ = [
    "AttentionShape",
    "DeviceBatch",
    "RaggedBatch",
    "can_be_invariant",
    "is_fused",
    "paged_attention",
    "store_kv",
    "warm_up",
]
