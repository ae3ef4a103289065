"""Every implementation of paged attention against the naive one, on odd shapes."""

import pytest
import torch

from kernels.paged_attention import AttentionShape, RaggedBatch, cpu
from kernels.paged_attention.gather import paged_attention_gather
from kernels.paged_attention.reference import paged_attention_reference
from kernels.paged_attention.select import paged_attention, warm_up

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
RAGGED = [
    (1, 1),
    (1, 64),
    (1, 65),
    (3, 3),
    (5, 130),
    (33, 33),
    (40, 121),
    (130, 200),
    (1, 7),
]  # new, context
SHAPES = [
    AttentionShape(0.125),
    AttentionShape(0.3, window=16),
    AttentionShape(0.2, softcap=20.0),
    AttentionShape(0.2, window=70, softcap=5.0),
]


def make_batch(
    num_heads: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, block_tokens: int = 64
) -> tuple[torch.Tensor, torch.Tensor, RaggedBatch]:
    torch.manual_seed(num_heads * 100 + head_dim)
    blocks = [-(-context // block_tokens) for _, context in RAGGED]
    num_pages = 2 * sum(blocks) + 3
    pool = torch.full((num_pages, 2, num_kv_heads, block_tokens, head_dim), float("nan"))
    slots = [(3 * seq + 1) % (len(RAGGED) + 2) for seq in range(len(RAGGED))]
    tables = torch.zeros((2, len(RAGGED) + 2, max(blocks)), dtype=torch.int32)
    free = iter(torch.randperm(num_pages).tolist())
    starts = [0]
    for seq, (num_new, context) in enumerate(RAGGED):
        starts.append(starts[-1] + num_new)
        for block in range(blocks[seq]):
            page = next(free)
            tables[1, slots[seq], block] = page
            # Slots behind the context stay NaN: nothing may read them.
            used = min(block_tokens, context - block * block_tokens)
            pool[page, :, :, :used] = torch.randn(2, num_kv_heads, used, head_dim)
    query = torch.randn(starts[-1], num_heads, head_dim).to(dtype)
    return query, pool.to(dtype), RaggedBatch(starts, [c for _, c in RAGGED], slots, tables)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("shape", SHAPES, ids=["plain", "window", "softcap", "both"])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 4, 32), (6, 2, 24), (8, 1, 64)])
@pytest.mark.parametrize("implementation", ["cpu", "gather", "selected"])
def test_agrees_with_the_reference(
    implementation: str,
    heads: int,
    kv_heads: int,
    head_dim: int,
    shape: AttentionShape,
    dtype: torch.dtype,
) -> None:
    query, pool, batch = make_batch(heads, kv_heads, head_dim, dtype)
    want = paged_attention_reference(query, pool, 1, batch, shape)
    got = torch.full_like(query, float("nan"))
    if implementation == "cpu":
        cpu.paged_attention_cpu(query, pool, 1, batch, shape, got, range(batch.num_seqs))
    elif implementation == "gather":
        paged_attention_gather(query, pool, 1, batch, shape, got, range(batch.num_seqs))
    else:
        got = paged_attention(query, pool, 1, batch, shape)
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(got.float(), want.float(), atol=tolerance, rtol=tolerance)


def test_only_the_rows_of_the_named_sequences_are_written() -> None:
    query, pool, batch = make_batch(4, 2, 32, torch.float32)
    out = torch.full_like(query, float("nan"))
    cpu.paged_attention_cpu(query, pool, 1, batch, SHAPES[0], out, range(2, 4))
    written = ~torch.isnan(out).all(-1).all(-1)
    assert written.nonzero().ravel().tolist() == list(
        range(batch.query_starts[2], batch.query_starts[4])
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_warming_up_leaves_the_pool_as_it_is(dtype: torch.dtype) -> None:
    pool = torch.ones((2, 2, 3, 16, 32), dtype=dtype)
    warm_up(pool)
    warm_up(pool, num_heads=6)
    assert (pool == 1).all()
