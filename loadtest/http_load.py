"""HTTP/1.1 loads on raw sockets: so light that they measure the server, not themselves."""

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import quantiles
from typing import cast

import orjson

from loadtest.raw_http import request_bytes

END_OF_HEAD = b"\r\n\r\n"
LENGTH = b"\r\ncontent-length:"
END_OF_CHUNKS = b"0\r\n\r\n"
FIRST_EVENT = b"data:"
PATIENCE_S = 30.0


@dataclass(slots=True)
class Answers:
    """Of requests by their numbers. Seconds count from when a request was due.

    Attributes:
        took_s: to the end of the answer; 0 if none came.
        status: 0 if the connection broke.
        code: of each error that has one in its body.
        first_s: to the first event, of those that had one.
        duration_s: of all together.
    """

    took_s: list[float] = field(default_factory=list)
    status: list[int] = field(default_factory=list)
    code: dict[int, str] = field(default_factory=dict)
    first_s: list[float] = field(default_factory=list)
    duration_s: float = 0.0

    def expect(self) -> int:
        """The number of one request more."""
        self.took_s.append(0.0)
        self.status.append(0)
        return len(self.status) - 1

    @property
    def num_errors(self) -> int:
        return sum(status != 200 for status in self.status)

    @property
    def requests_per_s(self) -> float:
        return len(self.first_s) / self.duration_s

    def percentile_ms(self, percent: int) -> float:
        """Of the time to the first event, ms."""
        return quantiles(self.first_s, n=100)[percent - 1] * 1e3


class _Connection(asyncio.Protocol):
    """One keep-alive connection that carries one request at a time.

    Args:
        on_idle: called when an answer is whole, or cannot come any more.
    """

    def __init__(self, answers: Answers, on_idle: Callable[["_Connection"], None]) -> None:
        self.is_open = True
        self._answers = answers
        self._on_idle = on_idle
        self._number = -1  # none
        self._due_at = 0.0
        self._buffer = b""
        self._has_first = False
        self._num_bytes: int | None = None  # of the answer; None: unknown, or it comes in chunks

    def send(self, due_at: float, request: bytes) -> None:
        """Send a request that was due at that instant."""
        self._number, self._due_at = self._answers.expect(), due_at
        self._buffer, self._has_first, self._num_bytes = b"", False, None
        self._transport.write(request)

    def close(self) -> None:
        """No more requests."""
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        is_head_new = END_OF_HEAD not in self._buffer
        self._buffer += data
        if not self._has_first and FIRST_EVENT in self._buffer:
            self._has_first = True
            self._answers.first_s.append(time.perf_counter() - self._due_at)
        if is_head_new:
            head, is_there, _ = self._buffer.partition(END_OF_HEAD)
            _, has_length, rest = head.lower().partition(LENGTH)
            if is_there and has_length:
                length = int(rest.partition(b"\r")[0])
                self._num_bytes = len(head) + len(END_OF_HEAD) + length
        if self._num_bytes is None:
            is_whole = self._buffer.endswith(END_OF_CHUNKS)
        else:
            is_whole = len(self._buffer) >= self._num_bytes
        if is_whole:
            self._end()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        if self._number >= 0:
            self._number = -1
            self._on_idle(self)

    def _end(self) -> None:
        number, status = self._number, int(self._buffer[9:12])
        self._answers.took_s[number] = time.perf_counter() - self._due_at
        self._answers.status[number] = status
        if status != 200 and self._num_bytes is not None:
            body = orjson.loads(self._buffer.partition(END_OF_HEAD)[2])
            self._answers.code[number] = str(body["error"].get("code"))
        self._number = -1
        self._on_idle(self)


async def closed_loop(
    port: int, path: str, body: bytes, *more_headers: bytes, concurrency: int, seconds: float
) -> Answers:
    """Keep `concurrency` requests in flight against loopback `port` for `seconds`."""
    answers, request = Answers(), request_bytes("POST", path, port, body, *more_headers)
    is_over, num_left = asyncio.Event(), concurrency
    started = time.perf_counter()

    def go_on(connection: _Connection) -> None:
        nonlocal num_left
        now = time.perf_counter()
        if connection.is_open and now < started + seconds:
            connection.send(now, request)
            return
        connection.close()
        num_left -= 1
        if not num_left:
            is_over.set()

    for connection in await _connect(port, concurrency, answers, go_on):
        go_on(connection)
    await asyncio.wait_for(is_over.wait(), seconds + PATIENCE_S)
    answers.duration_s = time.perf_counter() - started
    return answers


async def open_loop(
    port: int, path: str, body: bytes, *, rate: float, connections_max: int, seconds: float
) -> Answers:
    """Send at Poisson arrivals of `rate` a second, whatever the server does; see `send_all`."""
    rng = random.Random(1)
    due_s = [0.0]
    while due_s[-1] < seconds:
        due_s.append(due_s[-1] + rng.expovariate(rate))
    request = request_bytes("POST", path, port, body)
    return await send_all(port, [request] * (len(due_s) - 1), due_s[1:], connections_max)


async def send_all(
    port: int, requests: Sequence[bytes], due_s: Sequence[float], connections_max: int
) -> Answers:
    """Send each request when it is due, seconds after the begin, and wait for all answers.

    A request that finds no idle connection waits for one, and its time counts from when it was due,
    so that a slow server is not spared by its own slowness.
    """
    answers = Answers()
    idle: list[_Connection] = []
    waiting: deque[tuple[float, bytes]] = deque()
    all_idle = asyncio.Event()

    def pair(connection: _Connection | None = None) -> None:
        if connection is not None and connection.is_open:
            idle.append(connection)
        while waiting and idle:
            idle.pop().send(*waiting.popleft())
        if len(idle) == connections_max:
            all_idle.set()
        else:
            all_idle.clear()

    idle += await _connect(port, connections_max, answers, pair)
    begin = time.perf_counter()
    for after_s, request in zip(due_s, requests, strict=True):
        left_s = begin + after_s - time.perf_counter()
        if left_s > 0:
            await asyncio.sleep(left_s)
        waiting.append((begin + after_s, request))
        pair()
    await asyncio.wait_for(all_idle.wait(), PATIENCE_S)
    answers.duration_s = time.perf_counter() - begin
    for connection in idle:
        connection.close()
    return answers


async def _connect(
    port: int, num: int, answers: Answers, on_idle: Callable[[_Connection], None]
) -> list[_Connection]:
    loop = asyncio.get_running_loop()
    made = [
        await loop.create_connection(lambda: _Connection(answers, on_idle), "127.0.0.1", port)
        for _ in range(num)
    ]
    return [connection for _, connection in made]
