"""Every implementation of SGMV against the naive one, and that against plain matrices."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kernels import compile_lock
from kernels.sgmv import Segments, Site, add_lora, chunk, cpu, make_tables, warm_up
from kernels.sgmv.interface import NO_ADAPTER
from kernels.sgmv.reference import add_lora_reference
from kernels.sgmv.select import CHUNK_FROM_ROWS
from kernels.sgmv.tables import enter_line
from kernels.sgmv.torch_ops import add_lora_loop
from loadtest.bench.sgmv.dense import add_lora_bmm, add_lora_dense_loop, add_lora_gather_bmm
from loadtest.random_adapters import RandomAdapters, Weights, segments_of, site_of
from shared.wire.messages.adapters import LoraCard, LoraTarget

NAN = float("nan")
FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
# |got - want| against the largest |want| of a row: one rounding to the kind of y, and a little.
TOLERANCE = {FP32: 2e-6, BF16: 2**-8, FP16: 2**-10}
NUM_IN = 72
NAMES = ["q", "k", "v"]
IMPLEMENTATIONS = {
    "selected": add_lora,
    "loop": add_lora_loop,
    "stream": cpu.add_lora_cpu,
    "chunk": chunk.add_lora_chunk,
}
BASE = (NO_ADAPTER, 2)


@dataclass
class Case:
    """Adapters, of which each lacks or has its targets as its ranks say."""

    dtype: torch.dtype = FP32
    page_elements: int = 4096
    num_in: int = NUM_IN
    ranks: list[dict[str, int]] = field(
        default_factory=lambda: [
            dict.fromkeys(NAMES, 1),
            {"q": 8, "v": 5, "lm_head": 3},
            dict.fromkeys(NAMES, 64) | {"lm_head": 16},
            dict.fromkeys(NAMES, 33),
        ]
    )
    num_layers: int = 3

    @property
    def card(self) -> LoraCard:
        widths = {"q": 96, "k": 40, "v": 41}
        return LoraCard(
            layers_path="model.layers",
            num_layers=self.num_layers,
            element_bytes=self.dtype.itemsize,
            page_bytes=self.page_elements * self.dtype.itemsize,
            targets=[
                LoraTarget(name=name, num_in=self.num_in, num_out=width)
                for name, width in widths.items()
            ],
            outer=[LoraTarget(name="lm_head", num_in=self.num_in, num_out=301)],
        )


def build(case: Case) -> tuple[RandomAdapters, list[dict[tuple[int, int], Weights]]]:
    num_elements = sum(64 * 3 * (NUM_IN + 100) + 64 * (case.num_in + 301) for _ in case.ranks)
    adapters = RandomAdapters(
        case.card, case.dtype, 40 + case.num_layers * 3 * num_elements // case.page_elements
    )
    return adapters, [adapters.add(ranks) for ranks in case.ranks]


MIXED = [(0, 1), BASE, (2, 3), (1, 0), (3, 40), (1, 5), (2, 1)]
Adder = Callable[..., None]


def takes(add: Adder, dtype: torch.dtype) -> bool:
    if add is chunk.add_lora_chunk:
        return chunk.supports(torch.zeros(1, dtype=dtype))
    return add is not cpu.add_lora_cpu or cpu.supports(torch.zeros(1, dtype=dtype))


def check(
    add: Adder,
    case: Case,
    lengths: list[tuple[int, int]],
    names: list[str],
    dtype_out: torch.dtype | None = None,
) -> None:
    """Add to a slice of a larger tensor: nothing around it may change."""
    adapters, _ = build(case)
    segments, site = segments_of(lengths), site_of(case.card, names, gap=3)
    x, whole = rows_of(case, segments, site)
    whole = whole.to(dtype_out or case.dtype)
    y = whole[:, 2:-1]
    layer = case.num_layers - 2
    arguments: tuple[Any, ...] = adapters.pool, layer, site, segments, adapters.tables
    want = add_lora_reference(x, y, *arguments)
    before = whole.clone()
    add(x, y, *arguments)
    assert_close(y, want)
    touched = torch.zeros(whole.shape, dtype=torch.bool)
    for segment, line in enumerate(segments.lines):
        rows = slice(int(segments.starts[segment]), int(segments.starts[segment + 1]))
        for target, column, width in zip(site.targets, site.columns, site.widths, strict=True):
            if line >= 0 and adapters.tables.ranks[line, target]:
                touched[rows, 2 + column : 2 + column + width] = True
    assert torch.equal(whole[~touched], before[~touched])
    if touched.any():
        assert (whole[touched] != before[touched]).double().mean() > 0.5


def rows_of(case: Case, segments: Segments, site: Site) -> tuple[torch.Tensor, torch.Tensor]:
    num_rows = int(segments.starts[-1])
    generator = torch.Generator().manual_seed(num_rows)
    num_out = site.columns[-1] + site.widths[-1]
    x = torch.randn(num_rows, case.num_in, generator=generator).to(case.dtype)
    return x, torch.randn(num_rows, num_out + 3, generator=generator).to(case.dtype)


def assert_close(got: torch.Tensor, want: torch.Tensor, roundings: int = 1) -> None:
    assert not got.isnan().any(), "something was read that is nobody's"
    error = (got.double() - want).abs()
    # Elements in float32 are off by what the sums before them were.
    least = 1e-5 if got.dtype == FP32 else 1e-4
    size = want.abs() if got.dtype != FP32 else want.abs().amax(1, keepdim=True)
    assert (error <= roundings * TOLERANCE[got.dtype] * size + least).all(), error.max()


def test_the_reference_is_what_lora_says() -> None:
    case = Case(page_elements=600)
    adapters, weights = build(case)
    site, segments = site_of(case.card, NAMES), segments_of([(1, 2), BASE, (2, 3)])
    x, y = rows_of(case, segments, site)
    got = add_lora_reference(x, y, adapters.pool, 1, site, segments, adapters.tables)
    want = y.double()
    for rows, its in ((slice(0, 2), weights[1]), (slice(4, 7), weights[2])):
        for target, column, width in zip(site.targets, site.columns, site.widths, strict=True):
            if (1, target) in its:
                one = its[1, target]
                added = one.scale * (x[rows].double() @ one.a.double().T) @ one.b.double()
                want[rows, column : column + width] += added
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [FP32, BF16, FP16], ids=["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("page_elements", [100, 300, 4096], ids=["cut", "some", "whole"])
@pytest.mark.parametrize("names", [["q", "k", "v"], ["k"], ["lm_head"]], ids=["qkv", "k", "outer"])
@pytest.mark.parametrize("add", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS.keys())
def test_agrees_with_the_reference(
    add: Adder, names: list[str], page_elements: int, dtype: torch.dtype
) -> None:
    if not takes(add, dtype):
        pytest.skip("it takes other tensors, or wants AMX")
    check(add, Case(dtype, page_elements), MIXED, names)


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=["fp32", "bf16"])
def test_long_segments_beside_short_ones(dtype: torch.dtype) -> None:
    check(add_lora, Case(dtype), [(2, CHUNK_FROM_ROWS + 1), BASE, (0, 1), (1, 200)], NAMES)


@pytest.mark.parametrize("add", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS.keys())
def test_outputs_may_be_float32_where_all_else_is_bf16(add: Adder) -> None:
    if not takes(add, BF16):
        pytest.skip("it wants AMX")
    check(add, Case(BF16), [*MIXED, (2, CHUNK_FROM_ROWS + 1)], NAMES, FP32)


@settings(max_examples=60, deadline=None)
@given(
    add=st.sampled_from(list(IMPLEMENTATIONS.values())),
    lengths=st.lists(
        st.tuples(st.integers(-1, 3), st.sampled_from([0, 1, 2, 3, 4, 7, 40])),
        min_size=1,
        max_size=6,
    ),
    ranks=st.lists(
        st.dictionaries(st.sampled_from([*NAMES, "lm_head"]), st.integers(1, 64)),
        min_size=4,
        max_size=4,
    ),
    names=st.sampled_from([NAMES, ["v", "q"], ["k"], ["lm_head"]]),
    page_elements=st.sampled_from([97, 160, 512, 2048]),
    num_in=st.sampled_from([1, 16, 71, 130]),
    dtype=st.sampled_from([FP32, BF16]),
)
def test_any_ragged_batch(
    add: Adder,
    lengths: list[tuple[int, int]],
    ranks: list[dict[str, int]],
    names: list[str],
    page_elements: int,
    num_in: int,
    dtype: torch.dtype,
) -> None:
    assume(takes(add, dtype))
    names = sorted(names, key=[*NAMES, "lm_head"].index)
    check(add, Case(dtype, page_elements, num_in, ranks), lengths, names)


@pytest.mark.parametrize("add", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS.keys())
def test_no_segments_and_no_rows_change_nothing(add: Adder) -> None:
    if not takes(add, BF16):
        pytest.skip("it wants AMX")
    case = Case(BF16)
    for lengths in ([], [(0, 0)], [BASE], [BASE, (0, 0), BASE]):
        check(add, case, lengths, NAMES)


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("lengths", [[(2, 5)], [(2, 2), (1, 3)], [(2, 40)]])
@pytest.mark.parametrize("add", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS.keys())
def test_a_broken_row_stays_broken_and_alone(
    add: Adder, lengths: list[tuple[int, int]], dtype: torch.dtype
) -> None:
    if not takes(add, dtype):
        pytest.skip("it takes other tensors, or wants AMX")
    case = Case(dtype)
    adapters, _ = build(case)
    segments, site = segments_of(lengths), site_of(case.card, NAMES)
    x, y = rows_of(case, segments, site)
    x[1, 7] = NAN
    add(x, y, adapters.pool, 0, site, segments, adapters.tables)
    is_whole = y[:, : site.columns[-1] + site.widths[-1]].isfinite()
    assert not is_whole[1].any()
    assert is_whole[torch.arange(len(x)) != 1].all()


def test_what_others_do_agrees_too() -> None:
    case = Case()
    adapters, weights = build(case)
    site, segments = site_of(case.card, ["q"]), segments_of([(2, 2), (0, 1), (3, 1), (2, 1)])
    x, y = rows_of(case, segments, site)
    y = y[:, :96].contiguous()
    want = add_lora_reference(x, y, adapters.pool, 1, site, segments, adapters.tables)
    a, b = torch.zeros(4, case.num_in, 64), torch.zeros(4, 64, 96)
    for line, its in enumerate(weights):
        one = its[1, 0]
        a[line, :, : len(one.a)] = one.a.T
        b[line, : len(one.b)] = one.scale * one.b
    of_row = torch.tensor([2, 2, 0, 3, 2])
    looped, gathered, ready = y.clone(), y.clone(), y.clone()
    add_lora_dense_loop(x, looped, a, b, [(2, 0, 2), (0, 2, 3), (3, 3, 4), (2, 4, 5)])
    assert_close(looped, want)
    add_lora_gather_bmm(x, gathered, a, b, of_row)
    add_lora_bmm(x, ready, a[of_row], b[of_row])
    assert_close(gathered, want)
    assert_close(ready, want)


def test_a_line_that_is_entered_again_holds_nothing_of_the_one_before() -> None:
    tables = make_tables(2, 2)
    tile = (-1, 0, 32, 0, 4, 0, 8)
    enter_line(tables, 9, [4, 8], [[tile], [tile] * 5], [[tile], [tile]], [[3, 4, 5], [6, 7, 8]])
    before = tables.tiles.copy()
    assert tables.pages.shape == (2, 16, 4) and tables.tiles.shape[3] == 8
    assert tables.pages[:, 9, :3].tolist() == [[3, 4, 5], [6, 7, 8]]
    enter_line(tables, 9, [0, 4], [[], [tile]], [[], [tile]], [[1], [2]])
    assert tables.ranks[9].tolist() == [0, 4]
    assert tables.num_tiles[9].tolist() == [[0, 0], [1, 1]]
    enter_line(tables, 100, [0, 0], [[], []], [[], []], [[1], [2]])
    assert tables.pages[:, 9, 0].tolist() == [1, 2]
    assert np.array_equal(tables.tiles[9, 1, 0, 0], before[9, 1, 0, 0])


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=["fp32", "bf16"])
def test_everything_is_compiled_before_the_first_step(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm_up(dtype)
    monkeypatch.setattr(compile_lock, "compiling", lambda *_: pytest.fail("compiled in a step"))
    check(add_lora, Case(dtype), MIXED, NAMES)
