"""The loader's threads share a batch, and report it once."""

import queue
import threading
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
from shared.runtime.clock import SystemClock

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
    monkeypatch.setattr(loader_module, "RUN_BYTES_MIN", 1)
    monkeypatch.setattr(loader_module, "RUN_BYTES_MAX", 2 * PAGE_BYTES)
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
    """A run is two pages, but for those at the end and at the beginning of a layer."""
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


def loader_of(
    disk: Disk, arena: Arena, reports: "queue.SimpleQueue[tuple[LoadResults, int]]", num: int = 3
) -> Loader:
    return Loader(
        disk, {PAGE_BYTES: arena}, ThreadExecutor("loader", num, must_not), SystemClock(),
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


@pytest.mark.parametrize("is_cached", [True, False])
def test_pages_are_read_in_the_order_given_and_asked_for_before_any_is_waited_for(
    disk: Disk, arena: Arena, monkeypatch: pytest.MonkeyPatch, is_cached: bool
) -> None:
    copy, expect, read_cached = Reader.copy, Slab.expect, Slab.read_cached
    seen: list[tuple[str, int, int]] = []
    num_expected = 0

    def copying(
        self: Reader, key_: BlockKey, layer: int, out: Bytes, *, may_wait: bool = True
    ) -> LoadOutcome | None:
        seen.append(("wait" if may_wait else "look", layer, key_[0]))
        return copy(self, key_, layer, out, may_wait=may_wait)

    def expecting(self: Slab, slot: int, layer: int) -> None:
        nonlocal num_expected
        num_expected += 1
        expect(self, slot, layer)

    def reading(self: Slab, slot: int, layer: int, out: Bytes) -> bool:
        return is_cached and read_cached(self, slot, layer, out)

    monkeypatch.setattr(Reader, "copy", copying)
    monkeypatch.setattr(Slab, "expect", expecting)
    monkeypatch.setattr(Slab, "read_cached", reading)
    reports: queue.SimpleQueue[tuple[LoadResults, int]] = queue.SimpleQueue()
    loader = loader_of(disk, arena, reports, num=1)
    loader.submit(ReadPages(everything()[1:]))
    loader.submit(ReadPages(everything()[:1]))
    loader.stop()
    order = [(layer, number) for layer in (1, 0) for number in range(NUM_BLOCKS)]
    assert [each[1:] for each in seen if each[0] == "look"] == order
    if is_cached:
        assert len(seen) == len(order) and not num_expected
    else:
        assert [each[0] for each in seen] == ["look", "look", "wait", "wait"] * NUM_BLOCKS
        assert [each[1:] for each in seen if each[0] == "wait"] == order
        assert num_expected == len(order)
    assert np.array_equal(arena.pages, stored())
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
