"""Stores: by runs, several of them at once, each block reported once and rightly."""

import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.page_sums.select import PageNumbers
from services.worker.core.effects import BlockWrite
from services.worker.device.copying import storing
from services.worker.device.copying.copies import Copy, HostCopier, Store, SummedByHost
from services.worker.device.copying.storing import RUNS_IN_FLIGHT, Checksums, Storer
from shared.arena import Arena, checksum
from shared.blocks import BLOCK_TOKENS, BlockKey
from tests.unit.worker.device.copying.copiers import LateCopier

LAYERS, BLOCKS, PAGE_BYTES, EPOCH = 2, 12, 4096, 3
PAGES = LAYERS * BLOCKS
TIMEOUT_S = 30


class HeldCopier(HostCopier):
    """Copies that are over when the test says so.

    Attributes:
        started: the arena's pages of each call.
    """

    def __init__(self, num_pages: int = PAGES) -> None:
        super().__init__(np.arange(num_pages * PAGE_BYTES).astype(np.uint8).reshape(num_pages, -1))
        self.started: Queue[list[int]] = Queue()
        self.may_end = threading.Semaphore(0)

    def store(
        self,
        pool_pages: PageNumbers,
        arena: Arena,
        arena_pages: PageNumbers,
        num_tokens: int = BLOCK_TOKENS,
    ) -> Store:
        super().store(pool_pages, arena, arena_pages, num_tokens)
        self.started.put(list(arena_pages))
        return SummedByHost(_Held(self.may_end), arena.pages, arena_pages)


class _Held(Copy):
    def __init__(self, may_end: threading.Semaphore) -> None:
        self._may_end = may_end

    def is_over(self) -> bool:
        return False

    def wait(self) -> None:
        assert self._may_end.acquire(timeout=TIMEOUT_S)


def block_write(number: int, *, is_partial: bool = False) -> BlockWrite:
    """Pool and arena pages 2 n and 2 n + 1."""
    pages = [LAYERS * number + layer for layer in range(LAYERS)]
    tokens = [1] if is_partial else [1] * BLOCK_TOKENS
    key = BlockKey(b"%d" % number)
    return BlockWrite(number, key, key, tokens, pages, pages, is_partial=is_partial)


@pytest.fixture
def arena(tmp_path: Path) -> Arena:
    return Arena.create(tmp_path / "arena", PAGES, PAGE_BYTES)


@pytest.fixture
def copier() -> HeldCopier:
    return HeldCopier()


@pytest.fixture
def stored() -> "Queue[Checksums]":
    return Queue()


@pytest.fixture
def storer(copier: HeldCopier, arena: Arena, stored: "Queue[Checksums]") -> Iterator[Storer]:
    storer = Storer(copier, stored.put, 8, 1)
    storer.attach(arena, EPOCH)
    yield storer
    for _ in range(BLOCKS):
        copier.may_end.release()
    storer.close()


def one_block_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storing, "RUN_BYTES", LAYERS * PAGE_BYTES)


def test_a_few_runs_are_under_way_and_no_more(
    storer: Storer,
    copier: HeldCopier,
    stored: "Queue[Checksums]",
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one_block_a_run(monkeypatch)
    storer.submit([block_write(number) for number in range(RUNS_IN_FLIGHT + 1)], EPOCH)
    started = [copier.started.get(timeout=TIMEOUT_S) for _ in range(RUNS_IN_FLIGHT)]
    assert started == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert copier.started.empty() and stored.empty()
    copier.may_end.release()
    assert copier.started.get(timeout=TIMEOUT_S) == [8, 9]


def test_blocks_are_stored_by_the_run_and_a_partial_one_alone(
    storer: Storer, copier: HeldCopier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storing, "RUN_BYTES", 2 * LAYERS * PAGE_BYTES)
    writes = [block_write(number, is_partial=number == 4) for number in range(7)]
    storer.submit(writes, EPOCH)
    for _ in writes:
        copier.may_end.release()
    started = [copier.started.get(timeout=TIMEOUT_S) for _ in range(4)]
    assert started == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9], [10, 11, 12, 13]]


def test_who_ends_the_leases_waits_for_all_that_is_under_way(
    storer: Storer,
    copier: HeldCopier,
    stored: "Queue[Checksums]",
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one_block_a_run(monkeypatch)
    storer.submit([block_write(number) for number in range(3)], EPOCH)
    for _ in range(3):
        copier.started.get(timeout=TIMEOUT_S)
    were_over: list[int] = []

    def detach() -> None:
        storer.detach()
        were_over.append(len(stored.get(timeout=TIMEOUT_S)))

    ending = threading.Thread(target=detach)
    ending.start()
    for _ in range(3):
        assert not were_over
        copier.may_end.release()
    ending.join(TIMEOUT_S)
    assert were_over == [3]
    storer.submit([block_write(5)], EPOCH)
    assert stored.get(timeout=TIMEOUT_S) == {5: []}


@settings(max_examples=25, deadline=None)
@given(
    orders=st.lists(
        st.lists(st.integers(0, BLOCKS - 1), min_size=1, max_size=5), min_size=1, max_size=6
    ),
    failing=st.frozensets(st.integers(0, PAGES - 1), max_size=3),
    run_blocks=st.integers(1, 3),
)
def test_each_block_is_reported_once_with_what_lies_in_the_arena(
    orders: list[list[int]], failing: frozenset[int], run_blocks: int
) -> None:
    """Also where some pages cannot be copied, which costs no other block."""
    pool = np.random.default_rng(1).integers(0, 255, (PAGES, PAGE_BYTES), dtype=np.uint8)
    stored: Queue[Checksums] = Queue()
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(storing, "RUN_BYTES", run_blocks * LAYERS * PAGE_BYTES)
        arena = Arena.create(Path(folder) / "arena", PAGES, PAGE_BYTES)
        storer = Storer(LateCopier(pool, failing), stored.put, 8, 1)
        storer.attach(arena, EPOCH)
        written = [list(dict.fromkeys(numbers)) for numbers in orders]
        for numbers in written:
            storer.submit([block_write(number) for number in numbers], EPOCH)
        storer.close()
        for numbers in written:
            found = stored.get_nowait()
            assert sorted(found) == sorted(numbers)
            for number, sums in found.items():
                pages = block_write(number).arena_pages
                is_lost = bool(failing & {*pages})
                assert sums == [] if is_lost else [checksum(pool[page]) for page in pages]
        assert stored.empty()
