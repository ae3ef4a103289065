"""A closed-loop HTTP/1.1 load on raw sockets: so light that it measures the server, not itself."""

import asyncio
import time
from dataclasses import dataclass, field
from statistics import quantiles
from typing import cast

END_OF_CHUNKS = b"0\r\n\r\n"
FIRST_EVENT = b"data:"


@dataclass(slots=True)
class LoadResult:
    """Attributes:
    first_byte_s: for each request, from its last byte sent to the first event received.
    num_errors: answers other than 200, or connections that broke.
    """

    duration_s: float = 0.0
    first_byte_s: list[float] = field(default_factory=list)
    num_errors: int = 0

    @property
    def requests_per_s(self) -> float:
        return len(self.first_byte_s) / self.duration_s

    def percentile_ms(self, percent: int) -> float:
        """Of the time to the first event, ms."""
        return quantiles(self.first_byte_s, n=100)[percent - 1] * 1e3


class _Client(asyncio.Protocol):
    """One connection that sends its next request as soon as the last answer is whole."""

    def __init__(self, request: bytes, result: LoadResult, stop_at: float) -> None:
        self.done = asyncio.get_running_loop().create_future()
        self._request = request
        self._result = result
        self._stop_at = stop_at
        self._buffer = b""
        self._sent_at = 0.0
        self._has_first = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._send()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._has_first and FIRST_EVENT in self._buffer:
            self._has_first = True
            self._result.first_byte_s.append(time.perf_counter() - self._sent_at)
        if not self._buffer.endswith(END_OF_CHUNKS):
            return
        if not self._buffer.startswith(b"HTTP/1.1 200"):
            self._result.num_errors += 1
        if time.perf_counter() < self._stop_at:
            self._send()
        else:
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._result.num_errors += error is not None
        if not self.done.done():
            self.done.set_result(None)

    def _send(self) -> None:
        self._buffer = b""
        self._has_first = False
        self._sent_at = time.perf_counter()
        self._transport.write(self._request)


async def closed_loop(
    port: int, path: str, body: bytes, *, concurrency: int, seconds: float
) -> LoadResult:
    """Keep `concurrency` requests in flight against loopback `port` for `seconds`."""
    request = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    result = LoadResult()
    loop = asyncio.get_running_loop()
    started = time.perf_counter()
    clients = []
    for _ in range(concurrency):
        _, client = await loop.create_connection(
            lambda: _Client(request, result, started + seconds), "127.0.0.1", port
        )
        clients.append(client)
    await asyncio.wait_for(asyncio.gather(*(c.done for c in clients)), seconds + 30)
    result.duration_s = time.perf_counter() - started
    return result
