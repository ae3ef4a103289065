"""In which order a client asks, how much of it at a time, and what becomes of each page."""

import random
from pathlib import Path

import pytest

from services.kvstore.core import LoadOutcome, PageReads
from services.kvstore.peers.fetches import Fetch, Fetches
from services.kvstore.peers.wire import KEYS_MAX, REQUESTS_MAX, Request, value_bytes
from shared.arena import Arena, PageState
from shared.wire.urgency import DEMAND_PRIORITY
from tests.unit.kvstore.peers.hosts import LOST, PENDING, THERE, Receiver, Ticks, key

READY, MISSING, FAILED = LoadOutcome.READY, LoadOutcome.MISSING, LoadOutcome.FAILED
PAGE_BYTES = 100
EACH = value_bytes(PAGE_BYTES)


@pytest.fixture
def receiver(tmp_path: Path) -> Receiver:
    return Receiver(tmp_path / "arena", 200, PAGE_BYTES)


def fetches_of(receiver: Receiver, window_pages: int) -> Fetches:
    return Fetches(receiver.arenas, receiver.report, window_pages * EACH)


def fetch_of(reads: list[PageReads], number: int, priority: int = 0, until_s: float = 9.0) -> Fetch:
    return Fetch(reads, priority, until_s, number)


def asked(fetches: Fetches) -> list[Request]:
    """What is asked for until the window is full."""
    requests = []
    while (request := fetches.next_request(now_s=1.0)) is not None:
        requests.append(request)
    return requests


def test_layers_of_all_orders_go_together_and_turns_before_hints(receiver: Receiver) -> None:
    fetches = fetches_of(receiver, 100)
    for number, priority in enumerate((0, 0, DEMAND_PRIORITY)):
        reads = [receiver.reads(layer, [1, 2], 10 * number + 2 * layer) for layer in range(2)]
        fetches.add(fetch_of(reads, number, priority))
    requests = asked(fetches)
    assert [(each.priority, each.layer) for each in requests] == [
        (DEMAND_PRIORITY, 0), (DEMAND_PRIORITY, 1), (0, 0), (0, 0), (0, 1), (0, 1),
    ]  # fmt: skip
    assert {each.left_ms for each in requests} == {8000}


def test_no_more_is_asked_for_than_the_window_takes(receiver: Receiver) -> None:
    fetches = fetches_of(receiver, 8)
    fetches.add(fetch_of([receiver.reads(0, list(range(1, 21)), 0)], 1))
    requests = asked(fetches)
    assert [len(each.keys) for each in requests] == [2, 2, 2, 2]
    fetches.settle(requests[0].number, READY)
    assert asked(fetches) == []
    fetches.settle(requests[0].number, READY)
    assert [each.keys for each in asked(fetches)] == [[key(9), key(10)]]


def test_a_page_larger_than_the_window_is_asked_for_alone(receiver: Receiver) -> None:
    fetches = Fetches(receiver.arenas, receiver.report, 1)
    fetches.add(fetch_of([receiver.reads(0, [1, 2], 0)], 1))
    assert [each.keys for each in asked(fetches)] == [[key(1)]]


def test_requests_have_limits(receiver: Receiver) -> None:
    fetches = fetches_of(receiver, 1 << 20)
    fetches.add(fetch_of([receiver.reads(0, list(range(1, 100)), 0)], 1))
    fetches.add(fetch_of([receiver.reads(1, [1], 100 + at) for at in range(60)], 2))
    requests = asked(fetches)
    assert [len(each.keys) for each in requests[:2]] == [KEYS_MAX, 99 - KEYS_MAX]
    assert len(requests) == REQUESTS_MAX


def test_what_is_over_is_accounted_for_and_not_published_again(receiver: Receiver) -> None:
    fetches = fetches_of(receiver, 4)
    fetches.add(fetch_of([receiver.reads(0, [1, 2, 3], 0)], 1, until_s=2.0))
    fetches.add(fetch_of([receiver.reads(0, [4], 3)], 2, until_s=5.0))
    first = asked(fetches)[0]
    assert fetches.first_until_s == 2.0
    fetches.settle(first.number, MISSING)
    assert fetches.fail_late(now_s=1.9) == 0
    assert fetches.fail_late(now_s=2.0) == 1
    assert receiver.outcomes() == [[MISSING, FAILED, FAILED]]
    assert fetches.first_until_s == 5.0
    receiver.arena.set_word(1, 9, PageState.READY)  # of another purpose
    num_asked = len(fetches.asked)
    for number, part in list(fetches.asked.items()):
        for _ in range(part.num_left):
            fetches.settle(number, READY)
    assert num_asked and not fetches.asked
    assert receiver.arena.word(1) == (9, PageState.READY)
    assert [receiver.arena.word(page) for page in (0, 2)] == [LOST, LOST]
    assert receiver.outcomes() == [[READY]]
    assert len(fetches) == 0


