"""What waits to be published: one bounded queue with one consumer."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Literal

from services.frontend import telemetry
from shared.errors import PeerUnavailable

log = logging.getLogger(__name__)

Send = Callable[[], Awaitable[None]]
Kind = Literal["submit", "cancel"]


class Outbox:
    """Messages in the order they came, so that a cancel never overtakes its submit and no handler
    waits for the bus.

    What finds no place is dropped and counted. A submit is sent again when its turn or job stays
    silent. A cancel is not, so cancels have as much room again behind the submits: each of them
    belongs to a submit before it.

    Args:
        submits_max: messages waiting at which no more submits are taken.
    """

    def __init__(self, submits_max: int) -> None:
        assert submits_max > 0
        self._max: dict[Kind, int] = {"submit": submits_max, "cancel": 2 * submits_max}
        self._queue: asyncio.Queue[Send] = asyncio.Queue(2 * submits_max)

    def put(self, kind: Kind, send: Send) -> None:
        """Add a message, told by what sends it, or drop it if there is no place."""
        if self._queue.qsize() >= self._max[kind]:
            telemetry.UNSENT.labels(kind).inc()
            return
        self._queue.put_nowait(send)

    async def run(self) -> None:
        """Publish for ever."""
        while True:
            send = await self._queue.get()
            try:
                await send()
            except PeerUnavailable as error:  # silence leads to another submit
                log.warning("not published", extra={"error": error.message})
            finally:
                self._queue.task_done()

    async def flush(self, patience_s: float) -> None:
        """Wait until everything is sent, but no longer than this."""
        try:
            await asyncio.wait_for(self._queue.join(), patience_s)
        except TimeoutError:
            log.warning("stopping with unsent messages", extra={"num": self._queue.qsize()})
