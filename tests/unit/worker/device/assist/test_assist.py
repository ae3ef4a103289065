"""Helpers that compute what adapters add: real processes on a real arena."""

import os
import pickle
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.sgmv import Segments, add_lora
from kernels.sgmv.reference import add_lora_reference
from loadtest.random_adapters import RandomAdapters, site_of
from services.worker.device.assist import helper as helper_module
from services.worker.device.assist.channel import IDLE_NS, Channel, Order, Outcome
from services.worker.device.assist.handoff import HostHandoff
from services.worker.device.assist.helper import Helper
from services.worker.device.assist.host_crew import HostCrew
from services.worker.device.assist.orders import ArenaFile, AssistedImage, Pass, Spec
from services.worker.device.assist.process import HelperProcess, spec_shape
from services.worker.device.assist.restarts import REMEMBERED_NS, Losses
from services.worker.device.assist.sharing import rows_per_core, share_rows
from services.worker.device.lora.tables import segments_of
from shared.arena import Arena, PageState
from shared.wire.messages import LoraCard, LoraTarget

FP32, BF16 = torch.float32, torch.bfloat16
NUM_LAYERS, PAGE_ELEMENTS, NUM_PAGES = 3, 2048, 600
TOKENS_MAX, ROWS_MAX = 40, 8
LONG_NS, SHORT_NS = 240_000_000_000, 30_000_000  # the first start may compile
QKV, OUT, HEAD = range(3)
RANKS: list[dict[str, int]] = [
    {"q": 1, "k": 1, "v": 1, "o": 1},
    {"q": 8, "v": 5, "lm_head": 3},
    {"q": 64, "k": 64, "v": 64, "o": 64, "lm_head": 16},
    {"k": 33, "o": 12},
]


def card_of(dtype: torch.dtype) -> LoraCard:
    shapes = {"q": (72, 96), "k": (72, 40), "v": (72, 41), "o": (96, 72)}
    return LoraCard(
        layers_path="model.layers",
        num_layers=NUM_LAYERS,
        element_bytes=dtype.itemsize,
        page_bytes=PAGE_ELEMENTS * dtype.itemsize,
        targets=[LoraTarget(name=name, num_in=i, num_out=o) for name, (i, o) in shapes.items()],
        outer=[LoraTarget(name="lm_head", num_in=72, num_out=301)],
    )


def spec_of(dtype: torch.dtype) -> Spec:
    card = card_of(dtype)
    sites = [site_of(card, names, gap=3) for names in (["q", "k", "v"], ["o"], ["lm_head"])]
    return Spec(card, dtype, tuple(sites), TOKENS_MAX, ROWS_MAX)


class Stored:
    """Adapters in a pool, and in an arena at other places."""

    def __init__(self, path: Path, dtype: torch.dtype, seed: int = 0, epoch: int = 1) -> None:
        self.spec = spec_of(dtype)
        self.adapters = RandomAdapters(self.spec.card, dtype, NUM_PAGES, seed)
        for ranks in RANKS:
            self.adapters.add(ranks)
        self.arena = Arena.create(path, NUM_PAGES, self.spec.card.page_bytes)
        order = np.random.default_rng(seed).permutation(NUM_PAGES)
        self.arena.pages[order] = self.adapters.pool.view(torch.uint8).numpy()
        self.images: dict[int, AssistedImage] = {}
        for line, ranks in enumerate(RANKS):
            pages = order[self.adapters.tables.pages[:, line]].tolist()
            generations = [[7 + page for page in of_layer] for of_layer in pages]
            for its, their in zip(pages, generations, strict=True):
                for page, generation in zip(its, their, strict=True):
                    self.arena.set_word(page, generation, PageState.READY)
            self.images[line] = AssistedImage(f"hash {line}", ranks, pages, generations, epoch)

    def rows(self, site: int, num_rows: int, seed: int = 0) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        shape = num_rows, self.spec.num_in(site)
        return torch.randn(shape, generator=generator).to(self.spec.dtype)

    def want(self, layer: int, site: int, x: torch.Tensor, segments: Segments) -> torch.Tensor:
        y = torch.zeros(len(x), self.spec.num_out(site))
        its, tables = self.spec.sites[site], self.adapters.tables
        return add_lora_reference(x, y, self.adapters.pool, layer, its, segments, tables)

    def from_pool(self, layer: int, site: int, x: torch.Tensor, segments: Segments) -> torch.Tensor:
        y = torch.zeros(len(x), self.spec.num_out(site))
        its, tables = self.spec.sites[site], self.adapters.tables
        add_lora(x, y, self.adapters.pool, layer, its, segments, tables)
        return y


