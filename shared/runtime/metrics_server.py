"""``/metrics`` for services without an HTTP edge, from a thread.

Strangers may reach it where it listens beyond loopback: a request has a few seconds and kilobytes,
and a few connections are open at once. If one more comes, one of the address that has most ends.
"""

import io
import socket
import threading
import time
from collections import Counter
from contextlib import suppress
from socketserver import ThreadingMixIn
from typing import Any, ClassVar
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import make_wsgi_app

CONNECTIONS_MAX = 16
REQUEST_S = 10.0
HEAD_BYTES_MAX = 16 * 1024
TOO_LONG = b"HTTP/1.0 431 Request Header Fields Too Large\r\nConnection: close\r\n\r\n"


def serve_metrics(port: int, address: str) -> "MetricsServer":
    """Serve in a daemon thread, on any free port if `port` is 0."""
    server = MetricsServer((address, port), _Handler)
    server.set_app(make_wsgi_app())
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server


class MetricsServer(ThreadingMixIn, WSGIServer):
    """A thread a connection, as long as there are few."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, server_address: tuple[str, int], handler: type["_Handler"]) -> None:
        self.address_family = socket.AF_INET6 if ":" in server_address[0] else socket.AF_INET
        self._open: dict[socket.socket, str] = {}  # the oldest first
        self._lock = threading.Lock()
        super().__init__(server_address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begin a thread for a connection."""
        with self._lock:
            if len(self._open) >= CONNECTIONS_MAX:
                ((crowded, _),) = Counter(self._open.values()).most_common(1)
                oldest = next(each for each, host in self._open.items() if host == crowded)
                del self._open[oldest]
                _end(oldest)
            self._open[request] = client_address[0]
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """A connection is over."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whatever it was, it was this connection's."""


class _Handler(WSGIRequestHandler):
    timeout: ClassVar[float] = REQUEST_S

    def setup(self) -> None:
        super().setup()
        self.rfile = io.BufferedReader(_Bounded(self.connection))

    def handle(self) -> None:
        try:
            super().handle()
        except _TooLong:
            self.wfile.write(TOO_LONG)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: machines ask every few seconds."""


class _TooLong(Exception):
    """A request is longer than any that means something."""


class _Bounded(io.RawIOBase):
    """What a client sends, up to a size and a time: then it has ended.

    Raises (on reading):
        _TooLong: there is more of it.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._left = HEAD_BYTES_MAX
        self._until_s = time.monotonic() + REQUEST_S

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left_s = self._until_s - time.monotonic()
        if not self._left:
            raise _TooLong
        if left_s <= 0:
            return 0
        try:
            self._connection.settimeout(left_s)
            num = self._connection.recv_into(memoryview(buffer)[: self._left])
        except OSError:
            return 0
        self._left -= num
        return num


def _end(connection: socket.socket) -> None:
    with suppress(OSError):  # it has ended by itself
        connection.shutdown(socket.SHUT_RDWR)
