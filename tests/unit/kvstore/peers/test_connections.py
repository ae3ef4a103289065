"""Several connections to one peer."""

import queue
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.kvstore.core import Concurrency, LoadOutcome
from services.kvstore.peers.connection import Connection, Target
from services.kvstore.peers.fetches import Fetch, Fetches, Part
from services.kvstore.peers.peer_limits import ClientLimits, Identity
from services.kvstore.peers.sources import DiskSource, Pages
from tests.unit.kvstore.peers.hosts import (
    LONG_S,
    LOST,
    SECRET,
    THERE,
    Receiver,
    Sender,
    fetching,
    greeted,
    hear,
    is_closed,
    liar,
    must_not,
    proxy,
    serving,
    until,
)

READY, FAILED = LoadOutcome.READY, LoadOutcome.FAILED
NUM, PAGE_BYTES = 16, 70_000
NUMBERS = list(range(1, NUM + 1))
SEVERAL = 4
VALUE_BYTES = 512 + PAGE_BYTES


class Together(DiskSource):
    """Sends nothing before so many connections have been asked for something."""

    def __init__(self, sender: Sender, num: int) -> None:
        super().__init__(sender.disk, must_not)
        self._num = num
        self._changed = threading.Condition()
        self._seen: set[threading.Thread] = set()

    @contextmanager
    def open(self) -> Iterator[Pages]:
        with self._changed:
            self._seen.add(threading.current_thread())
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: len(self._seen) >= self._num, LONG_S)
        with super().open() as pages:
            yield pages


@pytest.fixture
def sender(tmp_path: Path) -> Iterator[Sender]:
    sender = Sender(tmp_path / "kv", blocks=NUM, layers=1, page_bytes=PAGE_BYTES)
    yield sender
    sender.disk.close()


@pytest.fixture
def receiver(tmp_path: Path) -> Receiver:
    return Receiver(tmp_path / "arena", NUM, PAGE_BYTES)


def test_one_order_comes_over_all_and_what_is_idle_is_closed(
    sender: Sender, receiver: Receiver
) -> None:
    with (
        serving(Together(sender, SEVERAL)) as server,
        fetching(server.address, receiver, connections=(SEVERAL,), idle_s=0.05) as client,
    ):
        client.submit([receiver.reads(0, NUMBERS, 0)], LONG_S)
        assert receiver.outcomes() == [[READY] * NUM]
        assert client.counts.num_connections == SEVERAL
        assert client.counts.bytes_received == NUM * PAGE_BYTES
        assert np.array_equal(receiver.arena.pages, sender.pages[:, 0])
        until(lambda: server.num_connections == 0)
        assert client.counts.num_broken == 0


def test_what_a_cut_connection_lacks_comes_over_another(sender: Sender, receiver: Receiver) -> None:
    said: list[bytes] = []
    cuts = [1 << 60, 2 * VALUE_BYTES, 1 << 60, VALUE_BYTES // 2]
    with (
        serving(Together(sender, SEVERAL)) as server,
        proxy(server.address, cuts, said) as between,
        fetching(between.address, receiver, connections=(SEVERAL,)) as client,
    ):
        client.submit([receiver.reads(0, NUMBERS, 0)], LONG_S)
        assert receiver.outcomes() == [[READY] * NUM]
        assert client.counts.num_resumed > 0
        assert client.counts.num_refused == client.counts.num_corrupt == 0
        assert np.array_equal(receiver.arena.pages, sender.pages[:, 0])
        assert [receiver.arena.word(page) for page in range(NUM)] == [THERE] * NUM


def test_stopping_ends_all_of_them(receiver: Receiver) -> None:
    asked: queue.SimpleQueue[int] = queue.SimpleQueue()

    def silent(sock: socket.socket, number: int) -> None:
        hear(sock)
        asked.put(number)
        is_closed(sock)

    with (
        liar(silent) as peer,
        fetching(peer.address, receiver, connections=(SEVERAL,)) as client,
    ):
        client.submit([receiver.reads(0, NUMBERS, 0)], LONG_S)
        for _ in range(SEVERAL):
            asked.get(timeout=LONG_S)
        client.stop()
        assert receiver.outcomes() == [[FAILED] * NUM]
        assert [receiver.arena.word(page) for page in range(NUM)] == [LOST] * NUM


def test_a_server_without_room_for_them_all_gives_every_page(
    sender: Sender, receiver: Receiver
) -> None:
    """And one to the next host."""
    with (
        serving(sender.disk, connections_max=2) as server,
        fetching(server.address, receiver, connections=(SEVERAL,)) as client,
    ):
        for _ in range(10):
            client.submit([receiver.reads(0, NUMBERS, 0)], LONG_S)
            assert receiver.outcomes() == [[READY] * NUM]
        with greeted(server, host_id="another"):
            client.submit([receiver.reads(0, NUMBERS, 0)], LONG_S)
            assert receiver.outcomes() == [[READY] * NUM]


def test_one_that_breaks_costs_a_place(receiver: Receiver) -> None:
    """The server may have no room for so many."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = closed.getsockname()
    fetches = Fetches(receiver.arenas, receiver.report, Concurrency((1, 2), 2))
    target = Target(address, Identity("receiver", SECRET), None, ClientLimits())
    with fetches.changed:
        fetches.add(Fetch([receiver.reads(0, [1], 0)], time.monotonic() + 0.1, 1))
    connection = Connection(target, fetches, 0)
    thread = threading.Thread(target=connection.run)
    thread.start()
    assert receiver.outcomes() == [[FAILED]]
    with fetches.changed:
        connection.abort()
        fetches.changed.notify_all()
    thread.join()
    assert fetches.connections.level == 1
    assert connection.counts.num_broken > 0


class Link:
    """Stands for `time` where durations are measured: what has come took as long as it would with
    so many connections, of which each gives as much, up to `num_max`.
    """

    def __init__(self, fetches: Fetches, num_max: int) -> None:
        self._fetches = fetches
        self._num_max = num_max
        self._now_s = 0.0
        self._publish = fetches.publish

    def publish(self, part: Part, *args: Any) -> None:
        self._now_s += 0.1 / min(self._fetches.connections.level, self._num_max)
        self._publish(part, *args)

    def perf_counter(self) -> float:
        return self._now_s


@pytest.mark.parametrize(("num_max", "most"), [(1, 2), (4, 8), (8, 8)])
def test_there_are_as_many_as_make_it_faster(
    sender: Sender, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, num_max: int, most: int
) -> None:
    """One more is tried, and left when it gains nothing."""
    levels: Counter[int] = Counter()
    with serving(sender.disk) as server, fetching(server.address, receiver) as client:
        link = Link(client._fetches, num_max)
        monkeypatch.setattr("services.kvstore.peers.fetches.time", link)
        monkeypatch.setattr(client._fetches, "publish", link.publish)
        order = [receiver.reads(0, NUMBERS[:4], 0)]
        client.submit(order, LONG_S)
        for _ in range(400):
            client.submit(order, LONG_S)
            assert receiver.outcomes() == [[READY] * 4]
            levels[client._fetches.connections.level] += 1
        receiver.outcomes()
        assert client.counts.num_broken == 0
        assert 1 < client.counts.num_connections <= most
    assert levels.most_common(1)[0][0] == num_max
    assert max(levels) == most
