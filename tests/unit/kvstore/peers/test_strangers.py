"""Strangers who only connect, in any number, keep no host from its pages."""

import errno
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from services.kvstore.peers.handshake import greet
from services.kvstore.peers.proof import Side, is_proven, new_nonce, prove
from services.kvstore.peers.stream import PlainStream
from services.kvstore.peers.wire import HELLO_BYTES, PROOF_BYTES, Hello, pack_hello, unpack_hello
from tests.unit.kvstore.peers.hosts import (
    LONG_S,
    SECRET,
    Sender,
    greeted,
    is_closed,
    serving,
    strangers,
    take,
    until,
)

MAX = 4
NUM_STRANGERS = 5 * MAX
HELLO = pack_hello(Hello("stranger", new_nonce()))
Say = Callable[[socket.socket], None]


@pytest.fixture
def sender(tmp_path: Path) -> Iterator[Sender]:
    sender = Sender(tmp_path / "kv", blocks=1, layers=1, page_bytes=512)
    yield sender
    sender.disk.close()


def says_nothing(sock: socket.socket) -> None:
    pass


def says_hello(sock: socket.socket) -> None:
    sock.sendall(HELLO)
    take(sock, HELLO_BYTES)


def begins_to_say_hello(sock: socket.socket) -> None:
    sock.sendall(HELLO[:-1])


def proves_wrong(sock: socket.socket) -> None:
    says_hello(sock)
    sock.sendall(bytes(PROOF_BYTES))


def begins_to_prove(sock: socket.socket) -> None:
    says_hello(sock)
    sock.sendall(bytes(PROOF_BYTES - 1))


@pytest.mark.parametrize(
    "say", [says_nothing, begins_to_say_hello, says_hello, begins_to_prove, proves_wrong]
)
def test_a_flood_from_another_address_turns_no_host_away(sender: Sender, say: Say) -> None:
    with serving(sender.disk, unproven_max=MAX) as server, ExitStack() as stack:
        for _ in range(10):
            stack.enter_context(strangers(server, NUM_STRANGERS, say, "127.0.0.2"))
            with greeted(server):
                pass
        seen, num = server.counts, 10 * NUM_STRANGERS
        if say is proves_wrong:
            until(lambda: seen.num_refused == num)
        else:
            assert seen.num_turned_away == num - (MAX - 1)  # one place was a host's


@pytest.mark.parametrize("say", [says_nothing, begins_to_say_hello])
def test_nor_does_one_from_its_own_address_that_does_not_even_greet(
    sender: Sender, say: Say
) -> None:
    """It comes between a host's hello and its proof."""
    with serving(sender.disk, unproven_max=MAX) as server:
        for _ in range(5):
            with socket.create_connection(server.address) as sock:
                own = Hello("test", new_nonce())
                sock.sendall(pack_hello(own))
                other = unpack_hello(take(sock, HELLO_BYTES))
                with strangers(server, NUM_STRANGERS, say, "127.0.0.1"):
                    sock.sendall(prove(SECRET, Side.CLIENT, own, other))
                    assert is_proven(take(sock, PROOF_BYTES), SECRET, Side.SERVER, own, other)


def test_a_proof_that_was_heard_before_proves_nothing(sender: Sender) -> None:
    said: list[bytes] = []

    class Overheard(PlainStream):
        def send(self, parts: Any) -> int:
            said.append(b"".join(parts))
            return super().send(parts)

    with serving(sender.disk) as server:
        with socket.create_connection(server.address) as sock:
            greet(Overheard(sock, LONG_S), SECRET, "test", None, time.monotonic() + LONG_S)
        with socket.create_connection(server.address) as sock:
            sock.sendall(b"".join(said))
            assert is_closed(sock)
        assert [len(each) for each in said] == [HELLO_BYTES, PROOF_BYTES]
        assert server.counts.num_refused == 1
        with greeted(server):
            pass


def test_who_takes_too_long_is_let_go_however_much_it_says(sender: Sender) -> None:
    with serving(sender.disk, handshake_s=0.2) as server:
        with socket.create_connection(server.address) as sock, suppress(OSError):
            for at in range(HELLO_BYTES):
                sock.sendall(HELLO[at : at + 1])
                time.sleep(0.01)
        until(lambda: server.num_connections == 0)


def test_without_files_for_more_the_oldest_stranger_goes(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept, num_left = socket.socket.accept, [2]

    def fails(sock: socket.socket) -> Any:
        if num_left[0]:
            num_left[0] -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(sock)

    with (
        serving(sender.disk) as server,
        strangers(server, 3, says_nothing, "127.0.0.1"),
    ):
        monkeypatch.setattr(socket.socket, "accept", fails)
        with greeted(server):
            assert server.counts.num_turned_away == 2


def test_a_host_that_connects_again_and_again_takes_no_place_of_others(sender: Sender) -> None:
    with serving(sender.disk, connections_max=3) as server, ExitStack() as stack:
        kept = stack.enter_context(greeted(server, host_id="kept"))
        storm = [stack.enter_context(greeted(server, host_id="storm")) for _ in range(20)]
        new = stack.enter_context(greeted(server, host_id="new"))
        for sock in storm[:-1]:
            assert is_closed(sock)
        assert server.counts.num_turned_away == 19
        until(lambda: server.num_connections == 3)
        for sock in (kept, storm[-1], new):
            sock.setblocking(False)
            with pytest.raises(BlockingIOError):
                sock.recv(1)
