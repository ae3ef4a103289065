"""Connections as uvicorn has them, with a timeout on every wait for the client.

Cores decide (`core.http.client_timeouts`, `core.http.address_limits`). One sweep a second looks at
all connections, so that none needs a timer of its own.
"""

import asyncio
import logging
import resource
import socket
import struct
from collections.abc import Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, cast

import httptools
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from services.frontend.config import FrontendConfig
from services.frontend.core.http.address_limits import AddressLimits
from services.frontend.core.http.client_timeouts import (
    ClientTimeouts,
    Reason,
    RequestTooSlow,
    ResponsiveClock,
    TimeoutLimits,
)
from services.frontend.core.http.framing import Framing
from services.frontend.http.errors import NoHttp, VersionUnknown, error_body
from services.frontend.observability import telemetry
from shared.errors import InvalidRequest, SymphonyError
from shared.runtime.clock import Clock
from shared.runtime.sparsely import Sparsely

log = logging.getLogger(__name__)

SWEEP_S = 1.0  # between two checks of all connections; limits hold to this precision
LINGER_S = 1.0  # a refusal is there to be read before the connection is reset
CONNECTIONS_MAX = 16_384
OTHER_FILES = 256  # of the process
HELD_BYTES_MAX = 512 * 1024  # of requests that wait for the answer to the one before them
REST_BYTES_MAX = 32_000_000  # of a body whose request has its answer already
VERSIONS = ("1.1", "1.0")
NUM_ACKED_AT = 120  # tcpi_bytes_acked in Linux' struct tcp_info, 64 bits
RESET_AT_CLOSE = struct.pack("ii", 1, 0)  # struct linger: the kernel sends nothing more either
WHY = {"head": "the request's head took too long", "body": "the request's body took too long"}


class Connections:
    """All of a server's connections, their limits and timeouts."""

    def __init__(self, config: FrontendConfig, clock: Clock) -> None:
        self.limits = TimeoutLimits(
            request_s=config.slow_request_s, reader_s=config.stalled_reader_s
        )
        self.address_limits = AddressLimits(
            config.connections_per_address, _connections_max(config)
        )
        # Never coarser than the limits.
        self._sweep_s = min(SWEEP_S, config.slow_request_s / 4, config.stalled_reader_s / 4)
        self._clock = clock
        self._responsive = ResponsiveClock(self._sweep_s, clock.now_ns() / 1e9)
        self._sparsely = Sparsely()
        self._open: set[Connection] = set()

    @property
    def protocol(self) -> type[asyncio.Protocol]:
        """What uvicorn calls for each connection."""
        return cast(type[asyncio.Protocol], partial(Connection, self))

    def now_s(self) -> float:
        """The time for `core.http.client_timeouts`, seconds."""
        return self._responsive.responsive_s(self._clock.now_ns() / 1e9)

    def add(self, connection: "Connection") -> bool:
        """Whether there is room for it; if so its timeouts run."""
        if not self.address_limits.enter(connection.host):
            self.count("crowd", connection.host)
            return False
        self._open.add(connection)
        return True

    def remove(self, connection: "Connection") -> None:
        """It has ended; one that was never added is fine."""
        if connection in self._open:
            self._open.remove(connection)
            self.address_limits.leave(connection.host)

    def count(self, reason: str, host: str | None) -> None:
        """Count and log a connection that this side closed."""
        telemetry.HUNG_UP.labels(reason).inc()
        if num := self._sparsely.hear(reason, self._clock.now_ns()):
            log.warning("hung up", extra={"reason": reason, "num": num, "client": host})

    async def run(self) -> None:
        """Check all of them for ever."""
        while True:
            await asyncio.sleep(self._sweep_s)
            self._responsive.on_tick(self._clock.now_ns() / 1e9)
            now_s = self.now_s()
            for connection in list(self._open):
                connection.look(now_s)


