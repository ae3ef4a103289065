"""In which order a client asks, how much of it at a time, and what becomes of each page."""

import random
from pathlib import Path

import pytest

from services.kvstore.core import Concurrency, LoadOutcome, PageReads
from services.kvstore.peers import requests as requests_module
from services.kvstore.peers.fetches import Fetch, Fetches
from services.kvstore.peers.requests import Requests
from services.kvstore.peers.wire import KEYS_MAX, REQUESTS_MAX, Request, value_bytes
from shared.arena import Arena, PageState
from shared.wire.messages import ADVISORY_PRIORITY
from shared.wire.urgency import DEMAND_PRIORITY
from tests.unit.kvstore.peers.hosts import LOST, PENDING, THERE, Receiver, Ticks, key

READY, MISSING, FAILED = LoadOutcome.READY, LoadOutcome.MISSING, LoadOutcome.FAILED
PAGE_BYTES = 100
EACH = value_bytes(PAGE_BYTES)


@pytest.fixture
def receiver(tmp_path: Path) -> Receiver:
    return Receiver(tmp_path / "arena", 200, PAGE_BYTES)


class Client:
    """Orders, and what its connections have asked for."""

    def __init__(self, receiver: Receiver, window_bytes: int, num: int = 1) -> None:
        self.fetches = Fetches(receiver.arenas, receiver.report, Concurrency([num], num))
        self.connections = [Requests(self.fetches, at, window_bytes) for at in range(num)]
        self.first = self.connections[0]

    def add(self, reads: list[PageReads], number: int, until_s: float = 9.0) -> None:
        with self.fetches.changed:
            self.fetches.add(Fetch(reads, until_s, number))

    def asked(self) -> list[Request]:
        """What the first connection asks for until the window is full."""
        return asked(self.first)


def client_of(receiver: Receiver, window_pages: int) -> Client:
    return Client(receiver, window_pages * EACH)


def asked(requests: Requests) -> list[Request]:
    """What is asked for until the window is full."""
    found = []
    while (request := requests.next_request(now_s=1.0)) is not None:
        found.append(request)
    return found


def test_layers_of_all_orders_go_together_and_turns_before_hints(receiver: Receiver) -> None:
    """Also those that one order holds."""
    client = client_of(receiver, 100)
    for number, kinds in enumerate(((2, 2), (2, 1), (0, 0))):
        client.add(
            [
                receiver.reads(layer, [1, 2], 10 * number + 2 * layer, kind)
                for layer, kind in enumerate(kinds)
            ],
            number,
        )
    requests = client.asked()
    assert [(each.priority, each.layer) for each in requests] == [
        (DEMAND_PRIORITY, 0), (DEMAND_PRIORITY, 1), (ADVISORY_PRIORITY + 1, 1),
        (ADVISORY_PRIORITY, 0), (ADVISORY_PRIORITY, 0), (ADVISORY_PRIORITY, 1),
    ]  # fmt: skip
    assert {each.left_ms for each in requests} == {8000}


def test_no_more_is_asked_for_than_the_window_takes(receiver: Receiver) -> None:
    client = client_of(receiver, 8)
    client.add([receiver.reads(0, list(range(1, 21)), 0)], 1)
    requests = client.asked()
    assert [len(each.keys) for each in requests] == [2, 2, 2, 2]
    client.first.settle(requests[0].number, READY)
    assert client.asked() == []
    client.first.settle(requests[0].number, READY)
    assert [each.keys for each in client.asked()] == [[key(9), key(10)]]


def test_a_page_larger_than_the_window_is_asked_for_alone(receiver: Receiver) -> None:
    client = Client(receiver, 1)
    client.add([receiver.reads(0, [1, 2], 0)], 1)
    assert [each.keys for each in client.asked()] == [[key(1)]]


def test_requests_have_limits(receiver: Receiver) -> None:
    client = client_of(receiver, 1 << 20)
    client.add([receiver.reads(0, list(range(1, 100)), 0)], 1)
    client.add([receiver.reads(1, [1], 100 + at) for at in range(60)], 2)
    requests = client.asked()
    assert [len(each.keys) for each in requests[:2]] == [KEYS_MAX, 99 - KEYS_MAX]
    assert len(requests) == REQUESTS_MAX


