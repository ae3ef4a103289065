"""Every implementation of paged attention against the naive one, on odd shapes."""

from collections.abc import Sequence
from functools import cache

import pytest
import torch

from kernels import compile_lock
from kernels.paged_attention import AttentionShape, RaggedBatch, chunk, cpu
from kernels.paged_attention.gather import paged_attention_gather
from kernels.paged_attention.products import has_amx
from kernels.paged_attention.reference import paged_attention_reference
from kernels.paged_attention.select import paged_attention, store_kv, warm_up

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
RAGGED = (
    (1, 1),
    (1, 64),
    (1, 65),
    (3, 3),
    (5, 130),
    (33, 33),
    (40, 121),
    (130, 200),
    (1, 7),
)  # new, context
SHAPES = [
    AttentionShape(0.125),
    AttentionShape(0.3, window=16),
    AttentionShape(0.2, softcap=20.0),
    AttentionShape(0.2, window=70, softcap=5.0),
    AttentionShape(0.3, chunk=24),
    AttentionShape(0.2, chunk=96, softcap=5.0),
]
IDS = ["plain", "window", "softcap", "both", "chunk", "chunk of pages"]
# Around the sizes of rows, pages and tiles; histories end at pages and beside them.
CHUNKS = tuple(
    (new, new + history)
    for new, history in [
        (15, 0), (16, 64), (17, 63), (63, 65), (64, 0), (65, 64), (127, 1), (128, 128), (129, 127),
    ]
)  # fmt: skip


