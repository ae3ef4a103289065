"""A response made in the background: acknowledged at once, or streamed while its client reads, then
fetched by its id.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, aclosing
from functools import partial
from typing import TypeVar

from fastapi import Response

from services.frontend.api.responses.events import EventLog, Feed
from services.frontend.api.responses.writing import ResponseWriter
from services.frontend.api.text.delivery import add_all, written
from services.frontend.app import App
from services.frontend.core.sessions.stored_responses import LEASE_S, ResponseLost, failed
from services.frontend.http.answers import EventStream, Json
from services.frontend.observability import telemetry
from services.frontend.sessions.store import StoreAway
from services.frontend.turns.hub import ClientGone
from shared.errors import NoCapacity, SymphonyError

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

PAUSE_S = 1.0


async def begin(app: App, writer: ResponseWriter) -> Response:
    """Begin to make it. What is answered: that it waits, or its events.

    Raises:
        SymphonyError: it cannot be begun, or not be stored.
    """
    begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    feed = Feed() if writer.is_streamed else None
    app.storage.background.spawn(_make(app, writer, begun, feed))
    await begun
    if feed is None:
        return Json(writer.begun())
    chunks = feed.chunks()
    return EventStream(await anext(chunks, []), chunks, feed.leave)


async def _make(
    app: App, writer: ResponseWriter, begun: asyncio.Future[None], feed: Feed | None
) -> None:
    tenant, abandon = writer.generation.plan.owner.tenant, writer.generation.mailbox.abandon
    events = None if feed is None else _Events(app, writer, feed)
    with ExitStack() as stack:
        if feed is not None:
            stack.callback(feed.end)
        error: SymphonyError | None = None
        try:
            with writer.generation:
                if not await writer.store("begin"):
                    raise NoCapacity("background: there is no room to store it")
                stack.enter_context(app.storage.background.running(tenant, writer.id, abandon))
                if events is not None:
                    await events.open()
                _begin(begun)
                await (add_all(writer) if events is None else events.send_all())
            await writer.join()
            is_stored = await _in_the_end(lambda: writer.store("rest"))
            if not is_stored:
                error = ResponseLost(
                    "not_stored", "there was no room to store it, or what it follows is gone"
                )
        except ClientGone:  # ended or deleted
            if events is not None:
                await events.send([writer.cancelled_chunk()])
            return
        except Exception as raised:
            if not begun.done():
                begun.set_exception(raised)
                return
            error = _as_error(raised)
        if events is not None:  # before the response is marked as ended, which takes no more
            await events.end(error)
        if error is not None:
            telemetry.RESPONSES_NOT_STORED.inc()
            word = failed(error)
            await _in_the_end(lambda: app.responses.say(tenant, writer.id, word))


class _Events:
    """A response's events, for who asked and for those who ask again."""

    def __init__(self, app: App, writer: ResponseWriter, feed: Feed) -> None:
        owner, claim = writer.generation.plan.owner, writer.generation.plan.prompt_of(0).claim
        assert owner.session_id is not None and claim is not None
        self._writer = writer
        self._feed = feed
        self._log = EventLog(app, owner.tenant, owner.session_id, claim.epoch, writer.id)

    async def open(self) -> None:
        """Send what comes before all items: the response's id."""
        await self.send(self._writer.opening())

    async def send_all(self) -> None:
        """Generate everything, and send it as it comes. In the context of its generation."""
        writer = self._writer
        async with aclosing(writer.generation.pieces()) as batches:
            async for pieces in batches:
                chunks: list[bytes] = []
                for piece in pieces:
                    chunks += await written(writer, piece, partial(writer.chunks, piece))
                if chunks:
                    await self.send(chunks)

    async def end(self, error: SymphonyError | None) -> None:
        """Send the last event."""
        writer = self._writer
        last = writer.last_chunks() if error is None else [writer.failure_chunk(error)]
        await self.send(last, is_last=True)

    async def send(self, chunks: list[bytes], *, is_last: bool = False) -> None:
        """Send these."""
        self._feed.put(chunks)
        await self._log.add(chunks, is_last=is_last)


def _as_error(error: Exception) -> SymphonyError:
    if isinstance(error, SymphonyError):
        return error
    log.error("making a response in the background failed", exc_info=error)
    return SymphonyError("internal error")


def _begin(begun: asyncio.Future[None]) -> None:
    if not begun.done():  # else the client hung up
        begun.set_result(None)


async def _in_the_end(ask: Callable[[], Awaitable[Answer]]) -> Answer | None:
    """What Redis answers, for whose return is waited as long as others wait for this response."""
    for _ in range(int(LEASE_S / PAUSE_S)):
        try:
            return await ask()
        except StoreAway:
            await asyncio.sleep(PAUSE_S)
    log.warning("a response made in the background is lost: Redis does not answer")
    return None
