"""A peer that lies, knows no secret, or sends garbage is refused and counted, and no other one is
any the worse.
"""

import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from services.kvstore.core import LoadOutcome
from services.kvstore.peers import client as client_module
from services.kvstore.peers import connection as connection_module
from services.kvstore.peers.proof import Side, new_nonce, prove
from services.kvstore.peers.wire import (
    HELLO_BYTES,
    KEYS_MAX,
    PROOF_BYTES,
    REQUESTS_MAX,
    Answer,
    Hello,
    Request,
    Status,
    pack_answer,
    pack_hello,
    pack_request,
    unpack_hello,
)
from tests.unit.kvstore.peers.hosts import (
    LONG_S,
    LOST,
    PENDING,
    SECRET,
    THERE,
    Clock,
    Listener,
    Receiver,
    Sender,
    fetching,
    greeted,
    hear,
    is_closed,
    key,
    liar,
    serving,
    take,
)

READY, FAILED, CORRUPT = LoadOutcome.READY, LoadOutcome.FAILED, LoadOutcome.CORRUPT
PAGE_BYTES = 3000
Lie = Callable[[Request, Sender], bytes]


def says(status: Status, first: int = 0, count: int = 1, number: int = 0) -> Lie:
    """An answer alone, to another request than was made if `number` is not 0."""
    return lambda request, sender: pack_answer(
        Answer(request.number + number, first, count, status)
    )


def page_of(number: int, layer: int) -> Lie:
    """Another page than was asked for, but a true one."""
    return lambda request, sender: (
        pack_answer(Answer(request.number, 0, 1, Status.PAGE)) + sender.value(number, layer)
    )


def judged(verdict: bytes) -> Lie:
    return lambda request, sender: (
        pack_answer(Answer(request.number, 0, 1, Status.JUDGED)) + sender.value(1, 0) + verdict
    )


@pytest.mark.parametrize(
    ("lie", "outcome"),
    [
        (says(Status.MISSING, number=1), FAILED),
        (says(Status.MISSING, first=1), FAILED),
        (says(Status.MISSING, count=3), FAILED),
        (says(Status.PAGE, count=KEYS_MAX), FAILED),
        (lambda request, sender: b"HTTP/1.1 200 OK\r\n\r\n", FAILED),
        (lambda request, sender: bytes(4096), FAILED),
        (page_of(3, 0), CORRUPT),
        (page_of(1, 1), CORRUPT),
        (judged(b"what"), FAILED),
    ],
)
def test_a_peer_that_lies_is_refused(tmp_path: Path, lie: Lie, outcome: LoadOutcome) -> None:
    sender = Sender(tmp_path / "kv", blocks=3, layers=2, page_bytes=PAGE_BYTES)
    receiver = Receiver(tmp_path / "arena", 4, PAGE_BYTES)
    closed: list[bool] = []

    def lies(sock: socket.socket, _: int) -> None:
        sock.sendall(lie(hear(sock), sender))
        closed.append(is_closed(sock))

    with liar(lies) as peer, fetching(peer.address, receiver) as client:
        client.submit([receiver.reads(0, [1, 2], 1)], LONG_S)
        assert receiver.outcomes() == [[outcome, FAILED]]
        assert client.counts.num_refused == 1
        assert client.counts.num_pages == 0
    assert closed == [True]
    assert [receiver.arena.word(page) for page in range(4)] == [PENDING, LOST, LOST, PENDING]
    assert not receiver.arena.pages[[0, 2, 3]].any()
    sender.disk.close()


def test_a_page_of_another_size_is_refused(tmp_path: Path) -> None:
    """Its header says so, behind as many bytes as were asked for."""
    small = Sender(tmp_path / "small", blocks=1, layers=1, page_bytes=PAGE_BYTES - 8)
    receiver = Receiver(tmp_path / "arena", 1, PAGE_BYTES)

    def lies(sock: socket.socket, _: int) -> None:
        answer = pack_answer(Answer(hear(sock).number, 0, 1, Status.PAGE))
        sock.sendall(answer + small.value(1, 0) + bytes(8))
        is_closed(sock)

    with liar(lies) as peer, fetching(peer.address, receiver) as client:
        client.submit([receiver.reads(0, [1], 0)], LONG_S)
        assert receiver.outcomes() == [[CORRUPT]]
    assert client.counts.num_refused == 1
    small.disk.close()


