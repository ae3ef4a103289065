"""Connections that break, stand still, or are too slow."""

import queue
import socket
import ssl
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.kvstore.core import Concurrency, LoadOutcome
from services.kvstore.peers import client as client_module
from services.kvstore.peers import connection as connection_module
from services.kvstore.peers import fetching as fetching_module
from services.kvstore.peers.fetches import Fetch, Fetches
from services.kvstore.peers.fetching import ClientCounts, Fetching
from services.kvstore.peers.requests import Requests
from services.kvstore.peers.stream import Broken, Parts, Views
from services.kvstore.peers.wire import (
    ANSWER_BYTES,
    HELLO_BYTES,
    PROOF_BYTES,
    Answer,
    Status,
    pack_answer,
    read_request,
)
from shared.arena import PageState
from shared.blocks import BlockKey
from tests.unit.kvstore.peers.hosts import (
    LONG_S,
    LOST,
    PENDING,
    THERE,
    Clock,
    Listener,
    Receiver,
    Sender,
    Ticks,
    fetching,
    hear,
    is_closed,
    key,
    liar,
    proxy,
    serving,
)

READY, FAILED = LoadOutcome.READY, LoadOutcome.FAILED
PAGE_BYTES = 70_000
VALUE_BYTES = 512 + PAGE_BYTES
GREETING_BYTES = HELLO_BYTES + PROOF_BYTES


def test_after_a_cut_only_what_has_not_come_is_asked_for_again(tmp_path: Path) -> None:
    sender = Sender(tmp_path / "kv", blocks=6, layers=1, page_bytes=PAGE_BYTES)
    receiver = Receiver(tmp_path / "arena", 6, PAGE_BYTES)
    said: list[bytes] = []
    numbers = list(range(1, 7))
    in_third = GREETING_BYTES + ANSWER_BYTES + 2 * VALUE_BYTES + VALUE_BYTES // 2
    in_answer = GREETING_BYTES + ANSWER_BYTES // 2
    with (
        serving(sender.disk) as server,
        proxy(server.address, [in_third, in_answer, 10], said) as between,
        fetching(between.address, receiver) as client,
    ):
        client.submit([receiver.reads(0, numbers, 0)], LONG_S)
        assert receiver.outcomes() == [[READY] * 6]
        # the third connection is cut while hands are shaken, so nothing is requested there
        assert client.counts.num_resumed == 4 + 4
        assert client.counts.num_broken == 3
        assert client.counts.num_refused == client.counts.num_corrupt == 0
        assert client.counts.num_connections == 3
    asked = [_asked(each) for each in said]
    assert asked[0] == [(0, key(number)) for number in numbers]
    assert asked[1] == asked[3] == asked[0][2:]
    assert np.array_equal(receiver.arena.pages, sender.pages[:, 0])
    assert [receiver.arena.word(page) for page in range(6)] == [THERE] * 6
    sender.disk.close()


def _asked(said: bytes) -> list[tuple[int, BlockKey]]:
    """Layers and keys that were asked for on a connection."""
    raw, asked = said[GREETING_BYTES:], list[tuple[int, BlockKey]]()
    while (found := read_request(raw)) is not None:
        asked += [(found[0].layer, each) for each in found[0].keys]
        raw = raw[found[1] :]
    return asked


