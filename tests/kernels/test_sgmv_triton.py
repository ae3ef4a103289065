"""The Triton kernels for adapters against the naive implementation: on a GPU, or in Triton's
interpreter."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.sgmv import DeviceAdapterTables, DeviceSegments, Segments, add_lora
from kernels.sgmv.device import copy_line, make_device_segments, make_device_tables
from kernels.sgmv.interface import NO_ADAPTER
from kernels.sgmv.reference import add_lora_reference
from loadtest.random_adapters import RandomAdapters, segments_of, site_of
from tests.kernels.interpreter import DEVICE, IS_INTERPRETED, NEEDS_DEVICE, gpu_only, long
from tests.kernels.test_sgmv import MIXED, NAMES, Case, assert_close, build, rows_of

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = NEEDS_DEVICE
FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
DTYPES = [FP32, BF16] if IS_INTERPRETED else [FP32, BF16, FP16]  # which takes the way of BF16
SEGMENTS_MAX = 9


def copy_segments(segments: Segments, to: DeviceSegments) -> None:
    """Write a batch's segments into the device's, in the current stream."""
    count, room = len(segments.lines), len(to.lines)
    assert count <= room
    starts = np.full(room + 1, segments.starts[-1], np.int32)
    lines = np.full(room, NO_ADAPTER, np.int32)
    starts[: count + 1], lines[:count] = segments.starts, segments.lines
    to.starts.copy_(torch.from_numpy(starts))
    to.lines.copy_(torch.from_numpy(lines))


def tables_of(adapters: RandomAdapters) -> DeviceAdapterTables:
    """With more room than is used, which holds numbers that nobody may use."""
    host = adapters.tables
    tables = make_device_tables(
        host.pages.shape[0], host.ranks.shape[1],
        lines_max=7, blocks_max=host.pages.shape[2] + 1, tiles_max=host.tiles.shape[3] + 1,
        rank_max=64, device=DEVICE,
    )  # fmt: skip
    for each in (tables.pages, tables.ranks, tables.num_tiles, tables.tiles):
        each.fill_(1 << 20)
    for line in range(adapters.num_lines):
        copy_line(host, line, tables)
    return tables


def segments_on_device(segments: Segments) -> DeviceSegments:
    made = make_device_segments(SEGMENTS_MAX, DEVICE)
    copy_segments(segments, made)
    return made


def check(case: Case, lengths: list[tuple[int, int]], names: list[str]) -> None:
    from kernels.sgmv.triton import add_lora_triton

    adapters, _ = build(case)
    segments, site = segments_of(lengths), site_of(case.card, names, gap=3)
    x, whole = rows_of(case, segments, site)
    layer = case.num_layers - 2
    y = whole[:, 2:-1]
    want = add_lora_reference(x, y, adapters.pool, layer, site, segments, adapters.tables)
    on_device, before = whole.to(DEVICE), whole.clone()
    add_lora_triton(
        x.to(DEVICE), on_device[:, 2:-1], adapters.pool.to(DEVICE), layer, site,
        segments_on_device(segments), tables_of(adapters),
    )  # fmt: skip
    got = on_device.cpu()
    # The interpreter cuts bf16 off where it should round.
    assert_close(got[:, 2:-1], want, 2 if IS_INTERPRETED and case.dtype == BF16 else 1)
    same = whole.double() == torch.nn.functional.pad(want, (2, 1))
    same[:, :2], same[:, -1:] = True, True
    assert torch.equal(got[same], before[same]), "what has no adapter is left alone"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("names", "page_elements"),
    [
        (["q", "k", "v"], 4096),
        long(["q", "k", "v"], 300),
        long(["lm_head"], 4096),
        (["lm_head"], 300),
    ],
    ids=["qkv-whole", "qkv-cut", "outer-whole", "outer-cut"],
)
def test_agrees_with_the_reference(
    names: list[str], page_elements: int, dtype: torch.dtype
) -> None:
    check(Case(dtype, page_elements), MIXED, names)


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(
    "lengths", [long([(2, 1)]), [(0, 1), (2, 1), (3, 1)], [(3, 17)], long([(2, 16), (1, 2)])]
)
def test_inputs_are_shared_out(lengths: list[tuple[int, int]], dtype: torch.dtype) -> None:
    check(Case(dtype, 1 << 15, num_in=1100), lengths, ["q", "v"])


def test_no_rows_change_nothing() -> None:
    for lengths in ([(0, 0)], [(NO_ADAPTER, 2)]):
        check(Case(), lengths, NAMES)


@settings(max_examples=5, deadline=None)
@given(
    lengths=st.lists(
        st.tuples(st.integers(-1, 3), st.sampled_from([0, 1, 2, 5, 16, 20])), min_size=1, max_size=6
    ),
    ranks=st.lists(
        st.dictionaries(st.sampled_from(NAMES), st.integers(1, 64)), min_size=4, max_size=4
    ),
    page_elements=st.sampled_from([97, 512, 4096]),
    num_in=st.sampled_from([1, 71, 130]),
)
def test_any_ragged_batch(
    lengths: list[tuple[int, int]], ranks: list[dict[str, int]], page_elements: int, num_in: int
) -> None:
    if any(rows for _, rows in lengths):
        check(Case(FP32, page_elements, num_in, ranks), lengths, NAMES)


def test_a_launch_knows_nothing_of_what_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """One adapter, or as many as there are rows: the same grids and the same numbers."""
    from kernels.sgmv import triton as kernels

    adapters, _ = build(Case())
    launches: list[list[Any]] = []

    class Recorder:
        def __init__(self, name: str) -> None:
            self.name = name

        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            def note(*args: Any, **kwargs: Any) -> None:
                numbers = [each for each in args if not isinstance(each, torch.Tensor)]
                launches[-1].append((self.name, grid, numbers, kwargs))

            return note

    for name in ("_shrink_kernel", "_expand_kernel"):
        monkeypatch.setattr(kernels, name, Recorder(name))
    x, y = torch.zeros(8, 72, device=DEVICE), torch.zeros(8, 96, device=DEVICE)
    tables, site = tables_of(adapters), site_of(Case().card, ["q"])
    for lengths in ([(2, 8)], [(line % 4, 1) for line in range(8)], [(NO_ADAPTER, 8)]):
        launches.append([])
        segments = segments_on_device(segments_of(lengths))
        kernels.add_lora_triton(x, y, adapters.pool.to(DEVICE), 1, site, segments, tables)
    assert len(launches[0]) == 2
    assert launches[0] == launches[1] == launches[2]


@gpu_only
def test_a_recorded_launch_serves_other_adapters() -> None:
    case = Case(BF16)
    adapters, _ = build(case)
    tables, site = tables_of(adapters), site_of(case.card, ["q", "k"])
    pool = adapters.pool.to(DEVICE)
    cases = [segments_of(lengths) for lengths in ([(2, 8)], [(3, 1), (0, 2), (1, 5)], [(1, 8)])]
    x, whole = rows_of(case, cases[0], site)
    held = segments_on_device(cases[0])
    x_device, y = x.to(DEVICE), whole.to(DEVICE)
    add_lora(x_device, y, pool, 1, site, held, tables)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        add_lora(x_device, y, pool, 1, site, held, tables)
    for segments in cases:
        copy_segments(segments, held)
        y.copy_(whole)
        graph.replay()
        want = add_lora_reference(x, whole, adapters.pool, 1, site, segments, adapters.tables)
        assert_close(y.cpu(), want)
