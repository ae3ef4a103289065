"""Messages that wait to be published: one bounded queue with one consumer."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Generic, Literal, TypeVar

from services.frontend.observability import telemetry
from shared.errors import PeerUnavailable

log = logging.getLogger(__name__)

Send = Callable[[], Awaitable[None]]
Kind = Literal["submit", "cancel", "left"]
T = TypeVar("T")


class Outbox:
    """Messages in the order they came, so that a cancel never overtakes its submit and no handler
    waits for the bus.

    Messages for which there is no room are dropped and counted. A submit is sent again when its
    turn or job stays silent, and the end of an agent's turn need not be reported. A cancel is not
    sent again, so cancels have as much room again behind the others: each belongs to a submit
    before it.

    Args:
        submits_max: messages waiting at which no more submits are taken.
    """

    def __init__(self, submits_max: int) -> None:
        assert submits_max > 0
        self._max: dict[Kind, int] = {
            "submit": submits_max, "cancel": 2 * submits_max, "left": submits_max
        }  # fmt: skip
        self._queue: asyncio.Queue[Send] = asyncio.Queue(2 * submits_max)

    def put(self, kind: Kind, send: Send) -> bool:
        """Add a message, as the call that sends it, or drop it if there is no room. Returns whether
        there was."""
        if self._queue.qsize() >= self._max[kind]:
            telemetry.UNSENT.labels(kind).inc()
            return False
        self._queue.put_nowait(send)
        return True

    async def run(self) -> None:
        """Publish for ever."""
        while True:
            send = await self._queue.get()
            try:
                await send()
            except (PeerUnavailable, ValueError) as error:
                # Silence leads to another submit. ValueError: a peer's id fits into no subject.
                log.warning("not published", extra={"error": str(error)})
            finally:
                self._queue.task_done()

    async def flush(self, patience_s: float) -> None:
        """Wait until everything is sent, but no longer than this."""
        try:
            await asyncio.wait_for(self._queue.join(), patience_s)
        except TimeoutError:
            log.warning("stopping with unsent messages", extra={"num": self._queue.qsize()})


class Submits(Generic[T]):
    """Submits that are sent together: all that come before the outbox reaches the first of them.

    Args:
        send: publishes them.
        num_max: that may wait; others are dropped and counted, as in the outbox.
    """

    def __init__(
        self, outbox: Outbox, send: Callable[[list[T]], Awaitable[None]], num_max: int
    ) -> None:
        self._outbox = outbox
        self._send = send
        self._num_max = num_max
        self._waiting: list[T] = []

    def put(self, message: T) -> None:
        """Add one behind what was put into the outbox before."""
        if len(self._waiting) >= self._num_max:
            telemetry.UNSENT.labels("submit").inc()
        elif self._waiting or self._outbox.put("submit", self._send_all):
            self._waiting.append(message)

    async def _send_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        await self._send(waiting)
