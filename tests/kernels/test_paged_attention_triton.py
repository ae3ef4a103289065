"""The Triton kernels against the naive implementation: on a GPU, or in Triton's interpreter."""

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.paged_attention import AttentionShape, DeviceBatch, RaggedBatch, warm_up
from kernels.paged_attention import paged_attention as select_and_attend
from kernels.paged_attention.reference import paged_attention_reference
from tests.kernels.interpreter import DEVICE, NEEDS_DEVICE, gpu_only, long

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = NEEDS_DEVICE
NAN = float("nan")

FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
# |out - reference| / |reference| of one row of one head, at worst.
TOLERANCE = {FP32: 5e-6, FP16: 3e-3, BF16: 2e-2}
PLAIN = AttentionShape(0.125)
SHAPES = {
    "plain": PLAIN,
    "window 1": AttentionShape(0.3, window=1),
    "window 16": AttentionShape(0.3, window=16),
    "window 37": AttentionShape(0.3, window=37),
    "window 200": AttentionShape(0.3, window=200),
    "soft cap": AttentionShape(0.4, softcap=3.0),
    "chunk 1": AttentionShape(0.3, chunk=1),
    "chunk 37": AttentionShape(0.3, chunk=37),
    "chunk 64": AttentionShape(0.3, chunk=64),
    "both": AttentionShape(0.4, window=37, softcap=3.0),
}
ONE, MANY = 1, 1000  # multiprocessors: no reason to split, or every reason


@dataclass(frozen=True)
class Case:
    """A batch. Chunks are (new tokens, context); a context of 0 is padding."""

    decodes: tuple[int, ...] = (1, 32, 0, 33, 290)
    chunks: tuple[tuple[int, int], ...] = ((5, 5), (1, 1), (3, 64), (33, 33), (4, 0), (20, 117))
    heads: int = 2
    kv_heads: int = 1
    head_dim: int = 64
    dtype: torch.dtype = FP32
    block_tokens: int = 32
    shape: AttentionShape = PLAIN


MIXED = Case()


@dataclass
class Built:
    """A case's tensors. What no kernel may use is NaN: unused pages, the places behind each
    context, all pages of other layers, and the queries of padding."""

    query: torch.Tensor
    pool: torch.Tensor
    tables: torch.Tensor
    batch: DeviceBatch
    want: torch.Tensor