def assert_close(got: torch.Tensor | None, want: torch.Tensor) -> None:
    assert got is not None, "it was not assisted"
    assert got.dtype == FP32
    scale = want.abs().amax(1, keepdim=True)
    assert ((got.double() - want).abs() <= 4e-6 * scale + 1e-5).all()


@dataclass
class Scene:
    """A crew, and what it reads."""

    crew: HostCrew
    stored: Stored
    num_helpers: int

    def begin(self) -> None:
        assert self.crew.await_ready(self.num_helpers, LONG_NS), "helpers are not replaced"
        assert self.crew.begin(self.stored.images)

    def ask(self, num_rows: int = 3, seed: int = 0, layer: int = 1) -> torch.Tensor:
        """Submit rows of line 2; what they should give."""
        x, lines = self.stored.rows(QKV, num_rows, seed), torch.full((num_rows,), 2)
        self.crew.submit(layer, QKV, x, lines.int())
        return self.stored.want(layer, QKV, x, segments_of(lines.int().numpy()))

    def check_works(self) -> None:
        self.begin()
        want = self.ask(seed=5)
        assert_close(self.crew.collect(LONG_NS), want)
        self.crew.end()


def make_scene(folder: Path, dtype: torch.dtype, num_helpers: int) -> Scene:
    stored = Stored(folder / f"arena{dtype.itemsize}", dtype)
    spec = stored.spec
    crew = HostCrew(spec, num_helpers, restart_ns=1_000_000)
    crew.attach(stored.arena, epoch=1)
    return Scene(crew, stored, num_helpers)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Scene]]:
    folder = tmp_path_factory.mktemp("assist")
    made = {"two, bf16": make_scene(folder, BF16, 2), "one, fp32": make_scene(folder, FP32, 1)}
    yield made
    for scene in made.values():
        scene.crew.close()


@pytest.fixture
def two(scenes: dict[str, Scene]) -> Scene:
    return scenes["two, bf16"]


@pytest.fixture
def one(scenes: dict[str, Scene]) -> Scene:
    return scenes["one, fp32"]


@settings(max_examples=20, deadline=None)
@given(
    name=st.sampled_from(["two, bf16", "one, fp32"]),
    lines=st.lists(st.integers(0, len(RANKS) - 1), min_size=1, max_size=TOKENS_MAX),
    order=st.tuples(st.integers(0, NUM_LAYERS - 1), st.sampled_from([QKV, OUT, HEAD])),
    is_sorted=st.booleans(),
)
def test_any_batch_is_what_the_reference_says(
    scenes: dict[str, Scene],
    name: str,
    lines: list[int],
    order: tuple[int, int],
    is_sorted: bool,
) -> None:
    scene, (layer, site) = scenes[name], order
    of_row = np.array(sorted(lines) if is_sorted else lines, np.int32)
    x, segments = scene.stored.rows(site, len(of_row)), segments_of(of_row)
    scene.begin()
    scene.crew.submit(layer, site, x, torch.from_numpy(of_row))
    got = scene.crew.collect(LONG_NS)
    scene.crew.end()
    assert_close(got, scene.stored.want(layer, site, x, segments))
    if len(of_row) <= ROWS_MAX or scene.num_helpers == 1:
        assert got is not None
        assert torch.equal(got, scene.stored.from_pool(layer, site, x, segments))


