"""Loads that wait: the most urgent first, what is still to come beside them, and never too many."""

from pathlib import Path

import pytest

from services.worker.core.effects import PageLoads
from services.worker.device.copying import load_queue
from services.worker.device.copying.load_queue import OVERDUE_NS, RUN_PAGES, LoadQueue, LoadRun
from shared.arena import Arena, PageState
from shared.wire.urgency import DEMAND_PRIORITY, load_order

DEADLINE_NS = 100
HINT = 1


@pytest.fixture
def arena(tmp_path: Path) -> Arena:
    arena = Arena.create(tmp_path / "arena", 4 * RUN_PAGES, 4096)
    for page in range(arena.num_pages):
        arena.set_word(page, 7, PageState.FILLING)
    return arena


def run_of(
    arena: Arena, pages: list[int], priority: int = HINT, layer: int = 0, number: int = 1
) -> LoadRun:
    """Arena pages into pool pages of 1,000 more."""
    targets = [page + 1000 for page in pages]
    loads = PageLoads(priority, layer, pages, [7] * len(pages), targets)
    return LoadRun.of(loads, load_order(priority, layer, number), arena, DEADLINE_NS)


def taken(queue: LoadQueue) -> list[list[int]]:
    """Everything there is to copy, in order."""
    runs = []
    while (run := queue.pop()) is not None:
        runs.append(run.arena_pages.tolist())
    return runs


def test_what_is_needed_now_comes_first_then_low_layers(arena: Arena) -> None:
    queue = LoadQueue(100)
    queue.push(run_of(arena, [1], layer=0, number=1))
    queue.push(run_of(arena, [2], DEMAND_PRIORITY, layer=3, number=2))
    queue.push(run_of(arena, [3], DEMAND_PRIORITY, layer=0, number=3))
    queue.push(run_of(arena, [4], HINT + 1, layer=9, number=4))
    assert taken(queue) == [[3], [2], [4], [1]] and not len(queue)


def test_a_long_run_is_cut_so_that_something_more_urgent_can_come_between(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_queue, "RUN_BYTES", RUN_PAGES * arena.page_bytes - 1)
    queue = LoadQueue(1000)
    pages = list(range(2 * RUN_PAGES + 1))
    queue.push(run_of(arena, pages))
    first = queue.pop()
    assert first is not None and first.arena_pages.tolist() == pages[:RUN_PAGES]
    queue.push(run_of(arena, [200], DEMAND_PRIORITY, number=2))
    assert taken(queue) == [[200], pages[RUN_PAGES : 2 * RUN_PAGES], pages[2 * RUN_PAGES :]]


def test_what_has_come_is_queued_in_its_place_and_what_has_not_stays(arena: Arena) -> None:
    queue = LoadQueue(100)
    queue.put_off(run_of(arena, [1, 2, 3], DEMAND_PRIORITY))
    queue.push(run_of(arena, [9], number=2))
    assert queue.look(0) == [] and len(queue) == 4
    arena.set_word(2, 7, PageState.READY)
    arena.set_word(3, 8, PageState.READY)  # another's by now
    assert queue.look(0) == [1003]
    assert taken(queue) == [[2], [9]] and len(queue) == 1
    arena.set_word(1, 7, PageState.READY)
    assert queue.look(0) == [] and taken(queue) == [[1]] and not len(queue)


def test_what_has_not_come_in_time_will_not(arena: Arena) -> None:
    queue = LoadQueue(100)
    queue.put_off(run_of(arena, [1, 2]))
    assert queue.look(DEADLINE_NS - 1) == []
    arena.set_word(2, 7, PageState.READY)
    assert queue.look(DEADLINE_NS) == [], "it may only be behind what comes"
    assert queue.look(DEADLINE_NS + OVERDUE_NS) == [1001]
    assert taken(queue) == [[2]] and not len(queue)


def test_of_too_many_the_least_urgent_are_left_out_also_of_those_to_come(arena: Arena) -> None:
    queue = LoadQueue(4)
    queue.put_off(run_of(arena, [1, 2, 3], layer=5))
    assert queue.push(run_of(arena, [4, 5], DEMAND_PRIORITY, number=2)) == [1003]
    assert queue.push(run_of(arena, [6], layer=7, number=3)) == [1006], "itself"
    assert queue.push(run_of(arena, [7, 8], DEMAND_PRIORITY, number=4)) == [1001, 1002]
    assert len(queue) == 4 and taken(queue) == [[4, 5], [7, 8]]
    assert queue.look(0) == [] and not len(queue)