def build(case: Case, seed: int = 0) -> Built:
    torch.manual_seed(seed)
    seqs = [(1, context) for context in case.decodes] + list(case.chunks)
    blocks = [-(-context // case.block_tokens) for _, context in seqs]
    num_pages = sum(blocks) + 4
    pool = torch.full((num_pages, 2, case.kv_heads, case.block_tokens, case.head_dim), NAN)
    order = torch.randperm(num_pages).tolist()
    nowhere = order.pop()
    slots = torch.randperm(len(seqs) + 2)[: len(seqs)].tolist()
    tables = torch.full((3, len(seqs) + 2, max(blocks) + 1), nowhere, dtype=torch.int32)
    starts = [0]
    for (num_new, context), num_blocks, slot in zip(seqs, blocks, slots, strict=True):
        starts.append(starts[-1] + num_new)
        for block in range(num_blocks):
            page = order.pop()
            tables[1, slot, block] = page
            used = min(case.block_tokens, context - block * case.block_tokens)
            pool[page, :, :, :used] = torch.randn(2, case.kv_heads, used, case.head_dim)
    pool = pool.to(case.dtype)
    # As transformers gives them: heads outside, tokens inside.
    query = torch.randn(case.heads, starts[-1], case.head_dim).to(case.dtype).transpose(0, 1)
    # The naive one knows no padding: it computes something there, which is then cleared.
    lists = RaggedBatch(starts, [context or num_new for num_new, context in seqs], slots, tables)
    want = paged_attention_reference(query.double(), pool.double(), 1, lists, case.shape)
    for seq, (_, context) in enumerate(seqs):
        if context == 0:
            want[starts[seq] : starts[seq + 1]] = 0.0
            query[starts[seq] : starts[seq + 1]] = NAN
    batch = DeviceBatch(
        on_device(starts),
        on_device([context for _, context in seqs]),
        on_device(slots),
        num_decodes=len(case.decodes),
        query_len_max=max((num_new for num_new, _ in case.chunks), default=0),
        context_len_max=max(context for _, context in seqs),
    )
    return Built(query.to(DEVICE), pool.to(DEVICE), tables.to(DEVICE), batch, want)


def on_device(numbers: list[int]) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32, device=DEVICE)


def attend(built: Built, shape: AttentionShape, multiprocessors: int) -> torch.Tensor:
    """The kernels' result, poisoned beforehand; nothing around it may be written."""
    from kernels.paged_attention.triton import paged_attention_triton

    num_rows, num_heads, head_dim = built.query.shape
    around = torch.full((num_rows + 2, num_heads, head_dim), NAN, device=DEVICE)
    around = around.to(built.query.dtype)
    out = around[1:-1]
    paged_attention_triton(
        built.query, built.pool, built.tables, 1, built.batch, shape, out, multiprocessors
    )
    assert around[0].isnan().all() and around[-1].isnan().all()
    return out


def assert_close(out: torch.Tensor, want: torch.Tensor, tolerance: float | None = None) -> None:
    tolerance = tolerance or TOLERANCE[out.dtype]
    out = out.cpu().double()
    assert not out.isnan().any(), "a row was not written, or garbage was used"
    error = (out - want).norm(dim=-1) / want.norm(dim=-1).clamp(min=1e-30)
    assert error.max() <= tolerance
    assert (out[want.norm(dim=-1) == 0] == 0).all(), "padding becomes zeros"


def check(case: Case, multiprocessors: int) -> None:
    built = build(case)
    assert_close(attend(built, case.shape, multiprocessors), built.want)


@pytest.mark.parametrize("multiprocessors", [ONE, MANY])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_every_kind_of_scores(shape: AttentionShape, multiprocessors: int) -> None:
    check(replace(MIXED, shape=shape), multiprocessors)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dtype"),
    [
        (2, 2, FP32),
        (3, 3, BF16),
        (5, 1, BF16),
        long(6, 2, FP32),
        long(8, 2, FP32),
        (8, 1, FP32),
        (16, 2, BF16),
        long(20, 1, FP32),
        long(40, 1, BF16),
    ],
)
def test_every_grouping_of_heads(heads: int, kv_heads: int, dtype: torch.dtype) -> None:
    check(replace(MIXED, heads=heads, kv_heads=kv_heads, dtype=dtype), MANY)


@pytest.mark.parametrize(
    ("head_dim", "dtype"),
    [(head_dim, dtype) for head_dim in (64, 80, 96, 112, 128, 256) for dtype in (FP32, BF16)]
    + [(16, FP32), (64, FP16), (80, FP16), (256, FP16)],
)
def test_every_head_dim_and_dtype(head_dim: int, dtype: torch.dtype) -> None:
    case = replace(MIXED, head_dim=head_dim, dtype=dtype)
    check(replace(case, shape=AttentionShape(head_dim**-0.5)), MANY)


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("block_tokens", [16, 64, 128])
def test_every_page_size(block_tokens: int, dtype: torch.dtype) -> None:
    case = replace(MIXED, block_tokens=block_tokens, dtype=dtype)
    check(case, MANY)
    check(replace(case, shape=SHAPES["both"]), MANY)


@pytest.mark.parametrize("multiprocessors", [ONE, 3, MANY])
def test_contexts_around_the_ends_of_pages(multiprocessors: int) -> None:
    ends = tuple(end + more for end in (64, 128, 256, 384) for more in (-1, 0, 1))
    chunks = tuple((new, end) for new in (2, 8, 9) for end in (15, 16, 17, 33))
    case = Case(ends, chunks, head_dim=16, block_tokens=64)
    check(case, multiprocessors)


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        (FP32, PLAIN),
        long(BF16, PLAIN),
        long(FP32, AttentionShape(0.2, window=700)),
        (BF16, AttentionShape(0.2, window=700)),
    ],
    ids=["fp32-plain", "bf16-plain", "fp32-window", "bf16-window"],
)
def test_few_new_tokens_over_a_long_history_are_split(
    dtype: torch.dtype, shape: AttentionShape
) -> None:
    case = Case((900,), ((20, 1300), (3, 3), (0, 0), (9, 521)), dtype=dtype, shape=shape)
    check(replace(case, block_tokens=64), MANY)


