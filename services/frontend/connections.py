"""Connections as uvicorn has them, but with an end to every wait for who is at the other end.

Cores decide (`core.patience`, `core.crowd`). One sweep a second looks at all connections, so that
none needs a timer of its own.
"""

import asyncio
import logging
import socket
import struct
from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from typing import Any, cast

from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from services.frontend import telemetry
from services.frontend.config import FrontendConfig
from services.frontend.core.crowd import Crowd
from services.frontend.core.patience import AttentiveClock, Patience, PatienceLimits, Reason
from services.frontend.errors import NoHttp, RequestTooSlow, error_body
from shared.clock import Clock
from shared.errors import SymphonyError
from shared.sparsely import Sparsely

log = logging.getLogger(__name__)

SWEEP_S = 1.0
NUM_ACKED_AT = 120  # tcpi_bytes_acked in Linux' struct tcp_info, 64 bits
RESET_AT_CLOSE = struct.pack("ii", 1, 0)  # struct linger: the kernel sends nothing more either
WHY = {
    "head": "the request's head took too long",
    "body": "the request's body took too long",
}


class Connections:
    """All of a server's connections.

    Args:
        sweep_s: between two looks at them; limits hold to this precision.
    """

    def __init__(self, config: FrontendConfig, clock: Clock, sweep_s: float = SWEEP_S) -> None:
        self.limits = PatienceLimits(
            request_s=config.slow_request_s, reader_s=config.stalled_reader_s
        )
        self.crowd = Crowd(config.connections_per_address)
        # Never coarser than the limits.
        self._sweep_s = min(sweep_s, config.slow_request_s / 4, config.stalled_reader_s / 4)
        self._clock = clock
        self._attentive = AttentiveClock(self._sweep_s, clock.now_ns() / 1e9)
        self._sparsely = Sparsely()
        self._open: set[Connection] = set()

    @property
    def protocol(self) -> type[asyncio.Protocol]:
        """What uvicorn calls for each connection."""
        return cast(type[asyncio.Protocol], partial(Connection, self))

    def now_s(self) -> float:
        """The time as `core.patience` is told it."""
        return self._attentive.attentive_s(self._clock.now_ns() / 1e9)

    def add(self, connection: "Connection") -> bool:
        """Whether there is room for it; if so it is looked after."""
        if not self.crowd.enter(connection.host):
            self.count("crowd", connection.host)
            return False
        self._open.add(connection)
        return True

    def remove(self, connection: "Connection") -> None:
        """It has ended; one that was never added is fine."""
        if connection in self._open:
            self._open.remove(connection)
            self.crowd.leave(connection.host)

    def count(self, reason: str, host: str | None) -> None:
        """One was hung up on: tell of it."""
        telemetry.HUNG_UP.labels(reason).inc()
        if num := self._sparsely.hear(reason, self._clock.now_ns()):
            log.warning("hung up", extra={"reason": reason, "num": num, "client": host})

    async def run(self) -> None:
        """Look at all of them for ever."""
        while True:
            await asyncio.sleep(self._sweep_s)
            self._attentive.on_tick(self._clock.now_ns() / 1e9)
            now_s = self.now_s()
            for connection in list(self._open):
                connection.look(now_s)


class Connection(HttpToolsProtocol):
    """Tells `core.patience` what happens, and hangs up when it says so."""

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
        self._patience = Patience(all_of_them.limits, self._now_s())
        self._has_begun = self._is_hung_up = False

    @property
    def host(self) -> str | None:
        """Where it is from."""
        return self.client[0] if self.client is not None else None

    @property
    def is_behind(self) -> bool:
        """Whether more is ready to be sent than the other side has read."""
        return self.flow.write_paused

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if not self._all.add(self):
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._patience.on_bytes(self._now_s())
        super().data_received(data)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._has_begun = True
        self._patience.on_begin(self._now_s())
        self.scope["state"]["connection"] = self

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._patience.on_head(self._now_s())

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._patience.on_body(len(body))

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._patience.on_request_end()

    def on_response_complete(self) -> None:
        self._patience.on_answered(self._now_s())
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, unless something is being answered: nothing more of that can be
        sent, for its client would take the one for the other.
        """
        cycle = self.cycle
        if cycle is None or cycle.response_complete or not cycle.response_started:
            self.transport.write(_answer(NoHttp(msg)))
        self.transport.close()

    def look(self, now_s: float) -> None:
        """Hang up if it is time to."""
        if self.transport.get_write_buffer_size() == 0:
            self._patience.on_all_sent()
        elif self._patience.is_unread_too_long(self._num_acked(), now_s):
            self.hang_up("reader")
            return
        if not self.transport.is_closing():
            reason = self._patience.awaits_too_long(now_s)
            if reason is not None:
                self._give_up(reason)

    def hang_up(self, reason: str) -> None:
        """End it at once. What was not read is thrown away, by the kernel too."""
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
            scope = None if reason == "head" else self.scope
            self.transport.write(_answer(RequestTooSlow(WHY[reason]), scope))
        self.transport.close()  # which tells the application too

    def _num_acked(self) -> int:
        """Bytes that the other side's kernel has taken."""
        info = self.transport.get_extra_info("socket").getsockopt(
            socket.IPPROTO_TCP, socket.TCP_INFO, NUM_ACKED_AT + 8
        )
        return int(struct.unpack_from("=Q", info, NUM_ACKED_AT)[0])


def _answer(error: SymphonyError, scope: Mapping[str, Any] | None = None) -> bytes:
    telemetry.HTTP_ERRORS.labels(str(error.http_status)).inc()
    status, body = HTTPStatus(error.http_status), error_body(error, scope)
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