@pytest.mark.parametrize(
    ("at", "is_stored"),
    [(0, True), (PAGE_BYTES - 1, True), (100, False), (512, False), (512 + PAGE_BYTES - 1, False)],
)
def test_a_flipped_bit_costs_its_page_and_no_other(
    tmp_path: Path, at: int, is_stored: bool
) -> None:
    sender = Sender(tmp_path / "kv", blocks=3, layers=1, page_bytes=PAGE_BYTES)
    receiver = Receiver(tmp_path / "arena", 3, PAGE_BYTES)

    def flips(sock: socket.socket, _: int) -> None:
        values = bytearray(b"".join(sender.value(number, 0) for number in (1, 2, 3)))
        values[512 + PAGE_BYTES + at] ^= 1
        sock.sendall(pack_answer(Answer(hear(sock).number, 0, 3, Status.PAGE)) + values)
        is_closed(sock)

    if is_stored:
        sender.flip(2, 0, at)
    with serving(sender.disk) as server, liar(flips) as peer:
        address = server.address if is_stored else peer.address
        with fetching(address, receiver) as client:
            client.submit([receiver.reads(0, [1, 2, 3], 0)], LONG_S)
            results = receiver.reports.get(timeout=LONG_S)
            assert [read.outcomes for read in results] == [[READY, CORRUPT, READY]]
            assert results[0].headers[1] is None
            assert (client.counts.num_corrupt, client.counts.num_refused) == (1, 0)
    assert [receiver.arena.word(page) for page in range(3)] == [THERE, LOST, THERE]
    assert np.array_equal(receiver.arena.pages[2], sender.pages[2, 0])
    sender.disk.close()


def test_a_client_without_the_secret_gets_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = Sender(tmp_path / "kv", blocks=1, layers=1, page_bytes=PAGE_BYTES)
    receiver = Receiver(tmp_path / "arena", 1, PAGE_BYTES)
    with serving(sender.disk) as server:
        clock = Clock(lambda: server.counts.num_refused > 0)
        for module in (client_module, connection_module):
            monkeypatch.setattr(module, "time", clock)
        with fetching(server.address, receiver, secret=b"another") as client:
            client.submit([receiver.reads(0, [1], 0)], LONG_S)
            assert receiver.outcomes() == [[FAILED]]
            assert client.counts.num_connections == 0
        assert server.counts.num_pages_sent == 0
    sender.disk.close()


def _greets(sock: socket.socket, prove_it: Callable[[Hello, Hello, bytes], bytes]) -> None:
    """A server that gives another proof than it should."""
    client = unpack_hello(take(sock, HELLO_BYTES))
    server = Hello("sender", new_nonce())
    sock.sendall(pack_hello(server))
    sock.sendall(prove_it(client, server, take(sock, PROOF_BYTES)))
    assert is_closed(sock)


@pytest.mark.parametrize(
    "prove_it",
    [
        lambda client, server, proof: prove(b"another", Side.SERVER, client, server),
        lambda client, server, proof: prove(SECRET, Side.CLIENT, client, server),
        lambda client, server, proof: prove(SECRET, Side.SERVER, client, Hello("x", server.nonce)),
        lambda client, server, proof: proof,
    ],
)
def test_a_server_without_a_proof_of_its_own_is_asked_for_nothing(
    tmp_path: Path, prove_it: Callable[[Hello, Hello, bytes], bytes]
) -> None:
    receiver = Receiver(tmp_path / "arena", 1, PAGE_BYTES)
    with (
        Listener(lambda sock, _: _greets(sock, prove_it)) as peer,
        fetching(peer.address, receiver) as client,
    ):
        client.submit([receiver.reads(0, [1], 0)], LONG_S)
        assert receiver.outcomes() == [[FAILED]]
        assert (client.counts.num_refused, client.counts.num_connections) == (1, 0)


def test_a_mirror_is_no_peer(tmp_path: Path) -> None:
    """It sends back whatever it is sent, so it needs no secret to say what a client says."""
    receiver = Receiver(tmp_path / "arena", 1, PAGE_BYTES)

    def mirrors(sock: socket.socket, _: int) -> None:
        while data := sock.recv(1 << 16):
            sock.sendall(data)

    with Listener(mirrors) as peer, fetching(peer.address, receiver) as client:
        client.submit([receiver.reads(0, [1], 0)], LONG_S)
        assert receiver.outcomes() == [[FAILED]]
        assert client.counts.num_refused == 1


def test_another_host_than_the_one_that_was_meant_is_refused(tmp_path: Path) -> None:
    sender = Sender(tmp_path / "kv", blocks=1, layers=1, page_bytes=PAGE_BYTES)
    receiver = Receiver(tmp_path / "arena", 1, PAGE_BYTES)
    with serving(sender.disk, host_id="b") as server:
        with fetching(server.address, receiver, peer_id="a") as client:
            client.submit([receiver.reads(0, [1], 0)], LONG_S)
            assert receiver.outcomes() == [[FAILED]]
            assert client.counts.num_refused == 1
        with fetching(server.address, receiver, peer_id="b") as client:
            client.submit([receiver.reads(0, [1], 0)], LONG_S)
            assert receiver.outcomes() == [[READY]]
    sender.disk.close()


