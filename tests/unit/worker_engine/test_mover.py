"""The mover against a real arena file."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from services.worker.core.effects import BlockWrite, PageLoad, StepPlan
from services.worker.engine.gate import PageGate
from services.worker.engine.mover import HostCopier, KvMover, MoverGone
from shared.arena import Arena, Bytes, PageState, checksum
from shared.blocks import BlockKey

EPOCH = 3
PAGES = 8
PAGE_BYTES = 4096


class Setup(NamedTuple):
    mover: KvMover
    arena: Arena
    pool: Bytes
    ended: list[tuple[list[int], list[int]]]
    has_ended: threading.Event


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[Setup]:
    arena = Arena.create(tmp_path / "arena", PAGES, PAGE_BYTES)
    pool = np.zeros((PAGES, PAGE_BYTES), np.uint8)
    ended: list[tuple[list[int], list[int]]] = []
    has_ended = threading.Event()

    def on_loaded(good: list[int], bad: list[int], *_: int) -> None:
        ended.append((good, bad))
        has_ended.set()

    mover = KvMover(HostCopier(pool), PageGate(PAGES), on_loaded)
    mover.attach(arena, EPOCH)
    yield Setup(mover, arena, pool, ended, has_ended)
    mover.close()


def test_a_page_is_copied_once_its_word_says_ready(setup: Setup) -> None:
    setup.arena.set_word(2, 7, PageState.FILLING)
    setup.mover.submit_loads([PageLoad(0, 2, 7, 5, EPOCH)], is_prefetch=False)
    assert not setup.mover.gate.wait([5], 1_000_000)
    setup.arena.pages[2] = 9
    setup.arena.set_word(2, 7, PageState.READY)
    assert setup.mover.gate.wait([5], 5_000_000_000)
    assert (setup.pool[5] == 9).all()


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
    setup.mover.submit_loads([PageLoad(0, 2, 7, 5, epoch)], is_prefetch=False)
    assert setup.has_ended.wait(5)
    assert setup.ended == [([], [5])]
    assert not setup.mover.gate.wait([5], 0)


def plan(epoch: int) -> StepPlan:
    write = BlockWrite(BlockKey(b"k"), BlockKey(b"p"), [1], [3, 4], [0, 1], 0)
    return StepPlan([], np.zeros((2, 0, 0), np.int32), [write], epoch)


def test_writes_carry_their_checksums(setup: Setup) -> None:
    setup.pool[3], setup.pool[4] = 1, 2
    writes = setup.mover.begin_writes(plan(EPOCH), num_layers=2)
    assert writes is not None
    for layer in range(2):
        setup.mover.store(writes, 0, layer)
    assert writes.wait() == [[checksum(setup.pool[3]), checksum(setup.pool[4])]]
    assert (setup.arena.pages[:2, 0] == [1, 2]).all()


def test_pages_leased_from_an_earlier_kvstore_are_not_written(setup: Setup) -> None:
    assert setup.mover.begin_writes(plan(EPOCH - 1), num_layers=2) is None


class _Held(HostCopier):
    """Stores nothing before it is let go."""

    def __init__(self, pool: Bytes) -> None:
        super().__init__(pool)
        self.has_begun = threading.Event()
        self.may_go = threading.Event()

    def store(self, mark: object, pool_page: int, target: Bytes) -> None:
        self.has_begun.set()
        assert self.may_go.wait(30)
        super().store(mark, pool_page, target)


def test_a_write_that_finds_no_room_is_not_done_and_costs_no_other(setup: Setup) -> None:
    copier = _Held(setup.pool)
    mover = KvMover(copier, PageGate(PAGES), lambda *_: None, stores_max=2)
    mover.attach(setup.arena, EPOCH)
    writes = [
        BlockWrite(BlockKey(b"%d" % n), BlockKey(b"p"), [], [n, n + 3], [n, n + 3], 0)
        for n in range(3)
    ]
    step = mover.begin_writes(StepPlan([], np.zeros((2, 0, 0), np.int32), writes, EPOCH), 2)
    assert step is not None
    mover.store(step, 0, 0)
    assert copier.has_begun.wait(30)
    for index, layer in ((0, 1), (1, 0), (1, 1), (2, 0), (2, 1)):  # room for the first two
        mover.store(step, index, layer)
    copier.may_go.set()
    sums = step.wait()
    assert [bool(each) for each in sums] == [True, False, False]
    assert sums[0] == [checksum(setup.pool[0]), checksum(setup.pool[3])]
    mover.close()


def test_of_too_many_loads_prefetches_fail_first_and_then_high_layers(setup: Setup) -> None:
    ended: list[int] = []
    mover = KvMover(
        HostCopier(setup.pool), PageGate(PAGES), lambda _, bad, *__: ended.extend(bad), loads_max=2
    )
    mover.attach(setup.arena, EPOCH)
    with mover._has_loads:  # the thread takes nothing meanwhile
        mover.submit_loads([PageLoad(0, 0, 1, 0, EPOCH)], is_prefetch=True)
        mover.submit_loads([PageLoad(2, 1, 1, 1, EPOCH)], is_prefetch=False)
        assert ended == []
        mover.submit_loads([PageLoad(1, 2, 1, 2, EPOCH)], is_prefetch=False)
        assert ended == [0]
        mover.submit_loads([PageLoad(0, 3, 1, 3, EPOCH)], is_prefetch=False)
        assert ended == [0, 1]
    mover.close()


class FlippingArena(Arena):
    """Its kvstore finishes a page right after the first look at its word."""

    def word(self, page: int) -> tuple[int, PageState]:
        found = super().word(page)
        self.set_word(page, found[0], PageState.READY)
        return found


def test_a_page_that_becomes_ready_between_two_looks_is_no_failure(
    setup: Setup, tmp_path: Path
) -> None:
    arena = FlippingArena.create(tmp_path / "flipping", PAGES, PAGE_BYTES)
    setup.mover.attach(arena, EPOCH)
    arena.set_word(2, 7, PageState.FILLING)
    setup.mover.submit_loads([PageLoad(0, 2, 7, 5, EPOCH)], is_prefetch=False)
    assert setup.has_ended.wait(5)
    assert setup.ended == [([5], [])]


class _Broken(HostCopier):
    def store(self, mark: object, pool_page: int, target: Bytes) -> None:
        raise OSError("the arena is gone")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_nobody_waits_for_a_thread_that_died(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.worker.engine.mover.ALIVE_POLL_S", 0.01)
    mover = KvMover(_Broken(setup.pool), PageGate(PAGES), lambda *_: None)
    mover.attach(setup.arena, EPOCH)
    write = BlockWrite(BlockKey(b"k"), BlockKey(b"p"), [], [1], [2], 0)
    writes = mover.begin_writes(StepPlan([], np.zeros((1, 0, 0), np.int32), [write], EPOCH), 1)
    assert writes is not None
    mover.check()
    mover.store(writes, 0, 0)
    with pytest.raises(MoverGone, match="stores pages"):
        writes.wait()
    with pytest.raises(MoverGone, match="kv-store"):
        mover.check()
    mover.close()


def test_no_page_is_stored_once_its_lease_is_about_to_end(setup: Setup) -> None:
    setup.pool[3:5] = 7
    writes = setup.mover.begin_writes(plan(EPOCH), num_layers=2)
    assert writes is not None
    setup.mover.detach()
    setup.mover.store(writes, 0, 0)
    setup.mover.attach(setup.arena, EPOCH + 1)  # by now others may have the pages
    setup.mover.store(writes, 0, 1)
    assert writes.wait() == [[]] and not setup.arena.pages.any()


def test_who_ends_a_lease_waits_for_the_page_under_way(setup: Setup) -> None:
    copier = _Held(setup.pool)
    mover = KvMover(copier, PageGate(PAGES), lambda *_: None)
    mover.attach(setup.arena, EPOCH)
    writes = mover.begin_writes(plan(EPOCH), num_layers=2)
    assert writes is not None
    mover.store(writes, 0, 0)
    assert copier.has_begun.wait(30)
    stored_first: list[bool] = []

    def detach() -> None:
        mover.detach()
        stored_first.append(copier.may_go.is_set())

    ending = threading.Thread(target=detach)
    ending.start()
    copier.may_go.set()
    ending.join(30)
    mover.store(writes, 0, 1)
    assert stored_first == [True] and writes.wait() == [[]]
    mover.close()
