"""An HTTP/1.1 load on raw sockets: so light that it measures the server, not itself."""

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import quantiles
from typing import cast

END_OF_CHUNKS = b"0\r\n\r\n"
FIRST_EVENT = b"data:"


@dataclass(slots=True)
class LoadResult:
    """Attributes:
    first_byte_s: for each request, from when it was sent (or due) to its first event.
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


class _Connection(asyncio.Protocol):
    """One keep-alive connection that carries one request at a time."""

    def __init__(
        self, request: bytes, result: LoadResult, on_idle: Callable[["_Connection"], None]
    ) -> None:
        self.closed = asyncio.get_running_loop().create_future()
        self._request = request
        self._result = result
        self._on_idle = on_idle
        self._buffer = b""
        self._due_at = 0.0
        self._has_first = False

    def send(self, due_at: float) -> None:
        """Send the request; its latency counts from `due_at`."""
        self._buffer = b""
        self._has_first = False
        self._due_at = due_at
        self._transport.write(self._request)

    def close(self) -> None:
        """No more requests."""
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._has_first and FIRST_EVENT in self._buffer:
            self._has_first = True
            self._result.first_byte_s.append(time.perf_counter() - self._due_at)
        if self._buffer.endswith(END_OF_CHUNKS):
            self._result.num_errors += not self._buffer.startswith(b"HTTP/1.1 200")
            self._on_idle(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._result.num_errors += error is not None
        if not self.closed.done():
            self.closed.set_result(None)


async def closed_loop(
    port: int, path: str, body: bytes, *, concurrency: int, seconds: float
) -> LoadResult:
    """Keep `concurrency` requests in flight against loopback `port` for `seconds`."""
    result = LoadResult()
    started = time.perf_counter()

    def go_on(connection: _Connection) -> None:
        now = time.perf_counter()
        if now < started + seconds:
            connection.send(now)
        else:
            connection.close()

    connections = await _connect(port, path, body, concurrency, result, go_on)
    for connection in connections:
        go_on(connection)
    await asyncio.wait_for(asyncio.gather(*(c.closed for c in connections)), seconds + 30)
    result.duration_s = time.perf_counter() - started
    return result


async def open_loop(
    port: int, path: str, body: bytes, *, rate: float, connections_max: int, seconds: float
) -> LoadResult:
    """Send at Poisson arrivals of `rate` a second, whatever the server does.

    A request that finds no idle connection waits for one, and its latency counts from when it was
    due, so that a slow server is not spared by its own slowness.
    """
    result = LoadResult()
    due: deque[float] = deque()
    idle: list[_Connection] = []

    all_idle = asyncio.Event()

    def pair(connection: _Connection | None = None) -> None:
        if connection is not None:
            idle.append(connection)
        while due and idle:
            idle.pop().send(due.popleft())
        if len(idle) == connections_max:
            all_idle.set()
        else:
            all_idle.clear()

    connections = await _connect(port, path, body, connections_max, result, pair)
    idle += connections
    rng = random.Random(1)
    started = next_at = time.perf_counter()
    while next_at < started + seconds:
        next_at += rng.expovariate(rate)
        await asyncio.sleep(max(0.0, next_at - time.perf_counter()))
        due.append(next_at)
        pair()
    await asyncio.wait_for(all_idle.wait(), 30)
    result.duration_s = time.perf_counter() - started
    for connection in connections:
        connection.close()
    return result


async def _connect(
    port: int,
    path: str,
    body: bytes,
    count: int,
    result: LoadResult,
    on_idle: Callable[[_Connection], None],
) -> list[_Connection]:
    request = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    loop = asyncio.get_running_loop()
    made = [
        await loop.create_connection(
            lambda: _Connection(request, result, on_idle), "127.0.0.1", port
        )
        for _ in range(count)
    ]
    return [connection for _, connection in made]