def test_a_pass_goes_through_all_layers_and_sites(two: Scene) -> None:
    two.begin()
    for layer in range(NUM_LAYERS):
        for site in (QKV, OUT):
            x = two.stored.rows(site, TOKENS_MAX, seed=10 * layer + site)
            of_row = np.repeat(np.arange(4, dtype=np.int32), TOKENS_MAX // 4)
            two.crew.submit(layer, site, x, torch.from_numpy(of_row))
            want = two.stored.want(layer, site, x, segments_of(of_row))
            assert_close(two.crew.collect(LONG_NS), want)
    two.crew.end()


def test_no_rows_give_nothing(one: Scene) -> None:
    one.begin()
    one.crew.submit(1, QKV, one.stored.rows(QKV, 0), torch.zeros(0, dtype=torch.int32))
    got = one.crew.collect(LONG_NS)
    assert got is not None and got.shape == (0, one.stored.spec.num_out(QKV))
    one.crew.end()


def test_what_belongs_to_no_running_pass_is_not_assisted(one: Scene) -> None:
    one.begin()
    one.crew.end()
    one.ask()
    assert one.crew.collect(LONG_NS) is None
    one.check_works()


@pytest.mark.parametrize("state", [PageState.FILLING, PageState.BAD, PageState.FREE])
def test_a_page_that_is_not_ready_ends_the_assistance(one: Scene, state: PageState) -> None:
    arena, image = one.stored.arena, one.stored.images[2]
    page, generation = image.pages[1][0], image.generations[1][0]
    one.begin()
    arena.set_word(page, generation, state)
    one.ask()
    assert one.crew.collect(LONG_NS) is None
    arena.set_word(page, generation, PageState.READY)
    one.ask()
    assert one.crew.collect(LONG_NS) is None, "before the next pass begins"
    one.check_works()


def test_a_page_of_another_generation_ends_the_assistance(one: Scene) -> None:
    arena, image = one.stored.arena, one.stored.images[2]
    page, generation = image.pages[1][0], image.generations[1][0]
    arena.set_word(page, generation + 1, PageState.READY)
    one.begin()
    one.ask()
    assert one.crew.collect(LONG_NS) is None
    arena.set_word(page, generation, PageState.READY)
    one.check_works()


def test_a_page_that_is_not_of_this_layer_may_still_be_on_its_way(one: Scene) -> None:
    arena, image = one.stored.arena, one.stored.images[2]
    for page, generation in zip(image.pages[2], image.generations[2], strict=True):
        arena.set_word(page, generation, PageState.FILLING)
    one.check_works()
    for page, generation in zip(image.pages[2], image.generations[2], strict=True):
        arena.set_word(page, generation, PageState.READY)


def test_a_helper_killed_before_an_order_ends_the_assistance(two: Scene) -> None:
    two.begin()
    with _watched(two.crew.pids[0]) as pidfd:
        os.kill(two.crew.pids[0], signal.SIGKILL)
        _await_end(pidfd)
    two.ask()
    assert two.crew.collect(LONG_NS) is None
    two.check_works()


def test_a_helper_killed_in_an_order_ends_the_assistance(two: Scene) -> None:
    two.begin()
    pid = two.crew.pids[1]
    os.kill(pid, signal.SIGSTOP)
    two.ask(num_rows=TOKENS_MAX)
    os.kill(pid, signal.SIGKILL)
    assert two.crew.collect(LONG_NS) is None
    two.check_works()


def test_a_helper_that_stands_still_is_replaced(two: Scene) -> None:
    two.begin()
    pids = two.crew.pids
    os.kill(pids[0], signal.SIGSTOP)
    two.ask(seed=1)
    assert two.crew.collect(SHORT_NS) is None
    assert two.crew.pids == pids[1:], "it is given up at once"
    assert two.crew.begin(two.stored.images), "the other one goes on"
    want = two.ask(num_rows=TOKENS_MAX, seed=2)
    assert_close(two.crew.collect(LONG_NS), want)
    two.check_works()
    assert pids[0] not in two.crew.pids


def test_what_comes_late_is_not_taken_for_what_was_asked_since(one: Scene) -> None:
    one.begin()
    pid = one.crew.pids[0]
    os.kill(pid, signal.SIGSTOP)
    one.ask(num_rows=TOKENS_MAX, seed=1)
    one.crew.end()
    assert one.crew.begin(one.stored.images)
    want = one.ask(num_rows=TOKENS_MAX, seed=2, layer=2)
    os.kill(pid, signal.SIGCONT)
    assert_close(one.crew.collect(LONG_NS), want)
    one.crew.end()
    assert one.crew.pids == [pid]


def test_orders_may_follow_each_other_uncollected(one: Scene) -> None:
    one.begin()
    for seed in range(20):
        want = one.ask(num_rows=1 + 2 * seed, seed=seed)
    assert_close(one.crew.collect(LONG_NS), want)
    one.crew.end()


def test_another_arena_is_read_once_it_is_attached(one: Scene, tmp_path: Path) -> None:
    new = Stored(tmp_path / "new", FP32, seed=9, epoch=2)
    one.check_works()
    one.crew.attach(new.arena, epoch=2)
    assert not one.crew.begin(one.stored.images), "they were promised on another connection"
    one.crew.detach()
    assert not one.crew.begin(new.images)
    one.crew.attach(new.arena, epoch=2)
    Scene(one.crew, new, 1).check_works()
    one.crew.attach(one.stored.arena, epoch=1)
    one.check_works()


def test_no_helper_outlives_the_crew(tmp_path: Path) -> None:
    before = set(os.listdir("/dev/shm"))
    scene = make_scene(tmp_path, FP32, 1)
    assert not scene.crew.begin(scene.stored.images), "it is not ready yet"
    assert scene.crew.await_ready(1, LONG_NS)
    scene.crew.check()
    assert set(os.listdir("/dev/shm")) <= before
    with _watched(scene.crew.pids[0]) as pidfd:
        os.kill(scene.crew.pids[0], signal.SIGSTOP)
        scene.crew.close()
        _await_end(pidfd)
    scene.crew.check()
    assert not scene.crew.begin(scene.stored.images)
    scene.crew.close()


PARENT = """
    import sys, torch
    from dataclasses import replace
    from services.worker.device.assist.host_crew import HostCrew
    from tests.unit.worker.device.assist.test_assist import spec_of
    spec = spec_of(torch.float32)
    crew = HostCrew(replace(spec, tokens_max=8, rows_max=8), 1)
    assert crew.await_ready(1, 240_000_000_000)
    print(crew.pids[0], flush=True)
    sys.stdin.read()
"""


def test_no_helper_outlives_its_parent() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PARENT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert parent.stdout is not None and parent.stdin is not None
    pid = int(parent.stdout.readline())
    with _watched(pid) as pidfd:
        os.kill(pid, signal.SIGSTOP)
        parent.kill()
        parent.wait()
        _await_end(pidfd)
    parent.stdout.close()
    parent.stdin.close()


@contextmanager
def _watched(pid: int) -> Iterator[int]:
    """A process that may be anybody's child."""
    pidfd = os.pidfd_open(pid)
    try:
        yield pidfd
    finally:
        os.close(pidfd)


def _await_end(pidfd: int) -> None:
    assert select.select([pidfd], [], [], 60.0)[0], "it lives"


# What happens in the middle of an order, in one process.


class Alone:
    """A helper without a process, and the worker's side of it."""

    def __init__(self, stored: Stored) -> None:
        spec = stored.spec
        shape = spec_shape(spec)
        self.stored = stored
        self.channel = Channel.create(shape)
        other = Channel.attach(os.dup(self.channel.file_number), shape)
        self.helper = Helper(other, spec)
        self.handoff = HostHandoff(self.channel)
        self.file = ArenaFile(1, stored.arena.path, stored.arena.identity)
        self.order = Order(letter=2, layer=1, site=OUT, num_rows=2)
        for each in (self.channel, other):
            each.close_file()

    def post(self, file: ArenaFile, letter: int = 2) -> None:
        self.channel.post(letter, pickle.dumps(Pass(file, self.stored.images)))

    def ask(self, order: Order, number: int = 1, line: int = 3) -> Outcome | None:
        """The pass is over behind it, so that the helper comes back."""
        x = self.stored.rows(order.site, order.num_rows)
        self.handoff.put(number, order, x, torch.full((order.num_rows,), line).int())
        self.helper.serve()
        return self.channel.outcome(number)


@pytest.fixture
def alone(tmp_path: Path) -> Alone:
    return Alone(Stored(tmp_path / "arena", FP32))


def test_an_order_of_the_pass_is_done(alone: Alone) -> None:
    alone.post(alone.file)
    assert alone.ask(alone.order) is Outcome.DONE
    assert alone.channel.outcome(2) is None


def test_an_order_that_is_seen_before_its_letter_is_done(alone: Alone) -> None:
    alone.post(alone.file)
    alone.helper.serve()
    alone.post(alone.file, letter=3)
    order = replace(alone.order, letter=3)
    x = alone.stored.rows(order.site, order.num_rows)
    alone.handoff.put(1, order, x, torch.full((order.num_rows,), 3).int())
    assert alone.helper._compute(1, order) is Outcome.DONE


def test_bytes_that_change_under_the_hands_are_refused(
    alone: Alone, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = alone.stored.images[3]

    def change(*arguments: object) -> None:
        generation = image.generations[1][0] + 1
        alone.stored.arena.set_word(image.pages[1][0], generation, PageState.FILLING)

    monkeypatch.setattr(helper_module, "add_lora", change)
    alone.post(alone.file)
    assert alone.ask(alone.order) is Outcome.REFUSED


def test_bytes_that_come_under_the_hands_are_refused(
    alone: Alone, monkeypatch: pytest.MonkeyPatch
) -> None:
    image, arena = alone.stored.images[3], alone.stored.arena
    page, generation = image.pages[1][0], image.generations[1][0]

    def come(*arguments: object) -> None:
        arena.set_word(page, generation, PageState.READY)

    monkeypatch.setattr(helper_module, "add_lora", come)
    arena.set_word(page, generation, PageState.FILLING)
    alone.post(alone.file)
    assert alone.ask(alone.order) is Outcome.REFUSED


def test_a_newer_arena_at_the_same_place_is_not_read(alone: Alone) -> None:
    newer = Stored(alone.stored.arena.path, FP32, seed=9)
    newer.arena.words[:] = alone.stored.arena.words  # as if it promised the same
    alone.post(alone.file)
    assert alone.ask(alone.order) is Outcome.REFUSED


def test_an_arena_that_is_not_there_any_more_is_not_read(alone: Alone) -> None:
    alone.stored.arena.path.unlink()
    alone.post(alone.file)
    assert alone.ask(alone.order) is Outcome.REFUSED


def test_an_order_of_another_pass_is_refused(alone: Alone) -> None:
    alone.post(alone.file)
    assert alone.ask(replace(alone.order, letter=3)) is Outcome.REFUSED


def test_a_line_that_the_pass_does_not_have_is_refused(alone: Alone) -> None:
    alone.post(alone.file)
    assert alone.ask(alone.order, line=4) is Outcome.REFUSED


def test_a_helper_that_nobody_asks_goes_to_sleep(
    alone: Alone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(helper_module, "IDLE_NS", 1)
    alone.channel.is_awake = True
    alone.helper.serve()
    alone.post(alone.file)
    assert alone.ask(alone.order) is Outcome.DONE


def test_who_goes_to_sleep_in_a_pass_is_woken_by_the_next_order(one: Scene) -> None:
    one.begin()
    assert one.crew._pass is not None
    (helper,) = one.crew._pass.helpers
    helper.channel.is_awake = False  # it goes to sleep, as it does when it has long been idle
    helper.sent_at_ns = 0
    want = one.ask()
    assert_close(one.crew.collect(LONG_NS), want)
    one.crew.end()


def test_only_who_heard_nothing_for_long_is_woken(alone: Alone) -> None:
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    assert process.stdin is not None and process.stdout is not None
    helper = HelperProcess(process, alone.channel, alone.handoff, 0)
    helper.sent_at_ns = time.monotonic_ns()
    helper.see_awake()
    helper.sent_at_ns -= IDLE_NS
    helper.see_awake()
    process.stdin.close()
    assert process.stdout.read() == b"\0", "woken once"
    helper.sent_at_ns -= IDLE_NS
    helper.see_awake()  # it is over, and nothing is written anywhere
    helper.reap()


def test_a_letter_that_is_being_written_is_not_read(alone: Alone) -> None:
    alone.channel.post(5, b"five")
    assert alone.channel.read_letter(5) == b"five"
    assert alone.channel.read_letter(4) is None
    alone.channel._letters[0][:8] = bytes(8)
    assert alone.channel.read_letter(5) is None


@given(
    num_rows=st.integers(0, 5000),
    rows_max=st.integers(1, 600),
    num_helpers=st.integers(1, 16),
)
def test_rows_are_shared_out_to_no_more_helpers_than_it_takes(
    num_rows: int, rows_max: int, num_helpers: int
) -> None:
    shares = share_rows(num_rows, rows_max, num_helpers)
    assert [row for first, last in shares for row in range(first, last)] == [*range(num_rows)]
    assert len(shares) == min(-(-num_rows // rows_max), num_helpers)
    lengths = [last - first for first, last in shares]
    assert max(lengths, default=0) - min(lengths, default=0) <= 1
    assert len(shares) == num_helpers or max(lengths, default=0) <= rows_max


@given(st.dictionaries(st.integers(2, 512), st.integers(1, 10**7)), st.integers(1, 10**6))
def test_a_core_is_given_a_number_of_rows_that_was_measured(
    times_ns: dict[int, int], one_ns: int
) -> None:
    assert rows_per_core(times_ns | {1: one_ns}) in {1, *times_ns}


def test_losses_that_are_long_over_do_not_count() -> None:
    losses = Losses(delay_ns=10)
    for now_ns in range(9):
        losses.on_lost(now_ns)
    assert losses.restart_at_ns == 8 + (10 << 5)
    losses.on_lost(REMEMBERED_NS + 100)
    assert losses.restart_at_ns == REMEMBERED_NS + 100