@pytest.mark.parametrize("multiprocessors", [ONE, MANY])
@pytest.mark.parametrize(
    "case",
    [
        Case(decodes=(5, 200), chunks=()),
        Case(decodes=(), chunks=((1, 200), (40, 40))),
        Case(decodes=(0, 0), chunks=((3, 0), (0, 0))),
        Case(decodes=(0,), chunks=((0, 0), (7, 9))),
    ],
    ids=["decodes", "chunks", "padding", "padding first"],
)
def test_batches_without_one_of_the_kinds(case: Case, multiprocessors: int) -> None:
    check(case, multiprocessors)


def packed(built: Built, num_padding: int) -> Built:
    """The same sequences in an order of their own, behind them padding of rows and sequences."""
    starts, total = built.batch.query_starts, built.query.shape[0]
    padding = torch.full((num_padding, *built.query.shape[1:]), NAN, device=DEVICE)
    batch = DeviceBatch(
        torch.cat([starts, starts[-1:].expand(num_padding)]),
        torch.cat([built.batch.context_lens, on_device([0] * num_padding)]),
        torch.cat([built.batch.slots, on_device([0] * num_padding)]),
        num_decodes=0,
        query_len_max=0,
        context_len_max=built.batch.context_len_max,
        is_packed=True,
    )
    query = torch.cat([built.query, padding.to(built.query.dtype)])
    return replace(built, query=query, batch=batch, want=built.want[:total])


def check_packed(case: Case, multiprocessors: int, num_padding: int = 3) -> None:
    built = packed(build(case), num_padding)
    out = attend(built, case.shape, multiprocessors)
    assert_close(out[: len(built.want)], built.want)
    assert out[len(built.want) :].isnan().all(), "padding of rows is not written"


@pytest.mark.parametrize("multiprocessors", [ONE, MANY])
@pytest.mark.parametrize(
    "case",
    [
        MIXED,
        replace(MIXED, heads=8, kv_heads=2, dtype=BF16, shape=SHAPES["both"]),
        Case(decodes=(), chunks=((40, 40), (1, 200), (33, 90), (1, 7), (70, 150))),
        Case(decodes=(5, 200, 1), chunks=()),
        Case(decodes=(1300, 9), chunks=((20, 1100),), block_tokens=64, heads=4, dtype=BF16),
    ],
    ids=["mixed", "limited", "any order", "decodes", "long"],
)
def test_one_launch_finds_every_sequence(case: Case, multiprocessors: int) -> None:
    check_packed(case, multiprocessors)


def test_bounds_choose_speed_and_not_results() -> None:
    built = build(MIXED)
    for query_len_max, context_len_max in ((50, 600), (33, 200), (33, 16)):
        built.batch = replace(
            built.batch, query_len_max=query_len_max, context_len_max=context_len_max
        )
        assert_close(attend(built, PLAIN, MANY), built.want)


def test_high_scores_do_not_overflow_and_one_key_can_have_all_the_weight() -> None:
    for shape in (AttentionShape(200.0), AttentionShape(200.0, softcap=50.0)):
        built = build(replace(MIXED, shape=shape))
        # Weights are off by what float32 is at scores in the thousands.
        assert_close(attend(built, shape, MANY), built.want, tolerance=1e-3)


ragged_lens = st.integers(1, 90).flatmap(
    lambda context: st.tuples(st.integers(1, context), st.just(context))
)


@settings(max_examples=12, deadline=None)
@given(
    decodes=st.lists(st.integers(0, 160), max_size=5),
    chunks=st.lists(ragged_lens | st.just((0, 0)) | st.just((3, 0)), max_size=4),
    heads=st.sampled_from([(1, 1), (3, 1), (4, 2)]),
    reach=st.integers(-50, 50),
    multiprocessors=st.sampled_from([ONE, 2, MANY]),
    is_packed=st.booleans(),
)
def test_any_ragged_batch(
    decodes: list[int],
    chunks: list[tuple[int, int]],
    heads: tuple[int, int],
    reach: int,
    multiprocessors: int,
    is_packed: bool,
) -> None:
    if decodes or any(num_new for num_new, _ in chunks):
        shape = AttentionShape(0.2, window=max(reach, 0), chunk=max(-reach, 0))
        case = Case(tuple(decodes), tuple(chunks), *heads, head_dim=16, shape=shape)
        (check_packed if is_packed else check)(case, multiprocessors)


