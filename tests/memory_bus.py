"""A bus between what runs in one event loop, for tests of one service's shell."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

from shared.errors import NobodyListens
from shared.wire.messages import decode, encode
from shared.wire.subjects import Subject


class MemoryBus:
    """Passes messages to handlers by subject, encoded and decoded as on the wire.

    Attributes:
        published: everything that was, with its subject.
    """

    is_open = True
    connected = True
    steady_for_s = 1e9
    payload_bytes_max = 1 << 20

    def __init__(self) -> None:
        self._handlers: dict[str, list[Callable[[Any], None]]] = defaultdict(list)
        self._servers: dict[str, Callable[[bytes], Awaitable[bytes]]] = {}
        self.published: list[tuple[Subject[Any, Any], Any]] = []
        self.num_drained = 0

    async def subscribe(
        self, subject: Subject[Any, Any], handler: Callable[[Any], None], *ids: str
    ) -> None:
        self._handlers[subject.name(*ids)].append(handler)

    async def serve(
        self, subject: Subject[Any, Any], handler: Callable[[Any], Awaitable[Any]], *ids: str
    ) -> None:
        async def answer(data: bytes) -> bytes:
            return encode(await handler(decode(subject.request, data)))

        self._servers[subject.name(*ids)] = answer

    async def serve_tenants(self, *_: object, **__: object) -> None:
        """No tenant comes over NATS."""

    serve_raw = serve_tenants

    async def publish(self, subject: Subject[Any, Any], message: Any, *ids: str) -> None:
        received = decode(subject.request, encode(message))
        self.published.append((subject, received))
        for handler in self._handlers[subject.name(*ids)]:
            asyncio.get_running_loop().call_soon(handler, received)

    async def request(
        self, subject: Subject[Any, Any], message: Any, *ids: str, **_: object
    ) -> Any:
        server = self._servers.get(subject.name(*ids))
        if server is None:
            raise NobodyListens(f"no server of {subject.name(*ids)}")
        await asyncio.sleep(0)
        return decode(subject.reply, await server(encode(message)))

    def on_reconnect(self, _: Callable[[], None]) -> None:
        """It never breaks."""

    async def flush(self) -> None:
        """Nothing waits."""

    async def drain(self) -> None:
        self.num_drained += 1