class Connection(HttpToolsProtocol):
    """Reports what happens to `core.http.client_timeouts`, and hangs up when that says so."""

    def __init__(
        self,
        all_of_them: Connections,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._all = all_of_them
        self._now_s = all_of_them.now_s
        self._timeouts = ClientTimeouts(all_of_them.limits, self._now_s())
        self._framing = Framing()
        self._held = b""  # came while an earlier request was being answered
        self._num_rest_bytes = 0
        self._has_begun = self._has_head = False
        self._is_hung_up = self._is_refused = False

    @property
    def host(self) -> str | None:
        """Its client's address."""
        return self.client[0] if self.client is not None else None

    @property
    def is_behind(self) -> bool:
        """Whether data waits because the client does not read."""
        return self.flow.write_paused

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if not self._all.add(self):
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.remove(self)
        self._held = b""
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_refused or self.transport.is_closing():
            return
        self._timeouts.on_bytes(self._now_s())
        if self._held:
            self._hold(self._held + data)
        else:
            self._feed(data)

    def _feed(self, data: bytes) -> None:
        """Pass data to the parser: one request, until that is answered."""
        self._unset_keepalive_if_required()
        at = 0
        try:
            while at < len(data) and not self.transport.is_closing():
                if self._is_answering and self._framing.is_between:
                    self._hold(data[at:])
                    return
                piece, at = self._framing.take(data, at)
                if piece:
                    self.parser.feed_data(piece)
        except InvalidRequest as error:
            self._refuse(error)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            ours = error.__context__  # raised by a callback of this class
            if not isinstance(ours, SymphonyError):
                ours = NoHttp("Invalid HTTP request received.")
            self._refuse(ours)

    def _hold(self, data: bytes) -> None:
        self._held = data
        self.flow.pause_reading()
        if len(data) > HELD_BYTES_MAX:
            self.hang_up("pipeline")

    def _go_on(self) -> None:
        """Take the next request, if it has come already."""
        data, self._held = self._held, b""
        if data and not self.transport.is_closing():
            self._feed(data)

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._has_begun, self._has_head = True, False
        self._num_rest_bytes = 0
        self._timeouts.on_begin(self._now_s())
        self.scope["state"]["connection"] = self

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._has_head:  # else it is a trailer, which may not change what was decided
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.get_http_version() not in VERSIONS:
            raise VersionUnknown
        super().on_headers_complete()
        self._has_head = True
        self._framing.on_head(_body_bytes(self.headers))
        self._timeouts.on_head(self._now_s())

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if cycle.scope["http_version"] == "1.0":
            app = partial(_without_chunks, app, cycle)
        super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._timeouts.on_body(len(body), self._now_s())
        if self.cycle.response_complete:
            self._num_rest_bytes += len(body)
            if self._num_rest_bytes > REST_BYTES_MAX:
                self.hang_up("body")

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._framing.on_end()
        self._timeouts.on_request_end()

    def on_response_complete(self) -> None:
        self._timeouts.on_answered(self._now_s())
        super().on_response_complete()
        if self._held:
            self.loop.call_soon(self._go_on)

    def _refuse(self, error: SymphonyError) -> None:
        """Answer with an error, unless an answer has begun: its client would take the error for a
        part of that. Nothing more is read.
        """
        self._is_refused = True
        if self._has_head:
            cycle = self.cycle
            cycle.disconnected = True
            cycle.message_event.set()
            if cycle.response_started:
                self.transport.close()
                return
        self.transport.write(_answer(error, self._where()))
        self.flow.pause_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        # Closed with something unread the kernel resets the connection, and the answer may be lost.
        self.loop.call_later(LINGER_S, self.transport.close)

    def _where(self) -> Mapping[str, Any] | None:
        """The scope of the request that an error is about, as far as it was read."""
        if not self._has_begun:
            return None
        path = self.url.partition(b"?")[0].decode("latin-1")
        return {"path": path, "state": {}} | self.scope

    def look(self, now_s: float) -> None:
        """Hang up if a timeout is over."""
        if self.transport.get_write_buffer_size() == 0:
            self._timeouts.on_all_sent()
        elif self._timeouts.is_unread_too_long(self._num_acked(), now_s):
            self.hang_up("reader")
            return
        if not (self._is_refused or self.transport.is_closing()):
            reason = self._timeouts.awaits_too_long(now_s)
            if reason is not None:
                self._give_up(reason)

    def hang_up(self, reason: str) -> None:
        """Reset it at once. What was not read is discarded, by the kernel too."""
        if self._is_hung_up:
            return
        self._is_hung_up = True
        self._all.count(reason, self.host)
        self.transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE
        )
        self.transport.abort()

    def _give_up(self, reason: Reason) -> None:
        """End it with 408 if there is a request to be answered."""
        self._all.count(reason, self.host)
        is_owed = self._has_begun if reason == "head" else not self.cycle.response_started
        if is_owed:
            self.transport.write(_answer(RequestTooSlow(WHY[reason]), self._where()))
        self.transport.close()  # the application is notified too

    def _num_acked(self) -> int:
        """Bytes that the other side's kernel has taken."""
        info = self.transport.get_extra_info("socket").getsockopt(
            socket.IPPROTO_TCP, socket.TCP_INFO, NUM_ACKED_AT + 8
        )
        return int(struct.unpack_from("=Q", info, NUM_ACKED_AT)[0])


async def _without_chunks(
    app: ASGIApp, cycle: RequestResponseCycle, scope: Scope, receive: Receive, send: Send
) -> None:
    """Have HTTP/1.0, which knows no chunks, read an answer without a length until its end."""
    is_stream = False

    async def send_plain(message: Message) -> None:
        nonlocal is_stream
        if message["type"] == "http.response.start":
            is_stream = b"content-length" not in dict(message["headers"])
            if is_stream:
                cycle.chunked_encoding = False
        elif is_stream:
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    await app(scope, receive, send_plain)


def _connections_max(config: FrontendConfig) -> int:
    """Connections at once, of all addresses: limited by memory and by the process's open files."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    room = files - OTHER_FILES if files != resource.RLIM_INFINITY else CONNECTIONS_MAX
    return max(min(max(CONNECTIONS_MAX, 2 * config.requests_max), room), 1)


def _body_bytes(headers: Sequence[tuple[bytes, bytes]]) -> int | None:
    """How long a request's body is, bytes; None: it comes in chunks. The parser takes no head that
    says both.
    """
    named = dict(headers)
    return None if b"transfer-encoding" in named else int(named.get(b"content-length", b"0"))


def _answer(error: SymphonyError, scope: Mapping[str, Any] | None = None) -> bytes:
    telemetry.HTTP_ERRORS.labels(str(error.http_status)).inc()
    status, body = HTTPStatus(error.http_status), error_body(error, scope)
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
