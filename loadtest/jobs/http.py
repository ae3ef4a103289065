"""An open loop of HTTP/1.1 requests of their own bodies, on raw sockets, answered as a whole."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

import orjson

END_OF_HEAD = b"\r\n\r\n"
LENGTH = b"\r\ncontent-length:"
PATIENCE_S = 30.0


@dataclass(slots=True)
class Answers:
    """Attributes:
    took_s: of each request, from when it was due to the end of its answer; 0 if none came.
    status: of each request's answer; 0 if its connection broke.
    code: of each error that has one in its body.
    """

    took_s: list[float]
    status: list[int]
    code: dict[int, str] = field(default_factory=dict)


class _Connection(asyncio.Protocol):
    """One keep-alive connection that carries one request at a time."""

    def __init__(self, answers: Answers, on_idle: Callable[["_Connection"], None]) -> None:
        self._answers = answers
        self._on_idle = on_idle
        self._buffer = b""
        self._number = -1
        self._due_at = 0.0

    def send(self, number: int, due_at: float, request: bytes) -> None:
        self._number, self._due_at, self._buffer = number, due_at, b""
        self._transport.write(request)

    def close(self) -> None:
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, separator, body = self._buffer.partition(END_OF_HEAD)
        if not separator:
            return
        length = int(head.lower().partition(LENGTH)[2].partition(b"\r")[0])
        if len(body) < length:
            return
        number, status = self._number, int(head[9:12])
        self._answers.took_s[number] = time.perf_counter() - self._due_at
        self._answers.status[number] = status
        if status != 200:
            self._answers.code[number] = str(orjson.loads(body)["error"].get("code"))
        self._number = -1
        self._on_idle(self)


async def send_all(
    port: int, requests: Sequence[bytes], due_s: Sequence[float], connections_max: int
) -> Answers:
    """Send each request when it is due, seconds after the begin, and wait for all answers.

    One that finds no idle connection waits for one, and its time counts from when it was due.
    """
    answers = Answers([0.0] * len(requests), [0] * len(requests))
    idle: list[_Connection] = []
    waiting: deque[tuple[int, float]] = deque()
    all_idle = asyncio.Event()

    def pair(connection: _Connection | None = None) -> None:
        if connection is not None:
            idle.append(connection)
        while waiting and idle:
            number, due_at = waiting.popleft()
            idle.pop().send(number, due_at, requests[number])
        if len(idle) == connections_max:
            all_idle.set()
        else:
            all_idle.clear()

    loop = asyncio.get_running_loop()
    for _ in range(connections_max):
        _, connection = await loop.create_connection(
            lambda: _Connection(answers, pair), "127.0.0.1", port
        )
        idle.append(connection)
    begin = time.perf_counter()
    for number, after_s in enumerate(due_s):
        left_s = begin + after_s - time.perf_counter()
        if left_s > 0:
            await asyncio.sleep(left_s)
        waiting.append((number, begin + after_s))
        pair()
    await asyncio.wait_for(all_idle.wait(), PATIENCE_S)
    for connection in idle:
        connection.close()
    return answers


def post(port: int, path: str, body: bytes, **headers: str) -> bytes:
    """A whole request."""
    more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"{more}Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
