"""The metrics port beside strangers who say nothing, or too much."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from shared.runtime import metrics_server
from shared.runtime.metrics_server import (
    CONNECTIONS_MAX,
    HEAD_BYTES_MAX,
    MetricsServer,
    serve_metrics,
)
from tests.tables import largest_table

ASKED = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    server = serve_metrics(0, "127.0.0.1")
    yield server
    server.shutdown()
    server.server_close()


def connected(server: MetricsServer, address: str = "127.0.0.1") -> "closing[socket.socket]":
    port = server.server_address[1]
    return closing(socket.create_connection(("127.0.0.1", port), 20, (address, 0)))


def answer(connection: socket.socket) -> bytes:
    found = b""
    try:
        while part := connection.recv(65_536):
            found += part
    except ConnectionError:
        pass
    return found


def test_a_scrape_beside_a_crowd_that_says_nothing(server: MetricsServer) -> None:
    with ExitStack() as stack:
        crowd = [stack.enter_context(connected(server, "127.0.0.2")) for _ in range(100)]
        for _ in range(3):
            with connected(server) as scraper:
                scraper.sendall(ASKED)
                assert b"python_info" in answer(scraper)
        assert answer(crowd[0]) == b"", "made room"
        assert largest_table(server) <= CONNECTIONS_MAX


def test_a_request_has_a_size(server: MetricsServer) -> None:
    with connected(server) as stranger:
        stranger.sendall(b"GET /metrics HTTP/1.1\r\nX: " + b"a" * HEAD_BYTES_MAX)
        assert answer(stranger).startswith(b"HTTP/1.0 431 ")


def test_a_request_has_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "REQUEST_S", 0.05)
    server = serve_metrics(0, "127.0.0.1")
    with connected(server) as stranger:
        stranger.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
        answer(stranger)
    server.shutdown()
    server.server_close()
