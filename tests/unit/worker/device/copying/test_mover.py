"""The mover against a real arena file."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from typing import Any, NamedTuple

import numpy as np
import pytest

from kernels.page_sums.select import PageNumbers
from services.worker.core.effects import BlockWrite, PageLoads
from services.worker.device.copying import mover
from services.worker.device.copying.copies import Copy, HostCopier, PageCopier, Store
from services.worker.device.copying.gate import PageGate
from services.worker.device.copying.load_queue import RUN_PAGES
from services.worker.device.copying.mover import (
    CalledBack,
    KvMover,
    Loaded,
    Moved,
    MoverGone,
    Stored,
)
from shared.arena import Arena, Bytes, Pages, PageState, States, Words, checksum
from shared.blocks import BLOCK_TOKENS, BlockKey
from shared.wire.urgency import DEMAND_PRIORITY
from tests.unit.worker.device.copying.copiers import KINDS, LateCopier, make_copier

EPOCH = 3
PAGES = 8
PAGE_BYTES = 4096


class Setup(NamedTuple):
    mover: KvMover
    copier: PageCopier
    arena: Arena
    pool: Any
    ended: list[tuple[list[int], list[int]]]
    has_ended: threading.Event
    stored: "Queue[dict[int, list[int]]]"
    called_back: "Queue[list[int]]"

    def write(self, epoch: int = EPOCH) -> None:
        """Store pool pages 3 and 4 as a block in arena pages 0 and 1."""
        self.mover.submit_stores([block_write(9, [3, 4], [0, 1])], epoch)


@pytest.fixture(params=KINDS)
def setup(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Setup]:
    arena = Arena.create(tmp_path / "arena", PAGES, PAGE_BYTES)
    copier, pool = make_copier(request.param, PAGES, PAGE_BYTES)
    ended: list[tuple[list[int], list[int]]] = []
    has_ended = threading.Event()

    stored: Queue[dict[int, list[int]]] = Queue()
    called_back: Queue[list[int]] = Queue()

    def on_moved(moved: Moved) -> None:
        if isinstance(moved, Stored):
            stored.put(moved.checksums)
            return
        if isinstance(moved, CalledBack):
            called_back.put(moved.pages)
            return
        ended.append((moved.good, moved.bad))
        has_ended.set()

    mover = KvMover(copier, PageGate(PAGES), on_moved)
    mover.prepare(arena)
    mover.attach(arena, EPOCH)
    yield Setup(mover, copier, arena, pool, ended, has_ended, stored, called_back)
    mover.close()


def host_pool() -> Bytes:
    return np.zeros((PAGES, PAGE_BYTES), np.uint8)


def block_write(number: int, pool_pages: list[int], arena_pages: list[int]) -> BlockWrite:
    key, parent = BlockKey(b"%d" % number), BlockKey(b"p")
    return BlockWrite(number, key, parent, [1], pool_pages, arena_pages)


def test_a_page_is_copied_once_its_word_says_ready(setup: Setup) -> None:
    setup.arena.set_word(2, 7, PageState.FILLING)
    setup.mover.submit_loads([PageLoads(DEMAND_PRIORITY, 0, [2], [7], [5], EPOCH)])
    assert not setup.mover.gate.wait([5], 1_000_000)
    setup.arena.pages[2] = 9
    setup.arena.set_word(2, 7, PageState.READY)
    assert setup.mover.gate.wait([5], 5_000_000_000)
    assert (setup.pool[5] == 9).all()


def test_loads_are_called_back_as_far_as_they_have_not_begun(setup: Setup) -> None:
    for page in (1, 2, 3):
        setup.arena.set_word(page, 7, PageState.FILLING)
    setup.mover.submit_loads([PageLoads(1, 0, [1, 2, 3], [7, 7, 7], [4, 5, 6], EPOCH)])
    called: list[int] = []
    while len(called) < 2:  # for a moment the thread may have them in its hands
        setup.mover.call_back([4, 6, 7])
        while not setup.called_back.empty():
            called += setup.called_back.get()
    assert sorted(called) == [4, 6]
    for page in (1, 2, 3):
        setup.arena.pages[page] = page
        setup.arena.set_word(page, 7, PageState.READY)
    assert setup.mover.gate.wait([5], 5_000_000_000)
    assert (setup.pool[5] == 2).all() and not setup.pool[4].any() and not setup.pool[6].any()


def test_a_page_is_waited_for_until_it_is_overdue(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mover, "OVERDUE_NS", 1_000_000)
    for page in (2, 3):
        setup.arena.set_word(page, 7, PageState.FILLING)
    promised = PageLoads(DEMAND_PRIORITY, 0, [2], [7], [5], EPOCH, time.monotonic_ns() + 10**15)
    overdue = PageLoads(DEMAND_PRIORITY, 0, [3], [7], [6], EPOCH, time.monotonic_ns())
    setup.mover.submit_loads([promised, overdue])
    assert setup.has_ended.wait(5) and setup.ended == [([], [6])]
    setup.arena.set_word(2, 7, PageState.READY)
    assert setup.mover.gate.wait([5], 5_000_000_000)


@pytest.mark.parametrize(
    ("generation", "state", "epoch"),
    [
        (8, PageState.READY, EPOCH),  # reassigned meanwhile
        (7, PageState.BAD, EPOCH),  # its checksum was wrong
        (7, PageState.READY, EPOCH - 1),  # promised by an earlier kvstore
    ],
)
def test_other_bytes_than_the_promised_ones_fail(
    setup: Setup, generation: int, state: PageState, epoch: int
) -> None:
    setup.arena.set_word(2, generation, state)
    setup.mover.submit_loads([PageLoads(DEMAND_PRIORITY, 0, [2], [7], [5], epoch)])
    assert setup.has_ended.wait(5)
    assert setup.ended == [([], [5])]
    assert not setup.mover.gate.wait([5], 0)


def test_writes_carry_their_checksums(setup: Setup) -> None:
    setup.pool[3], setup.pool[4] = 1, 2
    setup.write()
    sums = [checksum(setup.pool[3]), checksum(setup.pool[4])]
    assert setup.stored.get(timeout=30) == {9: sums}
    assert (setup.arena.pages[:2, 0] == [1, 2]).all()


def test_pages_leased_from_an_earlier_kvstore_are_not_written(setup: Setup) -> None:
    setup.pool[3:5] = 7
    setup.write(EPOCH - 1)
    assert setup.stored.get(timeout=30) == {9: []}
    assert not setup.arena.pages.any()


class _Held(HostCopier):
    """Stores nothing before it is let go."""

    def __init__(self, pool: Bytes) -> None:
        super().__init__(pool)
        self.has_begun = threading.Event()
        self.may_go = threading.Event()

    def store(
        self,
        pool_pages: PageNumbers,
        arena: Arena,
        arena_pages: PageNumbers,
        num_tokens: int = BLOCK_TOKENS,
    ) -> Store:
        self.has_begun.set()
        assert self.may_go.wait(30)
        return super().store(pool_pages, arena, arena_pages, num_tokens)


def test_writes_that_find_no_room_are_not_done_and_cost_no_other(setup: Setup) -> None:
    copier = _Held(host_pool())
    ended: Queue[Moved] = Queue()
    mover = KvMover(copier, PageGate(PAGES), ended.put, stores_max=1)
    mover.attach(setup.arena, EPOCH)
    mover.submit_stores([block_write(0, [0, 3], [0, 3])], EPOCH)
    assert copier.has_begun.wait(30)
    mover.submit_stores([block_write(1, [1, 4], [1, 4])], EPOCH)
    mover.submit_stores([block_write(2, [2, 5], [2, 5]), block_write(3, [6], [6])], EPOCH)
    assert ended.get(timeout=30) == Stored({2: [], 3: []})
    copier.may_go.set()
    for number in range(2):
        sums = [checksum(setup.pool[number]), checksum(setup.pool[number + 3])]
        assert ended.get(timeout=30) == Stored({number: sums})
    mover.close()


def test_of_too_many_loads_prefetches_fail_first_and_then_high_layers(setup: Setup) -> None:
    ended: list[int] = []

    def on_moved(moved: Moved) -> None:
        assert isinstance(moved, Loaded)
        ended.extend(moved.bad)

    mover = KvMover(HostCopier(host_pool()), PageGate(PAGES), on_moved, loads_max=2)
    mover.attach(setup.arena, EPOCH)
    with mover._has_loads:  # the thread takes nothing meanwhile
        mover.submit_loads([PageLoads(1, 0, [0], [1], [0], EPOCH)])
        mover.submit_loads([PageLoads(DEMAND_PRIORITY, 2, [1], [1], [1], EPOCH)])
        assert ended == []
        mover.submit_loads([PageLoads(DEMAND_PRIORITY, 1, [2], [1], [2], EPOCH)])
        assert ended == [0]
        mover.submit_loads([PageLoads(DEMAND_PRIORITY, 0, [3], [1], [3], EPOCH)])
        assert ended == [0, 1]
    mover.close()


class FlippingArena(Arena):
    """Its kvstore finishes a page right after the first look at its word."""

    def promises(self, pages: list[int] | Pages, generations: list[int] | Words) -> States:
        found = super().promises(pages, generations)
        for page, generation in zip(pages, generations, strict=True):
            self.set_word(int(page), int(generation), PageState.READY)
        return found


def test_a_page_that_becomes_ready_between_two_looks_is_no_failure(
    setup: Setup, tmp_path: Path
) -> None:
    arena = FlippingArena.create(tmp_path / "flipping", PAGES, PAGE_BYTES)
    setup.mover.prepare(arena)
    setup.mover.attach(arena, EPOCH)
    arena.set_word(2, 7, PageState.FILLING)
    setup.mover.submit_loads([PageLoads(DEMAND_PRIORITY, 0, [2], [7], [5], EPOCH)])
    assert setup.has_ended.wait(5)
    assert setup.ended == [([5], [])]


def test_pages_that_are_there_overtake_those_that_are_still_to_come(setup: Setup) -> None:
    """More of these wait for a slow disk than are looked at in one go."""
    arena = Arena.create(setup.arena.path.with_name("large"), 3 * RUN_PAGES, PAGE_BYTES)
    pool = np.zeros((3 * RUN_PAGES, PAGE_BYTES), np.uint8)
    ended: Queue[Moved] = Queue()
    mover = KvMover(HostCopier(pool), PageGate(len(pool)), ended.put)
    mover.attach(arena, EPOCH)
    slow, last = list(range(2 * RUN_PAGES)), 3 * RUN_PAGES - 1
    for page in slow:
        arena.set_word(page, 7, PageState.FILLING)
    arena.set_word(last, 7, PageState.READY)
    mover.submit_loads([PageLoads(DEMAND_PRIORITY, 0, slow, [7] * len(slow), slow, EPOCH)])
    mover.submit_loads([PageLoads(1, 1, [last], [7], [last], EPOCH)])
    moved = ended.get(timeout=30)
    assert isinstance(moved, Loaded) and (moved.good, moved.bad) == ([last], [])
    for page in slow:
        arena.set_word(page, 7, PageState.READY)
    good: list[int] = []
    while len(good) < len(slow):
        moved = ended.get(timeout=30)
        assert isinstance(moved, Loaded) and not moved.bad
        good += moved.good
    assert sorted(good) == slow
    mover.close()


class _Broken(HostCopier):
    def store(
        self,
        pool_pages: PageNumbers,
        arena: Arena,
        arena_pages: PageNumbers,
        num_tokens: int = BLOCK_TOKENS,
    ) -> Store:
        raise OSError("the arena is gone")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_died_is_found_missing(setup: Setup) -> None:
    mover = KvMover(_Broken(host_pool()), PageGate(PAGES), lambda _: None)
    mover.attach(setup.arena, EPOCH)
    mover.check()
    mover.submit_stores([block_write(1, [1], [2])], EPOCH)
    mover._storer.thread.join(30)
    with pytest.raises(MoverGone, match="kv-store"):
        mover.check()
    mover.close()


def test_no_page_is_stored_once_its_lease_is_about_to_end(setup: Setup) -> None:
    setup.pool[3:5] = 7
    setup.mover.detach()
    setup.write()
    setup.mover.attach(setup.arena, EPOCH + 1)  # by now others may have the pages
    setup.write()
    assert [setup.stored.get(timeout=30) for _ in range(2)] == [{9: []}, {9: []}]
    assert not setup.arena.pages.any()


def test_who_ends_a_lease_waits_for_the_page_under_way(setup: Setup) -> None:
    setup.pool[3:5] = 7
    copier = _Held(host_pool())
    ended: Queue[Moved] = Queue()
    mover = KvMover(copier, PageGate(PAGES), ended.put)
    mover.attach(setup.arena, EPOCH)
    mover.submit_stores([block_write(9, [3, 4], [0, 1])], EPOCH)
    assert copier.has_begun.wait(30)
    stored_first: list[bool] = []

    def detach() -> None:
        mover.detach()
        stored_first.append(copier.may_go.is_set())

    ending = threading.Thread(target=detach)
    ending.start()
    copier.may_go.set()
    ending.join(30)
    assert stored_first == [True]
    mover.close()


def test_bytes_that_change_under_a_copy_are_not_the_promised_ones(setup: Setup) -> None:
    """The word changes between the start of the copy and its end."""
    arena = setup.arena
    arena.set_word(2, 7, PageState.READY)
    load, copier = setup.copier.load, setup.copier

    def load_and_lose(arena: Arena, arena_pages: PageNumbers, pool_pages: PageNumbers) -> Copy:
        copy = load(arena, arena_pages, pool_pages)
        arena.set_word(2, 8, PageState.READY)
        return copy

    copier.load = load_and_lose  # type: ignore[method-assign]
    setup.mover.submit_loads([PageLoads(DEMAND_PRIORITY, 0, [2], [7], [5], EPOCH)])
    assert setup.has_ended.wait(30)
    assert setup.ended == [([], [5])]


def test_many_runs_land_whole_and_each_once(setup: Setup, tmp_path: Path) -> None:
    for page in range(PAGES):
        setup.arena.pages[page] = page + 1
        setup.arena.set_word(page, 1, PageState.READY)
    order = [5, 2, 7, 0, 1, 6, 3, 4]
    for layer, page in enumerate(order):
        loads = PageLoads(DEMAND_PRIORITY, layer, [page], [1], [PAGES - 1 - page], EPOCH)
        setup.mover.submit_loads([loads])
    assert setup.mover.gate.wait(list(range(PAGES)), 30_000_000_000)
    assert [int(setup.pool[PAGES - 1 - page][0]) for page in order] == [n + 1 for n in order]
    assert sorted(page for good, _ in setup.ended for page in good) == list(range(PAGES))


def test_a_copy_that_fails_fails_its_pages_alone(setup: Setup) -> None:
    pool = host_pool()
    ended: Queue[Moved] = Queue()
    mover = KvMover(LateCopier(pool, fails=frozenset({3})), PageGate(PAGES), ended.put)
    mover.attach(setup.arena, EPOCH)
    for page in range(PAGES):
        setup.arena.set_word(page, 1, PageState.READY)
    mover.submit_loads([PageLoads(DEMAND_PRIORITY, 0, [0, 1], [1, 1], [3, 4], EPOCH)])
    mover.submit_loads([PageLoads(DEMAND_PRIORITY, 1, [2], [1], [5], EPOCH)])
    moved = [ended.get(timeout=30) for _ in range(2)]
    assert [(each.good, each.bad) for each in moved if isinstance(each, Loaded)] == [
        ([], [3, 4]),
        ([5], []),
    ]
    mover.submit_stores([block_write(1, [3], [6]), block_write(2, [4], [7])], EPOCH)
    assert ended.get(timeout=30) == Stored({1: [], 2: [checksum(pool[4])]})
    mover.check()
    mover.close()