def test_what_is_over_is_accounted_for_and_not_published_again(receiver: Receiver) -> None:
    client = client_of(receiver, 4)
    fetches, connection = client.fetches, client.first
    client.add([receiver.reads(0, [1, 2, 3], 0)], 1, until_s=2.0)
    client.add([receiver.reads(0, [4], 3)], 2, until_s=5.0)
    first = client.asked()[0]
    assert fetches.first_until_s == 2.0
    connection.settle(first.number, MISSING)
    assert connection.end_late(now_s=1.9) == 0
    assert connection.end_late(now_s=2.0) == 1
    assert receiver.outcomes() == [[MISSING, FAILED, FAILED]]
    assert fetches.first_until_s == 5.0
    receiver.arena.set_word(1, 9, PageState.READY)  # of another purpose
    num_asked = len(connection.asked)
    for number, part in list(connection.asked.items()):
        for _ in range(part.num_left):
            connection.settle(number, READY)
    assert num_asked and not connection.asked
    assert receiver.arena.word(1) == (9, PageState.READY)
    assert [receiver.arena.word(page) for page in (0, 2)] == [LOST, LOST]
    assert receiver.outcomes() == [[READY]]
    assert len(fetches) == 0


def test_a_page_that_another_connection_receives_is_failed_by_that_alone(
    receiver: Receiver,
) -> None:
    """The core would give it to another purpose while it is written."""
    client = Client(receiver, 4 * EACH, num=2)
    client.add([receiver.reads(0, [1, 2, 3], 0)], 1, until_s=2.0)
    first, second = client.connections
    (of_second,) = [second.next_request(now_s=1.0)]
    assert of_second is not None and of_second.keys == [key(1)]
    assert first.end_late(now_s=2.0) == 1
    assert [receiver.arena.word(page) for page in range(3)] == [PENDING, LOST, LOST]
    assert receiver.reports.empty()
    assert second.end_late(now_s=2.0) == 0
    assert receiver.arena.word(0) == LOST
    assert receiver.outcomes() == [[FAILED] * 3]


def test_what_a_lost_connection_had_asked_for_fails_if_its_time_is_over(
    receiver: Receiver,
) -> None:
    client = Client(receiver, 4 * EACH, num=2)
    client.add([receiver.reads(0, [1, 2], 0)], 1, until_s=2.0)
    first, second = client.connections
    assert second.next_request(now_s=1.0) is not None
    assert first.end_late(now_s=2.0) == 1
    second.ask_again()
    assert receiver.outcomes() == [[FAILED] * 2]
    assert client.asked() == []


def test_a_connection_more_than_there_are_to_be_asks_for_nothing(receiver: Receiver) -> None:
    client = client_of(receiver, 4)
    client.add([receiver.reads(0, [1, 2], 0)], 1)
    more = Requests(client.fetches, 1, 4 * EACH)
    assert not more.is_wanted
    assert more.next_request(now_s=1.0) is None
    assert client.first.is_wanted


