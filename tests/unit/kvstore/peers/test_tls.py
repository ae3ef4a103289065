"""Pages that go over TLS."""

import shutil
import ssl
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.kvstore.core import LoadOutcome
from services.kvstore.peers import stream as stream_module
from services.kvstore.peers.stream import TlsStream
from shared.runtime.access import serving as serving_context
from shared.runtime.access import trusting
from tests.certificates import make_certificate
from tests.unit.kvstore.peers.hosts import (
    LONG_S,
    SECRET,
    TICK_S,
    Receiver,
    Sender,
    fetching,
    proxy,
    serving,
    strangers,
)

PAGE_BYTES = 70_000
READY, FAILED = LoadOutcome.READY, LoadOutcome.FAILED

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="no `openssl` to make a certificate with"
)


@pytest.fixture
def contexts(tmp_path: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's, and that of a client that trusts it alone."""
    made = make_certificate(tmp_path / "tls", "IP:127.0.0.1")
    return serving_context(made.cert, made.key, "test"), trusting(made.cert, "test")


def test_pages_come_over_tls_and_after_a_cut(
    tmp_path: Path, contexts: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    server_tls, client_tls = contexts
    sender = Sender(tmp_path / "kv", blocks=8, layers=2, page_bytes=PAGE_BYTES)
    receiver = Receiver(tmp_path / "arena", 16, PAGE_BYTES)
    numbers, said = list(range(1, 9)), list[bytes]()
    with (
        serving(sender.disk, tls=server_tls) as server,
        proxy(server.address, [500_000], said) as between,
        fetching(between.address, receiver, tls=client_tls) as client,
    ):
        client.submit([receiver.reads(0, numbers, 0), receiver.reads(1, numbers, 8)], LONG_S)
        assert receiver.outcomes() == [[READY] * 8] * 2
        assert client.counts.num_connections == 2
        assert 0 < client.counts.num_resumed <= 16
    for page in range(16):
        layer, number = divmod(page, 8)
        assert np.array_equal(receiver.arena.pages[page], sender.pages[number, layer])
    assert SECRET not in b"".join(said) and b"receiver" not in b"".join(said)
    sender.disk.close()


def test_strangers_to_tls_hold_up_no_host(
    tmp_path: Path, contexts: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    server_tls, client_tls = contexts
    sender = Sender(tmp_path / "kv", blocks=1, layers=1, page_bytes=PAGE_BYTES)
    receiver = Receiver(tmp_path / "arena", 1, PAGE_BYTES)
    with (
        serving(sender.disk, tls=server_tls, unproven_max=4) as server,
        strangers(server, 20, lambda sock: sock.sendall(b"\x16\x03\x01"), "127.0.0.2"),
        fetching(server.address, receiver, tls=client_tls) as client,
    ):
        client.submit([receiver.reads(0, [1], 0)], LONG_S)
        assert receiver.outcomes() == [[READY]]
    sender.disk.close()


def test_a_slow_peer_gets_what_it_is_sent_piece_by_piece(
    tmp_path: Path, contexts: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    """More than all buffers take, so that what is left is copied between two of TLS' records."""
    server_tls, client_tls = contexts
    sender = Sender(tmp_path / "kv", blocks=1, layers=1, page_bytes=12_000_001)
    receiver = Receiver(tmp_path / "arena", 1, 12_000_001)
    with (
        serving(sender.disk, tls=server_tls, tick_s=0.001) as server,
        fetching(server.address, receiver, tls=client_tls, tick_s=0.001) as client,
    ):
        client.submit([receiver.reads(0, [1], 0)], LONG_S)
        assert receiver.outcomes() == [[READY]]
    assert np.array_equal(receiver.arena.pages[0], sender.pages[0, 0])
    sender.disk.close()


class _Trickling:
    """A socket of TLS that takes and gives a byte at a time, three of them a tick."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def setsockopt(self, *_: int) -> None: ...

    def settimeout(self, timeout_s: float) -> None: ...

    def monotonic(self) -> float:
        return self.now_s

    def recv_into(self, view: memoryview) -> int:
        self.now_s += TICK_S / 3
        return 1

    def send(self, view: memoryview) -> int:
        self.now_s += TICK_S / 3
        return len(view)


def test_no_call_goes_on_for_as_long_as_something_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    slow: Any = _Trickling()
    monkeypatch.setattr(stream_module, "time", slow)
    stream = TlsStream(slow, TICK_S)
    assert 3 <= stream.receive([memoryview(bytearray(100))] * 2) <= 4
    assert 3 <= stream.send([b"x"] * 100) <= 4
    record = 16 * 1024
    assert 3 <= stream.send([bytes(100 * record)]) / record <= 4


@pytest.mark.parametrize("with_tls", [True, False])
def test_who_is_not_trusted_gets_nothing(
    tmp_path: Path, contexts: tuple[ssl.SSLContext, ssl.SSLContext], with_tls: bool
) -> None:
    """A server with another certificate, and one without TLS."""
    sender = Sender(tmp_path / "kv", blocks=1, layers=1, page_bytes=PAGE_BYTES)
    receiver = Receiver(tmp_path / "arena", 1, PAGE_BYTES)
    made = make_certificate(tmp_path / "other", "IP:127.0.0.1")
    other = serving_context(made.cert, made.key, "test")
    with (
        serving(sender.disk, tls=other if with_tls else None) as server,
        fetching(server.address, receiver, tls=contexts[1]) as client,
    ):
        client.submit([receiver.reads(0, [1], 0)], 0.1)
        assert receiver.outcomes() == [[FAILED]]
        assert server.counts.num_pages_sent == client.counts.num_connections == 0
    sender.disk.close()