@pytest.mark.parametrize("seed", range(20))
def test_every_page_has_one_outcome_whatever_breaks(receiver: Receiver, seed: int) -> None:
    """Settled or lost in any order, asked for again, late: each order is reported once, and each
    word says what was reported.
    """
    rng = random.Random(seed)
    fetches = fetches_of(receiver, rng.randint(1, 12))
    orders = {}
    for number in range(6):
        reads = [
            receiver.reads(layer, list(range(1, 1 + rng.randint(0, 5))), 30 * number + 6 * layer)
            for layer in range(rng.randint(0, 4))
        ]
        orders[number] = reads
        fetches.add(fetch_of(reads, number, rng.choice([0, 1, 100]), until_s=rng.uniform(0, 50)))
    now_s = 0.0
    while len(fetches):
        now_s += 1
        match rng.randrange(8):
            case 0:
                fetches.ask_again()
                assert not fetches.asked
            case 1:
                fetches.fail_late(now_s)
            case _:
                asked(fetches)
                for number, part in list(fetches.asked.items()):
                    for _ in range(rng.randint(0, part.num_left)):
                        fetches.settle(number, rng.choice([READY, MISSING]))
    reports = [receiver.reports.get_nowait() for _ in orders]
    assert receiver.reports.empty()
    assert sorted([each.reads for each in report] != [] for report in reports) == sorted(
        reads != [] for reads in orders.values()
    )
    seen = 0
    for report in reports:
        assert [each.reads for each in report] in orders.values()
        for each in report:
            for page, outcome in zip(each.reads.pages, each.outcomes, strict=True):
                seen += 1
                assert receiver.arena.word(page) == (THERE if outcome is READY else LOST)
    words = [receiver.arena.word(page) for page in range(200)]
    assert len([word for word in words if word != PENDING]) == seen
    assert seen == sum(len(each.pages) for reads in orders.values() for each in reads)


def test_arenas_of_several_sizes(receiver: Receiver, tmp_path: Path) -> None:
    small = Arena.create(tmp_path / "small", 2, 10)
    receiver.arenas[10] = small
    fetches = fetches_of(receiver, 10)
    reads = PageReads(0, 10, [1], [key(1)], [1], [3])
    fetches.add(fetch_of([reads, receiver.reads(0, [2], 5)], 1))
    first, second = asked(fetches)
    assert (first.page_bytes, second.page_bytes) == (10, PAGE_BYTES)
    part = fetches.asked[first.number]
    fetches.memories(part, 1)[0][:] = b"0123456789"
    fetches.settle(first.number, READY)
    assert bytes(small.pages[1]) == b"0123456789"
    assert small.word(1) == (3, PageState.READY)


def test_what_passes_without_a_connection_is_no_speed_of_the_link(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = Ticks()
    monkeypatch.setattr("services.kvstore.peers.fetches.time", ticks)
    took_s: list[float] = []
    fetches = Fetches(receiver.arenas, lambda _, seconds: took_s.append(seconds), 4 * EACH)

    def settle(now_s: float) -> None:
        ticks.now_s = now_s
        fetches.settle(next(iter(fetches.asked)), READY)

    fetches.add(fetch_of([receiver.reads(0, [1, 2, 3, 4], 0)], 1))
    fetches.add(fetch_of([receiver.reads(1, [1], 4)], 2))
    ticks.now_s = 2.0
    fetches.on_connected()
    asked(fetches)
    settle(3.0)
    settle(5.0)
    ticks.now_s = 9.0  # it has been dead for so long
    fetches.ask_again()
    ticks.now_s = 11.0
    fetches.on_connected()
    asked(fetches)
    settle(12.0)
    settle(14.0)
    assert took_s == [3.0 + 3.0]
    asked(fetches)
    settle(15.0)
    ticks.now_s = 20.0
    fetches.add(fetch_of([receiver.reads(0, [5], 5)], 3))
    asked(fetches)
    settle(21.0)
    assert took_s == [6.0, 1.0, 1.0]
