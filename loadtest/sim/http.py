"""HTTP between simulated clients and a frontend: requests go into its ASGI application, answers
come back in order and a little later, and connections break where their process dies.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Protocol

from starlette.types import ASGIApp, Message, Scope

from loadtest.sim.loop import SimLoop
from loadtest.sim.timeline import MS, SECOND, Action, Timeline

WAY_MAX_NS = MS  # of bytes between a client and a frontend
GOES_ON_MAX_NS = 3 * SECOND  # of a request whose client hung up: Redis may be waited for
SHUTDOWN_S = 2.0  # after the drain: as `services.frontend.http.server` has it
PORT = 8080


class Host(Protocol):
    """The process that serves."""

    life: int
    is_up: bool
    loop: SimLoop

    def run(self, life: int, action: Action) -> None:
        """Do it now or after the thaw, if this life still lasts."""

    def later(self, delay_ns: int, action: Action) -> None:
        """Do it in `delay_ns`, in this life."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Attributes:
    address: of the client.
    """

    path: str
    body: bytes
    address: str
    headers: dict[str, str] = field(default_factory=dict)
    method: str = "POST"


class Reader(Protocol):
    """A client that waits for an answer."""

    def on_status(self, status: int) -> None:
        """The answer begins."""

    def on_data(self, data: bytes) -> None:
        """A part of its body."""

    def on_end(self) -> None:
        """It is complete."""

    def on_broken(self, *, is_refused: bool) -> None:
        """The connection broke before that; refused: before anything was sent."""


class SimHttp:
    """`services.frontend.http.server.HttpServer` of one life of a process.

    Args:
        drain_s: how long open requests may take after `stop`.
    """

    url = f"http://127.0.0.1:{PORT}"

    def __init__(self, loop: SimLoop, drain_s: float) -> None:
        self._loop = loop
        self._drain_s = drain_s
        self._api: ASGIApp | None = None
        self._stopped = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_listening(self) -> bool:
        """Whether it takes new requests."""
        return self._api is not None and not self._stopped.is_set()

    async def serve(self, api: ASGIApp) -> None:
        self._api = api
        await self._stopped.wait()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=self._drain_s + SHUTDOWN_S)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)

    def stop(self) -> None:
        self._stopped.set()

    def accept(self, exchange: "Exchange") -> None:
        """A request is there."""
        assert self._api is not None
        task = self._loop.create_task(exchange.serve(self._api))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class Exchange:
    """One request and its answer, on a connection of its own."""

    def __init__(
        self,
        timeline: Timeline,
        random: Random,
        host: Host,
        request: Request,
        reader: Reader,
        on_over: Callable[["Exchange"], None],
    ) -> None:
        self._timeline = timeline
        self._random = random
        self._host = host
        self._life = host.life
        self._request = request
        self._reader: Reader | None = reader
        self._on_over = on_over
        self._gone: asyncio.Event | None = None  # while it is served
        self._has_hung_up = False
        self._is_body_read = False
        self._is_complete = False
        self._is_over = False
        self._arrives_at_ns = 0

    def send(self, begin: Action) -> None:
        """`begin` is called at the process when the request is there."""
        there_ns = self._random.randrange(WAY_MAX_NS)
        self._timeline.after(there_ns, partial(self._host.run, self._life, begin))

    def hang_up(self) -> None:
        """The client goes away: it reads no more, and the process hears of it."""
        self._reader, self._has_hung_up = None, True
        self._host.run(self._life, self._notice)
        self._on_over(self)

    def break_off(self, *, is_refused: bool = False) -> None:
        """The connection breaks, and the client sees that."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.on_broken(is_refused=is_refused)
        self._on_over(self)

    async def serve(self, api: ASGIApp) -> None:
        """Answer, as uvicorn does: without a complete answer the connection is closed."""
        self._gone = asyncio.Event()
        if self._has_hung_up:
            self._gone.set()
        try:
            await api(self._scope(), self._receive, self._send)
        finally:
            self._is_over = True
            self._gone.set()
            if not self._is_complete:
                self._deliver(self.break_off)

    def _notice(self) -> None:
        if self._gone is not None:
            self._gone.set()
        if not self._is_over:
            self._host.later(GOES_ON_MAX_NS, self._check_over)

    def _check_over(self) -> None:
        path = self._request.path
        assert self._is_over, f"the client of {path} hung up, and its request goes on"

    def _scope(self) -> Scope:
        request = self._request
        headers = {
            "host": f"127.0.0.1:{PORT}",
            "content-type": "application/json",
            "content-length": str(len(request.body)),
            **request.headers,
        }
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": "http",
            "path": request.path,
            "raw_path": request.path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(name.lower().encode(), of.encode()) for name, of in headers.items()],
            "client": (request.address, 50_000),
            "server": ("127.0.0.1", PORT),
            "state": {},
        }

    async def _receive(self) -> Message:
        if not self._is_body_read:
            self._is_body_read = True
            return {"type": "http.request", "body": self._request.body, "more_body": False}
        assert self._gone is not None
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._deliver(partial(self._read, "on_status", message["status"]))
            return
        assert message["type"] == "http.response.body" and not self._is_complete
        if data := message.get("body", b""):
            self._deliver(partial(self._read, "on_data", data))
        if not message.get("more_body", False):
            self._is_complete = True
            self._deliver(self._end)

    def _deliver(self, action: Action) -> None:
        """What is sent arrives in order."""
        at_ns = self._timeline.now_ns + self._random.randrange(WAY_MAX_NS)
        self._arrives_at_ns = max(at_ns, self._arrives_at_ns)
        self._timeline.after(self._arrives_at_ns - self._timeline.now_ns, action)

    def _read(self, what: str, *arguments: Any) -> None:
        if self._reader is not None:
            getattr(self._reader, what)(*arguments)

    def _end(self) -> None:
        reader, self._reader = self._reader, None
        self._on_over(self)
        if reader is not None:
            reader.on_end()
