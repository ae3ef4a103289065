"""A connection's bytes: what is answered, what is read no further, and what waits."""

import asyncio
import re
from collections.abc import Callable
from typing import Any, cast

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from uvicorn import Config
from uvicorn.server import ServerState

from services.frontend.config import FrontendConfig
from services.frontend.http import connections
from services.frontend.http.connections import Connections
from shared.runtime.clock import ManualClock

HOST = b"Host: localhost\r\n"


class Wire:
    """A transport without a network."""

    def __init__(self) -> None:
        self.sent = b""
        self.is_reading = True
        self.is_closed = self.is_ended = False

    def write(self, data: bytes) -> None:
        self.sent += data

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.is_ended = True

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else None

    def get_write_buffer_size(self) -> int:
        return 0


class Served:
    """One connection to an application that answers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, int]] = []
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.reads = True
        self.streams = False
        all_of_them = Connections(FrontendConfig(), ManualClock())
        config = Config(
            cast(Any, self._app), lifespan="off", log_config=None, ws="none", interface="asgi3",
            proxy_headers=False,
        )  # fmt: skip
        make = cast(Callable[..., Any], all_of_them.protocol)
        self.connection = make(config=config, server_state=ServerState(), app_state={})
        self.wire = Wire()
        self.connection.connection_made(cast(Any, self.wire))

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        num_bytes, more = 0, self.reads
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            num_bytes, more = num_bytes + len(message["body"]), message["more_body"]
        self.asked.append((scope["method"], scope["path"], num_bytes))
        await self.go_on.wait()
        body = orjson.dumps([scope["path"], num_bytes, len(scope["headers"])])
        headers = [] if self.streams else [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if self.streams:
            for _ in range(3):
                await send({"type": "http.response.body", "body": b"part", "more_body": True})
        await send({"type": "http.response.body", "body": body})

    async def feed(self, data: bytes, sizes: list[int] | None = None) -> int:
        """Send `data` in pieces while it is read; how much of it was."""
        at = 0
        for size in [*(sizes or []), len(data)]:
            await settled()
            if not self.wire.is_reading or self.wire.is_closed:
                break
            self.connection.data_received(data[at : at + size])
            at = min(at + size, len(data))
        await settled()
        return at

    def statuses(self) -> list[int]:
        return [int(status) for status in re.findall(rb"HTTP/1.1 (\d+)", self.wire.sent)]

    def error(self) -> dict[str, Any]:
        body = orjson.loads(self.wire.sent.rpartition(b"\r\n\r\n")[2])
        return cast(dict[str, Any], body)


async def settled() -> None:
    for _ in range(8):
        await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "LINGER_S", 0)


ODD = {
    "folded header": (b"GET / HTTP/1.1\r\nHost: localhost\r\nA: b\r\n c\r\n\r\n", 400),
    "two lengths": (b"POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\n", 400),
    "length and chunks": (
        b"POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 400,
    ),
    "chunks and length": (
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n", 400,
    ),
    "other coding": (b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n", 400),
    "length of the trailer": (
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: 3\r\n\r\n", 400,
    ),
    "negative length": (b"POST / HTTP/1.1\r\nContent-Length: -3\r\n\r\n", 400),
    "endless length": (b"POST / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n", 400),
    "line feeds": (b"GET / HTTP/1.1\nHost: localhost\n\n", 400),
    "space before the colon": (b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n", 400),
    "zero byte": (b"GET / HTTP/1.1\r\nHost: local\0host\r\n\r\n", 400),
    "no version": (b"GET /\r\n\r\n", 505),
    "HTTP/0.9": (b"GET / HTTP/0.9\r\n\r\n", 505),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    "tunnel": (b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    "letters": ("GET /\u00e9 HTTP/1.1\r\n\r\n".encode(), 400),
    "wrong chunk": (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n", 400),
    "chunk that ends late": (
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n", 400,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("sizes", [[], [1] * 200])
def test_what_is_no_request_is_answered_and_ends_the_connection(
    kind: str, sizes: list[int]
) -> None:
    data, status = ODD[kind]

    async def scenario() -> None:
        served = Served()
        await served.feed(data, sizes)
        assert (served.statuses(), served.error()["error"]["code"]) == ([status], "invalid_http")
        assert served.wire.is_ended and served.wire.is_closed and served.asked == []

    asyncio.run(scenario())


FINE = {
    "plain": (b"GET /a HTTP/1.1\r\n" + HOST + b"\r\n", ("GET", "/a", 0)),
    "absolute": (b"GET http://localhost/a HTTP/1.1\r\n" + HOST + b"\r\n", ("GET", "/a", 0)),
    "HTTP/1.0": (b"GET /a HTTP/1.0\r\n\r\n", ("GET", "/a", 0)),
    "another protocol is offered": (
        b"GET /a HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", ("GET", "/a", 0),
    ),
    "another protocol, with a body": (
        b"POST /a HTTP/1.1\r\nUPGRADE: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\n"
        b"Content-Length: 27\r\n\r\nGET /admin HTTP/1.1\r\nA: b\r\n", ("POST", "/a", 27),
    ),
    "another protocol, with chunks": (
        b"POST /a HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", ("POST", "/a", 3),
    ),
    "asks before it sends": (
        b"POST /a HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc",
        ("POST", "/a", 3),
    ),
    "no path": (b"OPTIONS * HTTP/1.1\r\n\r\n", ("OPTIONS", "*", 0)),
    "line breaks first": (b"\r\n\r\nGET /a HTTP/1.1\r\n\r\n", ("GET", "/a", 0)),
}  # fmt: skip


@pytest.mark.parametrize("kind", FINE)
@pytest.mark.parametrize("sizes", [[], [1] * 200])
def test_odd_requests_are_served(kind: str, sizes: list[int]) -> None:
    data, asked = FINE[kind]

    async def scenario() -> None:
        served = Served()
        await served.feed(data, sizes)
        await served.feed(b"GET /next HTTP/1.1\r\n\r\n")
        is_last = kind == "HTTP/1.0"
        assert served.asked == [asked, *([] if is_last else [("GET", "/next", 0)])]
        assert [status for status in served.statuses() if status != 100] == [200] * (2 - is_last)

    asyncio.run(scenario())


BOMBS = {
    "header": (b"GET /ping HTTP/1.1\r\nX-A: ", b"a" * 1024, 431),
    "headers": (b"GET /ping HTTP/1.1\r\n", b"a:b\r\n" * 200, 431),
    "url": (b"GET /", b"a" * 1024, 414),
    "trailers": (
        b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n",
        b"a:b\r\n" * 200, 431,
    ),
    "extension": (
        b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"a" * 1024, 400,
    ),
    "chunks": (
        b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n" * 200, 400,
    ),
    "Anthropic's": (b"POST /v1/messages?a=b HTTP/1.1\r\nX-A: ", b"a" * 1024, 431),
}  # fmt: skip


@pytest.mark.parametrize("kind", BOMBS)
@settings(max_examples=5)
@given(size=st.integers(500, 300_000))
def test_what_has_no_end_is_read_no_further(kind: str, size: int) -> None:
    start, more, status = BOMBS[kind]
    data = start + more * 300

    async def scenario() -> None:
        served = Served()
        assert await served.feed(data, [size] * (len(data) // size)) <= 70_000 + size
        told = served.error()
        assert (served.statuses(), served.asked) == ([status], [])
        assert told.get("type") == ("error" if kind == "Anthropic's" else None)
        assert served.wire.is_ended and served.wire.is_closed
        served.connection.data_received(data)  # what is on its way already
        await settled()
        assert served.statuses() == [status]

    asyncio.run(scenario())


@given(st.lists(st.integers(1, 200), max_size=30))
@settings(max_examples=20)
def test_one_request_is_read_at_a_time(sizes: list[int]) -> None:
    async def scenario() -> None:
        served = Served()
        served.go_on.clear()
        posts = [
            b"POST /%d HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (number, number, b"x" * number)
            for number in range(5)
        ]
        data = b"".join(posts)
        num_read = await served.feed(data, sizes)
        assert len(served.asked) == 1 and served.statuses() == []
        served.go_on.set()
        for _ in range(6):
            await settled()
        await served.feed(data[num_read:])
        for _ in range(6):
            await settled()
        assert [num_bytes for _, _, num_bytes in served.asked] == [0, 1, 2, 3, 4]
        assert served.statuses() == [200] * 5

    asyncio.run(scenario())


def test_a_request_has_one_answer() -> None:
    async def scenario() -> None:
        served = Served()
        served.reads = False
        await served.feed(b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n")
        assert served.statuses() == [200] and served.wire.is_reading
        await served.feed(b"0\r\n" + b"a:b\r\n" * 300)
        assert served.statuses() == [200] and served.wire.is_closed

    asyncio.run(scenario())


def test_what_follows_an_answer_is_not_read_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REST_BYTES_MAX", 1000)
    reasons: list[str] = []

    async def scenario() -> None:
        served = Served()
        monkeypatch.setattr(served.connection, "hang_up", reasons.append)
        served.reads = False
        await served.feed(b"POST /a HTTP/1.1\r\nContent-Length: 2000\r\n\r\n")
        await served.feed(b"x" * 1000)
        assert served.statuses() == [200] and not reasons
        await served.feed(b"x")
        assert reasons == ["body"]

    asyncio.run(scenario())


@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
def test_an_older_client_reads_a_stream_to_its_end(method: bytes) -> None:
    async def scenario() -> None:
        served = Served()
        served.streams = True
        await served.feed(method + b" /a HTTP/1.0\r\n\r\n")
        head, _, body = served.wire.sent.partition(b"\r\n\r\n")
        assert b"transfer-encoding" not in head and b"connection: close" in head
        assert body == (b'partpartpart["/a",0,0]' if method == b"GET" else b"")
        assert served.wire.is_closed

    asyncio.run(scenario())


def test_a_trailer_is_no_header() -> None:
    async def scenario() -> None:
        served = Served()
        await served.feed(
            b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"1\r\n{\r\n0\r\nX-Session-Id: other\r\nAuthorization: Bearer other\r\n\r\n"
        )
        assert orjson.loads(served.wire.sent.rpartition(b"\r\n\r\n")[2]) == ["/a", 1, 1]

    asyncio.run(scenario())


def test_requests_that_wait_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    reasons: list[str] = []

    async def scenario() -> None:
        served = Served()
        monkeypatch.setattr(served.connection, "hang_up", reasons.append)
        served.go_on.clear()
        await served.feed(b"GET /a HTTP/1.1\r\n\r\n")
        served.connection.data_received(b"GET /b HTTP/1.1\r\n\r\n" * 40_000)
        assert served.asked == [("GET", "/a", 0)] and reasons == ["pipeline"]

    asyncio.run(scenario())