def make_batch(
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    block_tokens: int = 64,
    ragged: Sequence[tuple[int, int]] = RAGGED,
) -> tuple[torch.Tensor, torch.Tensor, RaggedBatch]:
    torch.manual_seed(num_heads * 100 + head_dim)
    blocks = [-(-context // block_tokens) for _, context in ragged]
    num_pages = 2 * sum(blocks) + 3
    pool = torch.full((num_pages, 2, num_kv_heads, block_tokens, head_dim), float("nan"))
    # A step of 3 through the lines comes round to each only where it shares no factor with them.
    num_slots = len(ragged) + 2 + (len(ragged) % 3 == 1)
    slots = [(3 * seq + 1) % num_slots for seq in range(len(ragged))]
    tables = torch.zeros((2, num_slots, max(blocks)), dtype=torch.int32)
    free = iter(torch.randperm(num_pages).tolist())
    starts = [0]
    for seq, (num_new, context) in enumerate(ragged):
        starts.append(starts[-1] + num_new)
        for block in range(blocks[seq]):
            page = next(free)
            tables[1, slots[seq], block] = page
            # Slots behind the context stay NaN: nothing may read them.
            used = min(block_tokens, context - block * block_tokens)
            pool[page, :, :, :used] = torch.randn(2, num_kv_heads, used, head_dim)
    query = torch.randn(starts[-1], num_heads, head_dim).to(dtype)
    return query, pool.to(dtype), RaggedBatch(starts, [c for _, c in ragged], slots, tables)


@cache
def case(
    heads: int,
    kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    shape: AttentionShape,
    block_tokens: int = 64,
    ragged: tuple[tuple[int, int], ...] = RAGGED,
) -> tuple[torch.Tensor, torch.Tensor, RaggedBatch, torch.Tensor]:
    """A batch, which nothing may change, and what the naive one makes of it."""
    query, pool, batch = make_batch(heads, kv_heads, head_dim, dtype, block_tokens, ragged)
    return query, pool, batch, paged_attention_reference(query, pool, 1, batch, shape)


def attend(
    implementation: str,
    query: torch.Tensor,
    pool: torch.Tensor,
    batch: RaggedBatch,
    shape: AttentionShape,
) -> torch.Tensor:
    if implementation == "selected":
        return paged_attention(query, pool, 1, batch, shape)
    out = torch.full_like(query, float("nan"))
    arguments = query, pool, 1, batch, shape, out, range(batch.num_seqs)
    if implementation == "stream":
        cpu.paged_attention_cpu(*arguments)
    elif implementation == "gather":
        paged_attention_gather(*arguments)
    elif implementation == "fma":
        chunk.paged_attention_chunk(*arguments, amx=False)
    else:
        if pool.dtype != torch.bfloat16 or not has_amx():
            pytest.skip("AMX multiplies bf16, where a machine has it")
        chunk.paged_attention_chunk(*arguments, amx=True)
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("shape", SHAPES, ids=IDS)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 4, 32), (6, 2, 24), (8, 1, 64)])
@pytest.mark.parametrize("implementation", ["stream", "alone", "fma", "amx", "gather", "selected"])
def test_agrees_with_the_reference(
    implementation: str,
    heads: int,
    kv_heads: int,
    head_dim: int,
    shape: AttentionShape,
    dtype: torch.dtype,
) -> None:
    query, pool, batch, want = case(heads, kv_heads, head_dim, dtype, shape)
    got = attend(implementation, query, pool, batch, shape)
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(got.float(), want.float(), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("shape", SHAPES, ids=IDS)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "block_tokens"),
    [(2, 1, 80, 64), (3, 1, 256, 64), (2, 2, 72, 16), (1, 1, 25, 24)],
)
@pytest.mark.parametrize("implementation", ["fma", "amx", "selected"])
def test_chunks_of_every_size_agree_with_the_reference(
    implementation: str,
    heads: int,
    kv_heads: int,
    head_dim: int,
    block_tokens: int,
    shape: AttentionShape,
    dtype: torch.dtype,
) -> None:
    if implementation == "amx" and head_dim % 2:
        pytest.skip("AMX multiplies pairs")
    query, pool, batch, want = case(heads, kv_heads, head_dim, dtype, shape, block_tokens, CHUNKS)
    # As in a model's layer: a view of what holds the keys and values, too.
    wide = torch.full((len(query), heads, 2, head_dim), float("nan"), dtype=dtype)
    wide[:, :, 0] = query
    got = attend(implementation, wide[:, :, 0], pool, batch, shape)
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(got.float(), want.float(), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("part", ["key", "value"])
@pytest.mark.parametrize(
    "shape", [SHAPES[n] for n in (0, 1, 3, 4, 5)], ids=[IDS[n] for n in (0, 1, 3, 4, 5)]
)
@pytest.mark.parametrize("implementation", ["stream", "fma", "amx"])
def test_nan_in_a_history_stays_with_the_queries_that_see_it(
    implementation: str, shape: AttentionShape, part: str, dtype: torch.dtype
) -> None:
    """A broken turn must end as one, by rows that are not finite, and no other with it."""
    query, pool, batch = make_batch(4, 2, 32, dtype, ragged=[(40, 121), (70, 100), (1, 90)])
    for seq, position in [(0, 100), (1, 10), (2, 80)]:  # among new tokens; before them; a decode
        page = int(batch.page_tables[1, batch.slots[seq], position // 64])
        pool[page, ["key", "value"].index(part), 1, position % 64, 5] = float("nan")
    got = attend(implementation, query, pool, batch, shape)
    want = paged_attention_reference(query, pool, 1, batch, shape)
    assert want.isnan().any()
    assert not want.isnan().all()
    assert torch.equal(got.isnan(), want.isnan())
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(
        got.float(), want.float(), atol=tolerance, rtol=tolerance, equal_nan=True
    )


def test_torch_multiplies_as_before_between_chunks() -> None:
    """The tiles of AMX are the thread's, and torch uses them as well."""
    query, pool, batch = make_batch(4, 2, 32, torch.bfloat16)
    a, b = torch.randn(70, 200).bfloat16(), torch.randn(200, 90).bfloat16()
    want = a @ b
    for _ in range(3):
        attend("selected", query, pool, batch, SHAPES[0])
        assert torch.equal(a @ b, want)


def test_without_amx_chunks_of_bf16_are_multiplied_as_float32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chunk, "has_amx", lambda: False)
    query, pool, batch = make_batch(6, 2, 24, torch.bfloat16, ragged=CHUNKS[:4])
    got = attend("selected", query, pool, batch, SHAPES[0])
    assert torch.equal(got, attend("fma", query, pool, batch, SHAPES[0]))


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_nothing_is_left_to_compile_after_warming_up(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = torch.zeros((3, 2, 2, 64, 32), dtype=dtype)
    warm_up(pool, num_heads=6)
    monkeypatch.setattr(compile_lock, "compiling", None)
    table = torch.tensor([[[0, 1]]], dtype=torch.int32)
    for num_new in (1, 5, 16, 70):
        rows = torch.zeros((num_new, 6, 32), dtype=dtype)
        view = torch.zeros((6, num_new, 32), dtype=dtype).transpose(0, 1)
        for query in (rows, view):
            batch = RaggedBatch([0, num_new], [num_new + 20], [0], table)
            paged_attention(query, pool, 0, batch, SHAPES[0])
        slots = torch.full((num_new,), -1, dtype=torch.int32)
        for key in (rows[:, :2].contiguous(), view[:, :2]):
            for value in (rows[:, :2].contiguous(), view[:, :2]):
                store_kv(key, value, pool, slots, slots)


@pytest.mark.parametrize("is_view", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_new_keys_and_values_go_to_their_slots_and_nowhere_else(
    dtype: torch.dtype, is_view: bool
) -> None:
    num_tokens, num_heads, head_dim, num_pages = 7, 3, 24, 5
    torch.manual_seed(0)
    rows = torch.randn(2, num_heads, num_tokens, head_dim).to(dtype).transpose(1, 2)
    key, value = rows if is_view else rows.contiguous()
    pool = torch.randn(num_pages, 2, num_heads, 64, head_dim).to(dtype)
    want = pool.clone()
    places = [(3, 0), (3, 63), (0, 5), (-1, 1), (2, 7), (-1, 0), (0, 6)]
    for token, (page, offset) in enumerate(places):
        if page >= 0:
            want[page, 0, :, offset] = key[token]
            want[page, 1, :, offset] = value[token]
    pages, offsets = torch.tensor(places, dtype=torch.int32).T.contiguous()
    store_kv(key, value, pool, pages, offsets)
    # What is padding may be written to the last page.
    assert torch.equal(pool[:-1], want[:-1])
