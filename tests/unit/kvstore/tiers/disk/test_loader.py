"""The loader's threads share a batch, and report it once."""

import queue
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from services.kvstore.core import DiskWrite, LoadOutcome, PageReads, ReadPages
from services.kvstore.tiers.disk import Disk, DiskDamaged, Reader
from services.kvstore.tiers.disk import loader as loader_module
from services.kvstore.tiers.disk.loader import Loader, LoadResults
from services.kvstore.tiers.disk.slab import Slab
from services.kvstore.tiers.executors import ThreadExecutor
from shared.arena import Arena, Bytes, PageState, checksum
from shared.blocks import BlockKey
from shared.runtime.clock import Clock, ManualClock, SystemClock

PAGE_BYTES = 4096
NUM_BLOCKS = 12
NUM_LAYERS = 2
READY, FAILED = LoadOutcome.READY, LoadOutcome.FAILED


def key(number: int) -> BlockKey:
    return BlockKey(bytes([number]) * 16)


@pytest.fixture
def arena(tmp_path: Path) -> Arena:
    return Arena.create(tmp_path / "arena", NUM_BLOCKS * NUM_LAYERS, PAGE_BYTES)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    monkeypatch.setattr(loader_module, "RUN_BYTES", 2 * PAGE_BYTES)
    disk = Disk(tmp_path / "kv", 1024**2)
    pages = stored()
    with disk.write(now_s=1) as writer:
        for number in range(NUM_BLOCKS):
            at = [number, NUM_BLOCKS + number]
            sums = [checksum(pages[page].data) for page in at]
            writer.put(DiskWrite(number, key(number), key(0), [], "f", PAGE_BYTES, at, sums), pages)
    return disk


def stored() -> Bytes:
    """uint8 [layers x blocks, PAGE_BYTES]"""
    shape = (NUM_LAYERS * NUM_BLOCKS, PAGE_BYTES)
    return np.random.default_rng(3).integers(0, 256, shape, np.uint8)


def everything() -> list[PageReads]:
    """Two layers of every block."""
    numbers = list(range(NUM_BLOCKS))
    keys = [key(number) for number in numbers]
    return [
        PageReads(
            layer, PAGE_BYTES, numbers, keys,
            list(range(layer * NUM_BLOCKS, (layer + 1) * NUM_BLOCKS)), [3] * NUM_BLOCKS,
        )
        for layer in range(NUM_LAYERS)
    ]  # fmt: skip


def must_not(error: BaseException) -> None:
    raise AssertionError("it failed") from error


def must(is_so: bool) -> None:
    assert is_so


def loader_of(
    disk: Disk,
    arena: Arena,
    reports: "queue.SimpleQueue[tuple[LoadResults, int]]",
    num: int = 3,
    executor: ThreadExecutor | None = None,
    clock: Clock | None = None,
) -> Loader:
    executor = executor or ThreadExecutor("loader", num, must_not)
    return Loader(
        disk, {PAGE_BYTES: arena}, executor, clock or SystemClock(),
        lambda results, took_ns: reports.put((results, took_ns)), must_not,
    )  # fmt: skip