def test_half_a_page_is_not_published_and_stopping_does_not_wait_for_the_rest(
    tmp_path: Path,
) -> None:
    sender = Sender(tmp_path / "kv", blocks=2, layers=1, page_bytes=PAGE_BYTES)
    receiver = Receiver(tmp_path / "arena", 2, PAGE_BYTES)
    half_is_sent = threading.Event()

    def halves(sock: socket.socket, _: int) -> None:
        first = hear(sock)
        sock.sendall(pack_answer(Answer(first.number, 0, 1, Status.PAGE)) + sender.value(1, 0))
        second = hear(sock)  # the window is of one page, so the first has been judged
        sock.sendall(pack_answer(Answer(second.number, 0, 1, Status.PAGE)))
        sock.sendall(sender.value(2, 0)[: VALUE_BYTES // 2])
        half_is_sent.set()
        is_closed(sock)

    with liar(halves) as peer, fetching(peer.address, receiver, window_bytes=1) as client:
        client.submit([receiver.reads(0, [1, 2], 0)], LONG_S)
        assert half_is_sent.wait(LONG_S)
        assert [receiver.arena.word(page) for page in range(2)] == [THERE, PENDING]
        client.stop()
        assert receiver.outcomes() == [[READY, FAILED]]
    assert receiver.arena.word(1) == LOST
    sender.disk.close()


def test_nothing_is_written_into_a_page_whose_order_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = Sender(tmp_path / "kv", blocks=2, layers=1, page_bytes=PAGE_BYTES)
    receiver = Receiver(tmp_path / "arena", 2, PAGE_BYTES)
    is_over = threading.Event()

    def late(sock: socket.socket, _: int) -> None:
        first, value = hear(sock), sender.value(1, 0)
        sock.sendall(pack_answer(Answer(first.number, 0, 1, Status.PAGE)) + value[:1000])
        assert is_over.wait(LONG_S)
        sock.sendall(value[1000:])
        second = hear(sock)
        sock.sendall(pack_answer(Answer(second.number, 0, 1, Status.PAGE)) + sender.value(2, 0))

    clock = Clock(lambda: bool(receiver.arena.pages[0].any()))  # in the middle of the page
    for module in (client_module, connection_module):
        monkeypatch.setattr(module, "time", clock)
    with liar(late) as peer, fetching(peer.address, receiver, window_bytes=1) as client:
        client.submit([receiver.reads(0, [1], 0)], LONG_S)
        assert receiver.outcomes() == [[FAILED]]
        receiver.arena.pages[0] = 0  # another purpose
        receiver.arena.set_word(0, 8, PageState.READY)
        client.submit([receiver.reads(0, [2], 1)], LONG_S)
        is_over.set()
        assert receiver.outcomes() == [[READY]]
    assert client.counts.num_late == 1
    assert client.counts.num_connections == 1
    assert not receiver.arena.pages[0].any()
    assert receiver.arena.word(0) == (8, PageState.READY)
    assert np.array_equal(receiver.arena.pages[1], sender.pages[1, 0])
    sender.disk.close()


@pytest.mark.parametrize("slowest_bytes_per_s", [1e6, 1.0])
def test_a_peer_that_stands_still_is_left_and_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slowest_bytes_per_s: float
) -> None:
    """However long it might have taken for what it began."""
    monkeypatch.setattr(fetching_module, "SLOWEST_BYTES_PER_S", slowest_bytes_per_s)
    sender = Sender(tmp_path / "kv", blocks=1, layers=1, page_bytes=PAGE_BYTES)
    receiver = Receiver(tmp_path / "arena", 1, PAGE_BYTES)

    def stuck(sock: socket.socket, number: int) -> None:
        request = hear(sock)
        value = pack_answer(Answer(request.number, 0, 1, Status.PAGE)) + sender.value(1, 0)
        sock.sendall(value if number >= 2 else value[: 5 + 1000 * number])
        is_closed(sock)

    with liar(stuck) as peer, fetching(peer.address, receiver, stall_s=0.05) as client:
        client.submit([receiver.reads(0, [1], 0)], LONG_S)
        assert receiver.outcomes() == [[READY]]
        assert client.counts.num_broken == client.counts.num_resumed >= 2
    sender.disk.close()


def test_a_connection_that_is_made_again_costs_the_link_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = Ticks()
    monkeypatch.setattr("services.kvstore.peers.fetches.time", ticks)
    sender = Sender(tmp_path / "kv", blocks=1, layers=1, page_bytes=PAGE_BYTES)
    receiver = Receiver(tmp_path / "arena", 1, PAGE_BYTES)

    def slow(sock: socket.socket, number: int) -> None:
        request = hear(sock)
        ticks.now_s += 5.0
        if number:
            sock.sendall(pack_answer(Answer(request.number, 0, 1, Status.PAGE)))
            sock.sendall(sender.value(1, 0))
            is_closed(sock)

    with liar(slow) as peer, fetching(peer.address, receiver) as client:
        client.submit([receiver.reads(0, [1], 0)], LONG_S)
        assert receiver.outcomes() == [[READY]]
    assert receiver.took_s == [5.0]
    sender.disk.close()


def test_what_does_not_come_in_time_has_failed(tmp_path: Path) -> None:
    receiver = Receiver(tmp_path / "arena", 3, PAGE_BYTES)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = silent.getsockname()
    with fetching(address, receiver) as client:
        client.submit([receiver.reads(0, [1, 2], 0), receiver.reads(1, [1], 2)], 0.1)
        assert receiver.outcomes() == [[FAILED, FAILED], [FAILED]]
    assert client.counts.num_late == 1
    assert [receiver.arena.word(page) for page in range(3)] == [LOST] * 3


def _listen(sock: socket.socket, _: int) -> None:
    is_closed(sock)


TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@pytest.mark.parametrize("tls", [None, TLS])
def test_hands_that_are_shaken_slowly_hold_up_no_deadline(
    tmp_path: Path, tls: ssl.SSLContext | None
) -> None:
    receiver = Receiver(tmp_path / "arena", 1, PAGE_BYTES)
    with (
        Listener(_listen) as silent,
        fetching(silent.address, receiver, handshake_s=2 * LONG_S, tls=tls) as client,
    ):
        client.submit([receiver.reads(0, [1], 0)], 0.05)
        assert receiver.outcomes() == [[FAILED]]
        assert client.counts.num_broken == 0


def test_an_order_without_room_fails_at_once(tmp_path: Path) -> None:
    receiver = Receiver(tmp_path / "arena", 3, PAGE_BYTES)
    asked: queue.SimpleQueue[int] = queue.SimpleQueue()

    def silent(sock: socket.socket, _: int) -> None:
        asked.put(hear(sock).number)
        is_closed(sock)

    with liar(silent) as peer, fetching(peer.address, receiver, orders_max=1) as client:
        client.submit([receiver.reads(0, [1], 0)], LONG_S)
        asked.get(timeout=LONG_S)
        client.submit([receiver.reads(0, [2, 3], 1)], LONG_S)
        assert receiver.outcomes() == [[FAILED, FAILED]]
        assert receiver.arena.word(0) == PENDING
    assert receiver.outcomes() == [[FAILED]]
    assert [receiver.arena.word(page) for page in range(3)] == [LOST] * 3


def test_an_idle_connection_is_let_go_and_made_again(tmp_path: Path) -> None:
    sender = Sender(tmp_path / "kv", blocks=2, layers=1, page_bytes=100)
    receiver = Receiver(tmp_path / "arena", 2, 100)
    said: list[bytes] = []
    with (
        serving(sender.disk) as server,
        proxy(server.address, [], said) as between,
        fetching(between.address, receiver, idle_s=0.01) as client,
    ):
        client.submit([receiver.reads(0, [1], 0)], LONG_S)
        assert receiver.outcomes() == [[READY]]
        between.wait_ended(0)
        client.submit([receiver.reads(0, [2], 1)], LONG_S)
        assert receiver.outcomes() == [[READY]]
        assert (client.counts.num_connections, client.counts.num_broken) == (2, 0)
    sender.disk.close()


@pytest.mark.parametrize(("is_listening", "tls"), [(True, None), (True, TLS), (False, None)])
def test_stopping_ends_a_client_that_cannot_connect(
    tmp_path: Path, is_listening: bool, tls: ssl.SSLContext | None
) -> None:
    receiver = Receiver(tmp_path / "arena", 1, PAGE_BYTES)
    with socket.create_server(("127.0.0.1", 0), backlog=1) as silent:
        if not is_listening:
            silent.close()
            address = ("127.0.0.1", 1)
        else:
            address = silent.getsockname()
        began_s = time.monotonic()
        with fetching(address, receiver, tls=tls) as client:
            client.submit([receiver.reads(0, [1], 0)], LONG_S)
        assert time.monotonic() - began_s < LONG_S / 2
    assert receiver.outcomes() == [[FAILED]]


class _Deaf:
    """Takes one request, has answered it, and takes nothing more."""

    def __init__(self, value: bytes) -> None:
        self._left, self._value = b"", value

    def send(self, parts: Parts) -> int:
        raw = b"".join(parts)
        if self._left or (found := read_request(raw)) is None:
            raise Broken("closed by the other side")
        self._left = pack_answer(Answer(found[0].number, 0, 1, Status.PAGE)) + self._value
        return len(raw)

    def receive(self, views: Views) -> int:
        if not self._left:
            raise Broken("closed by the other side")
        num_bytes = 0
        for view in views:
            view[:] = self._left[: len(view)]
            self._left = self._left[len(view) :]
            num_bytes += len(view)
        return num_bytes


def test_what_came_before_the_end_is_heard_though_nothing_more_can_be_asked(
    tmp_path: Path,
) -> None:
    sender = Sender(tmp_path / "kv", blocks=1, layers=1, page_bytes=PAGE_BYTES)
    receiver = Receiver(tmp_path / "arena", 2, PAGE_BYTES)
    fetches = Fetches(receiver.arenas, receiver.report, Concurrency([1], 1))
    with fetches.changed:
        fetches.add(Fetch([receiver.reads(0, [1], 0), receiver.reads(1, [1], 1)], LONG_S, 1))
    requests = Requests(fetches, 0, 1 << 30)
    stream: Any = _Deaf(sender.value(1, 0))
    with pytest.raises(Broken):
        Fetching(stream, requests, ClientCounts(), lambda: None, LONG_S).run()
    assert requests.ask_again() == 1
    assert [receiver.arena.word(page) for page in range(2)] == [THERE, PENDING]
    sender.disk.close()