@pytest.mark.parametrize("dtype", [FP32, BF16, FP16], ids=["fp32", "bf16", "fp16"])
@pytest.mark.parametrize(("kv_heads", "head_dim"), [(1, 64), (2, 80), (3, 128), (8, 16)])
def test_new_keys_and_values_are_stored_where_they_belong(
    kv_heads: int, head_dim: int, dtype: torch.dtype
) -> None:
    from kernels.paged_attention.triton import store_kv

    torch.manual_seed(1)
    num_tokens, num_pages, block_tokens = 23, 7, 16
    pool = torch.randn(num_pages, 2, kv_heads, block_tokens, head_dim).to(dtype)
    key = torch.randn(kv_heads, num_tokens, head_dim).to(dtype).transpose(0, 1)
    value = torch.randn(num_tokens, kv_heads, 2 * head_dim).to(dtype)[:, :, :head_dim]
    places = torch.randperm(num_pages * block_tokens)[:num_tokens]
    pages, offsets = places // block_tokens, places % block_tokens
    is_padding = torch.arange(num_tokens) % 5 == 2
    pages[is_padding] = -1
    want = pool.clone()
    for token in range(num_tokens):
        if not is_padding[token]:
            want[pages[token], 0, :, offsets[token]] = key[token]
            want[pages[token], 1, :, offsets[token]] = value[token]
    stored = pool.to(DEVICE)
    store_kv(
        key.to(DEVICE), value.to(DEVICE), stored, on_device(pages.tolist()),
        on_device(offsets.tolist()),
    )  # fmt: skip
    assert torch.equal(stored.cpu(), want)


@gpu_only
def test_the_selected_kernel_reads_no_lists() -> None:
    built = build(MIXED)
    warm_up(built.pool, MIXED.heads)
    batch = RaggedBatch([], [], [], built.tables, built.batch)
    assert_close(select_and_attend(built.query, built.pool, 1, batch, PLAIN), built.want)


@gpu_only
def test_a_recorded_launch_serves_other_lengths() -> None:
    cases = [Case(decodes=(1, 301, 0, 64), chunks=()), Case(decodes=(700, 0, 2, 65), chunks=())]
    first, second = (build(case, seed) for seed, case in enumerate(cases))
    # Both in the tensors of the second, which has more pages and wider tables.
    built = build(cases[1], seed=1)
    built.batch = replace(built.batch, context_len_max=2000)
    attend(built, PLAIN, MANY)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attend_into_empty(built)
    for other in (first, second, first):
        built.query.copy_(other.query)
        built.pool.fill_(NAN)[: len(other.pool)] = other.pool
        built.tables.zero_()[:, :, : other.tables.shape[2]] = other.tables
        built.batch.context_lens.copy_(other.batch.context_lens)
        built.batch.slots.copy_(other.batch.slots)
        out.fill_(NAN)
        graph.replay()
        assert_close(out, other.want)


def attend_into_empty(built: Built) -> torch.Tensor:
    from kernels.paged_attention.triton import paged_attention_triton

    out = torch.empty_like(built.query)
    paged_attention_triton(built.query, built.pool, built.tables, 1, built.batch, PLAIN, out, MANY)
    return out


@gpu_only
def test_pages_behind_two_to_the_31_elements() -> None:
    from kernels.paged_attention.triton import store_kv

    built = build(replace(MIXED, dtype=BF16, block_tokens=64))
    far = 2**31 // built.pool[0].numel() + 1
    pool = torch.full(
        (far + len(built.pool), *built.pool.shape[1:]), NAN, dtype=BF16, device=DEVICE
    )
    pool[far:] = built.pool
    built.pool, built.tables = pool, built.tables + far
    assert_close(attend(built, PLAIN, MANY), built.want)
    key = torch.randn(1, MIXED.kv_heads, MIXED.head_dim, dtype=BF16, device=DEVICE)
    store_kv(key, key, pool, on_device([far]), on_device([3]))
    assert torch.equal(pool[far, 0, :, 3], key[0]) and torch.equal(pool[far, 1, :, 3], key[0])