def test_connections_share_what_is_most_urgent(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each asks for its part of all that is open, so that none has nothing to do, and none for
    what is less urgent before all have asked for what is more.
    """
    monkeypatch.setattr(requests_module, "REQUEST_BYTES_MIN", 1)
    client = Client(receiver, 1 << 30, num=4)
    client.add([receiver.reads(1, list(range(1, 21)), 0, kind=2)], 1)
    client.add([receiver.reads(0, list(range(1, 21)), 20)], 2)
    of_each = [asked(each) for each in client.connections]
    assert [sum(len(each.keys) for each in of_one) for of_one in of_each] == [10] * 4
    order = [each.priority for of_one in of_each for each in of_one]
    assert order == sorted(order, reverse=True)
    for _ in of_each[0][0].keys:
        client.connections[0].settle(of_each[0][0].number, READY)
    late = [receiver.reads(2, [1, 2, 3, 4], 40)]
    client.add(late, 3)
    request = client.connections[0].next_request(now_s=1.0)
    assert request is not None and request.layer == 2


def test_what_is_asked_for_on_all_connections_fits_the_window(receiver: Receiver) -> None:
    client = Client(receiver, 8 * EACH, num=4)
    client.add([receiver.reads(0, list(range(1, 100)), 0)], 1)
    assert [sum(len(each.keys) for each in asked(one)) for one in client.connections] == [2] * 4


@pytest.mark.parametrize("num", [1, 3])
@pytest.mark.parametrize("seed", range(20))
def test_every_page_has_one_outcome_whatever_breaks(
    receiver: Receiver, seed: int, num: int
) -> None:
    """Settled or lost in any order, asked for again, late: each order is reported once, and each
    word says what was reported.
    """
    rng = random.Random(seed)
    client = Client(receiver, rng.randint(1, 12) * EACH, num)
    orders = {}
    for number in range(6):
        reads = [
            receiver.reads(
                layer,
                list(range(1, 1 + rng.randint(0, 5))),
                30 * number + 6 * layer,
                rng.choice([0, 1, 2]),
            )
            for layer in range(rng.randint(0, 4))
        ]
        orders[number] = reads
        client.add(reads, number, until_s=rng.uniform(0, 50))
    now_s = 0.0
    while len(client.fetches):
        now_s += 1
        connection = rng.choice(client.connections)
        match rng.randrange(8):
            case 0:
                connection.ask_again()
                assert not connection.asked
            case 1:
                connection.end_late(now_s)
            case _:
                asked(connection)
                for number, part in list(connection.asked.items()):
                    for _ in range(rng.randint(0, part.num_left)):
                        connection.settle(number, rng.choice([READY, MISSING]))
    assert client.fetches.open_bytes == 0
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
    client = client_of(receiver, 10)
    reads = PageReads(0, 10, [1], [key(1)], [1], [3])
    client.add([reads, receiver.reads(0, [2], 5)], 1)
    first, second = client.asked()
    assert (first.page_bytes, second.page_bytes) == (10, PAGE_BYTES)
    part = client.first.asked[first.number]
    client.first.memories(part, 1)[0][:] = b"0123456789"
    client.first.settle(first.number, READY)
    assert bytes(small.pages[1]) == b"0123456789"
    assert small.word(1) == (3, PageState.READY)


def test_what_passes_without_a_connection_is_no_speed_of_the_link(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = Ticks()
    monkeypatch.setattr("services.kvstore.peers.fetches.time", ticks)
    client = client_of(receiver, 4)

    def settle(now_s: float) -> None:
        ticks.now_s = now_s
        client.first.settle(next(iter(client.first.asked)), READY)

    client.add([receiver.reads(0, [1, 2, 3, 4], 0)], 1)
    client.add([receiver.reads(1, [1], 4)], 2)
    ticks.now_s = 2.0
    client.first.on_connected()
    client.asked()
    settle(3.0)
    settle(5.0)
    ticks.now_s = 9.0  # it has been dead for so long
    client.first.ask_again()
    ticks.now_s = 11.0
    client.first.on_connected()
    client.asked()
    settle(12.0)
    settle(14.0)
    assert receiver.took_s == [3.0 + 3.0]
    client.asked()
    settle(15.0)
    ticks.now_s = 20.0
    client.add([receiver.reads(0, [5], 5)], 3)
    client.asked()
    settle(21.0)
    assert receiver.took_s == [6.0, 1.0, 1.0]


def test_a_connection_that_is_made_beside_others_takes_no_time_off(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = Ticks()
    monkeypatch.setattr("services.kvstore.peers.fetches.time", ticks)
    client = Client(receiver, 8 * EACH, num=2)
    first, second = client.connections
    client.add([receiver.reads(0, [1, 2], 0)], 1)
    first.on_connected()
    asked(first)
    ticks.now_s = 4.0
    second.on_connected()
    asked(second)
    for each in (first, second):
        ticks.now_s += 1.0
        each.settle(1, READY)
    assert receiver.took_s == [6.0]
