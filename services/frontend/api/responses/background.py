"""A response made in the background: acknowledged at once, then fetched by its id."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import TypeVar

from services.frontend.api.responses.writing import ResponseWriter
from services.frontend.api.text.delivery import add_all
from services.frontend.app import App
from services.frontend.core.sessions.stored_responses import LEASE_S, failed
from services.frontend.observability import telemetry
from services.frontend.sessions.store import StoreAway
from services.frontend.turns.hub import ClientGone
from shared.errors import NoCapacity, SymphonyError

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

PAUSE_S = 1.0


async def begin(app: App, writer: ResponseWriter) -> bytes:
    """Begin to make it. What is answered: that it waits.

    Raises:
        SymphonyError: it cannot be begun, or not be stored.
    """
    begun: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    app.storage.background.spawn(_make(app, writer, begun))
    return await begun


async def _make(app: App, writer: ResponseWriter, begun: asyncio.Future[bytes]) -> None:
    tenant, abandon = writer.generation.plan.owner.tenant, writer.generation.mailbox.abandon
    with ExitStack() as stack:
        try:
            with writer.generation:
                if not await writer.store("begin"):
                    raise NoCapacity("background: there is no room to store it")
                stack.enter_context(app.storage.background.running(tenant, writer.id, abandon))
                _answer(begun, writer.begun())
                await add_all(writer)
            is_stored = await _in_the_end(lambda: writer.store("rest"))
            word = failed("not_stored", "there was no room to store it, or what it follows is gone")
        except ClientGone:  # ended or deleted
            return
        except Exception as error:
            if not begun.done():
                begun.set_exception(error)
                return
            is_stored, word = False, _word_of(error)
        if not is_stored:
            telemetry.RESPONSES_NOT_STORED.inc()
            await _in_the_end(lambda: app.responses.say(tenant, writer.id, word))


def _word_of(error: Exception) -> bytes:
    if isinstance(error, SymphonyError):
        return failed(error.code, error.message)
    log.error("making a response in the background failed", exc_info=error)
    return failed(SymphonyError.code, "internal error")


def _answer(begun: asyncio.Future[bytes], answer: bytes) -> None:
    if not begun.done():  # else the client hung up
        begun.set_result(answer)


async def _in_the_end(ask: Callable[[], Awaitable[Answer]]) -> Answer | None:
    """What Redis answers, for whose return is waited as long as others wait for this response."""
    for _ in range(int(LEASE_S / PAUSE_S)):
        try:
            return await ask()
        except StoreAway:
            await asyncio.sleep(PAUSE_S)
    log.warning("a response made in the background is lost: Redis does not answer")
    return None