ASKS = Request(1, 0, PAGE_BYTES, 0, 10_000, [key(1)])


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n".ljust(HELLO_BYTES),
        pack_hello(Hello("host", bytes(32))).replace(b"\1\0", b"\2\0", 1),
        pack_hello(Hello("host", bytes(32))) + bytes(PROOF_BYTES),
    ],
)
def test_a_client_that_is_none_is_refused(tmp_path: Path, garbage: bytes) -> None:
    sender = Sender(tmp_path / "kv", blocks=1, layers=1, page_bytes=PAGE_BYTES)
    with serving(sender.disk) as server:
        with socket.create_connection(server.address) as sock:
            sock.sendall(garbage)
            assert is_closed(sock)
        assert server.counts.num_refused == 1
        _still_serves(server.address, tmp_path)
    sender.disk.close()


@pytest.mark.parametrize(
    "said",
    [
        b"garbage" * 10,
        pack_request(ASKS)[:-16] + bytes(16) + b"?",
        pack_request(Request(1, 0, 1 << 31, 0, 0, [key(1)])),
        b"".join(pack_request(Request(n, 9, 1, 0, 9999, [key(1)] * 64)) for n in (1, 1)),
        b"".join(
            pack_request(Request(n, 9, 1, 0, 9999, [key(1)] * 64)) for n in range(REQUESTS_MAX + 1)
        ),
    ],
)
def test_a_client_that_breaks_the_rules_is_refused(tmp_path: Path, said: bytes) -> None:
    sender = Sender(tmp_path / "kv", blocks=1, layers=1, page_bytes=PAGE_BYTES)
    with serving(sender.disk) as server:
        with greeted(server) as sock:
            sock.sendall(said)
            assert is_closed(sock)
        assert server.counts.num_refused == 1
        _still_serves(server.address, tmp_path)
    sender.disk.close()


def _still_serves(address: tuple[str, int], tmp_path: Path) -> None:
    receiver = Receiver(tmp_path / "arena", 1, PAGE_BYTES)
    with fetching(address, receiver) as client:
        client.submit([receiver.reads(0, [1], 0)], LONG_S)
        assert receiver.outcomes() == [[READY]]


def test_who_says_nothing_holds_few_connections_and_not_for_long(tmp_path: Path) -> None:
    sender = Sender(tmp_path / "kv", blocks=1, layers=1, page_bytes=PAGE_BYTES)
    with (
        serving(sender.disk, unproven_max=2) as server,
        socket.create_connection(server.address) as first,
        socket.create_connection(server.address) as second,
        socket.create_connection(server.address) as third,
    ):
        assert is_closed(first)
        assert server.counts.num_turned_away == 1
        _still_serves(server.address, tmp_path)
        assert is_closed(second)
        assert server.counts.num_turned_away == 2
        third.setblocking(False)
        with pytest.raises(BlockingIOError):
            third.recv(1)
    with (
        serving(sender.disk, handshake_s=0.05) as server,
        socket.create_connection(server.address) as silent,
    ):
        silent.sendall(b"S")
        assert is_closed(silent)
    sender.disk.close()


def test_there_are_only_so_many_connections(tmp_path: Path) -> None:
    sender = Sender(tmp_path / "kv", blocks=1, layers=1, page_bytes=PAGE_BYTES)
    with serving(sender.disk, connections_max=1) as server, greeted(server) as only:
        with greeted(server, host_id="another") as second:
            assert is_closed(second)
        only.sendall(pack_request(ASKS))
        assert take(only, 1)
        assert server.counts.num_turned_away == 1
    sender.disk.close()


def test_a_server_stops_whatever_its_peers_do(tmp_path: Path) -> None:
    sender = Sender(tmp_path / "kv", blocks=1, layers=1, page_bytes=PAGE_BYTES)
    began_s = time.monotonic()
    with serving(sender.disk, handshake_s=LONG_S, idle_s=LONG_S) as server:
        silent = socket.create_connection(server.address)
        with greeted(server) as idle:
            server.stop()
            assert is_closed(idle)
            assert is_closed(silent)
    silent.close()
    with (
        serving(sender.disk, tls=ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)) as server,
        socket.create_connection(server.address) as silent,
    ):
        silent.sendall(b"\x16")  # as a handshake begins
        server.stop()
        assert is_closed(silent)
    assert time.monotonic() - began_s < LONG_S / 2
    assert server.num_connections == 0
    sender.disk.close()