def test_threads_share_a_batch_which_is_told_of_once(
    disk: Disk, arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = threading.Barrier(2, timeout=30)
    copy = Reader.copy
    names: set[str] = set()

    def meeting(
        self: Reader, key_: BlockKey, layer: int, out: Bytes, *, may_wait: bool = True
    ) -> LoadOutcome | None:
        if (name := threading.current_thread().name) not in names:
            names.add(name)
            both.wait()  # until another reads too
        return copy(self, key_, layer, out, may_wait=may_wait)

    monkeypatch.setattr(Reader, "copy", meeting)
    reports: queue.SimpleQueue[tuple[LoadResults, int]] = queue.SimpleQueue()
    loader = loader_of(disk, arena, reports, num=2)
    loader.submit(ReadPages(everything()))
    loader.submit(ReadPages([]))
    loader.stop()
    reported = [reports.get_nowait()[0] for _ in range(2)]
    assert reports.empty() and len(names) == 2
    assert [] in reported
    reported.remove([])
    assert reported[0] == [(reads, [READY] * NUM_BLOCKS) for reads in everything()]
    assert np.array_equal(arena.pages, stored())
    assert {arena.word(page) for page in range(arena.num_pages)} == {(3, PageState.READY)}
    disk.close()


class Device:
    """What pages were looked for, asked for, and waited for: layer and number of the block."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, is_cached: bool) -> None:
        self.looked: list[tuple[int, int]] = []
        self.waited: list[tuple[int, int]] = []
        self.num_asked = self.most_asked = 0
        self.on_look: Callable[[], None] = lambda: None
        self.on_wait: Callable[[], None] = lambda: None
        copy, expect, read_cached = Reader.copy, Slab.expect, Slab.read_cached

        def copying(
            reader: Reader, key_: BlockKey, layer: int, out: Bytes, *, may_wait: bool = True
        ) -> LoadOutcome | None:
            (self.waited if may_wait else self.looked).append((layer, key_[0]))
            (self.on_wait if may_wait else self.on_look)()
            self.num_asked -= may_wait
            return copy(reader, key_, layer, out, may_wait=may_wait)

        def expecting(slab: Slab, slot: int, layer: int) -> None:
            self.num_asked += 1
            self.most_asked = max(self.most_asked, self.num_asked)
            expect(slab, slot, layer)

        def reading(slab: Slab, slot: int, layer: int, out: Bytes) -> bool:
            return is_cached and read_cached(slab, slot, layer, out)

        monkeypatch.setattr(Reader, "copy", copying)
        monkeypatch.setattr(Slab, "expect", expecting)
        monkeypatch.setattr(Slab, "read_cached", reading)


@pytest.mark.parametrize("depth", [1, 4, 64])
@pytest.mark.parametrize("is_cached", [True, False])
def test_pages_are_read_in_the_order_of_need_and_so_many_at_a_time(
    disk: Disk, arena: Arena, monkeypatch: pytest.MonkeyPatch, is_cached: bool, depth: int
) -> None:
    """Over all batches: layer 0 of a hint before layer 1 of another, both behind a turn's."""
    device = Device(monkeypatch, is_cached)
    monkeypatch.setattr(loader_module, "DEPTHS", [depth])
    monkeypatch.setattr(loader_module, "DEPTH", depth)
    reports: queue.SimpleQueue[tuple[LoadResults, int]] = queue.SimpleQueue()
    executor = ThreadExecutor("loader", 1, must_not)
    is_submitted = threading.Event()
    executor.submit(lambda: must(is_submitted.wait(30)))
    loader = loader_of(disk, arena, reports, executor=executor)
    first, second = everything()
    for reads, kind, places in (
        (second, 2, [0, 1]), (first, 2, [1, 2]), (second, 0, range(2, NUM_BLOCKS)),
        (first, 0, [0, *range(3, NUM_BLOCKS)]),
    ):  # fmt: skip
        loader.submit(ReadPages([some(reads, kind, list(places))]))
    is_submitted.set()
    loader.stop()
    order = [
        *[(0, at) for at in (0, *range(3, NUM_BLOCKS))],
        *[(1, at) for at in range(2, NUM_BLOCKS)],
        *[(0, 1), (0, 2), (1, 0), (1, 1)],
    ]
    assert device.looked == order
    assert device.waited == ([] if is_cached else order)
    assert device.most_asked == (0 if is_cached else min(depth, len(order)))
    assert [reports.get_nowait()[0][0][0].kind for _ in range(4)] == [0, 0, 2, 2]
    assert np.array_equal(arena.pages, stored())
    disk.close()


def some(reads: PageReads, kind: int, places: list[int]) -> PageReads:
    """Some of these pages, so urgent."""
    keys, pages = [reads.keys[at] for at in places], [reads.pages[at] for at in places]
    return PageReads(reads.layer, PAGE_BYTES, places, keys, pages, [3] * len(places), kind)


def test_what_becomes_urgent_waits_for_what_is_begun_and_no_more(
    disk: Disk, arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Device(monkeypatch, is_cached=False)
    monkeypatch.setattr(loader_module, "DEPTHS", [4])
    monkeypatch.setattr(loader_module, "DEPTH", 4)
    reports: queue.SimpleQueue[tuple[LoadResults, int]] = queue.SimpleQueue()
    loader = loader_of(disk, arena, reports, num=1)
    first, second = everything()

    def hurry() -> None:
        device.on_wait = lambda: None
        loader.submit(ReadPages([some(second, 0, [5])]))

    device.on_wait = hurry
    loader.submit(ReadPages([some(first, 2, list(range(NUM_BLOCKS)))]))
    for _ in range(2):
        reports.get(timeout=30)
    loader.stop()
    assert device.waited.index((1, 5)) == 4
    disk.close()


@pytest.mark.parametrize(
    ("is_cached", "num_ahead", "depth"), [(False, 1, 1), (True, 1, 8), (False, 0, 8)]
)
def test_the_depth_follows_what_the_device_gives_under_load(
    disk: Disk,
    arena: Arena,
    monkeypatch: pytest.MonkeyPatch,
    is_cached: bool,
    num_ahead: int,
    depth: int,
) -> None:
    """Here no more for more at a time. What was in memory says nothing of it, nor does a batch
    behind which none waits.
    """
    device = Device(monkeypatch, is_cached)
    clock = ManualClock()
    device.on_wait = device.on_look = lambda: clock.advance(10_000_000)
    reports: queue.SimpleQueue[tuple[LoadResults, int]] = queue.SimpleQueue()
    loader = loader_of(disk, arena, reports, num=1, clock=clock)
    batch = ReadPages([everything()[0]])
    for _ in range(num_ahead):
        loader.submit(batch)
    levels: Counter[int] = Counter()
    for _ in range(800):
        loader.submit(batch)
        reports.get(timeout=30)
        levels[loader.depth.level] += 1
    loader.stop()
    assert levels.most_common(1)[0][0] == depth
    disk.close()


def test_a_failure_costs_what_was_not_begun_and_is_told_of_once(
    disk: Disk, arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Reader.copy

    def failing(
        self: Reader, key_: BlockKey, layer: int, out: Bytes, *, may_wait: bool = True
    ) -> LoadOutcome | None:
        if key_ == key(5):
            raise OSError(5, "Input/output error")
        return copy(self, key_, layer, out, may_wait=may_wait)

    monkeypatch.setattr(Reader, "copy", failing)
    reports: queue.SimpleQueue[tuple[LoadResults, int]] = queue.SimpleQueue()
    damages: list[DiskDamaged] = []
    loader = Loader(
        disk, {PAGE_BYTES: arena}, ThreadExecutor("loader", 1, must_not), SystemClock(),
        lambda results, took_ns: reports.put((results, took_ns)), damages.append,
    )  # fmt: skip
    loader.submit(ReadPages(everything()))
    loader.submit(ReadPages(everything()[:1]))
    loader.stop()
    results, _ = reports.get_nowait()
    assert [outcomes for _, outcomes in results] == [
        [READY] * 5 + [FAILED] * (NUM_BLOCKS - 5),
        [FAILED] * NUM_BLOCKS,
    ]
    assert arena.word(NUM_BLOCKS) == (3, PageState.BAD)
    assert [outcomes for _, outcomes in reports.get_nowait()[0]] == [
        [READY] * 5 + [FAILED] * (NUM_BLOCKS - 5)
    ], "the next batch is tried"
    assert not damages
    disk.close()
