"""Events of responses that are streamed in the background: to the client that asked, while it
reads, and into Redis, from where any frontend sends them again.
"""

import asyncio
import zlib
from collections.abc import AsyncGenerator, Iterator
from contextlib import suppress
from typing import Any

import orjson

from services.frontend.api.text.items import named_event
from services.frontend.app import App
from services.frontend.core.sessions.stored_responses import EVENTS_BYTES_MAX, EventsPart
from services.frontend.sessions.store import StoreAway
from services.frontend.turns.hub import ClientGone
from shared.errors import InvalidRequest, NoCapacity
from shared.ids import SessionId, TenantId

FLUSH_NS = 200_000_000  # between writes of events to Redis
POLL_S = 0.2  # between looks for more
END_POLLS = 10  # for the last event of a response that is there
AWAY_MAX = 25  # polls that Redis does not answer
BETWEEN = b"\n\n"
LAST = ("response.completed", "response.incomplete", "response.failed")


class Feed:
    """Events for one reader, as they are made. What the reader leaves is bounded: it is hung up on,
    and can ask for the events again."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._num_bytes = 0
        self._is_over = self._is_gone = False
        self._changed = asyncio.Event()

    def put(self, chunks: list[bytes]) -> None:
        """Add events."""
        if self._is_gone:
            return
        self._chunks += chunks
        self._num_bytes += sum(map(len, chunks))
        if self._num_bytes > EVENTS_BYTES_MAX:
            self.leave()
        self._changed.set()

    def end(self) -> None:
        """No event comes behind those."""
        self._is_over = True
        self._changed.set()

    def leave(self) -> None:
        """The reader is gone, or hung up on."""
        self._is_gone, self._chunks = True, []
        self._changed.set()

    async def chunks(self) -> AsyncGenerator[list[bytes], None]:
        """All of them, those that came together in one list.

        Raises:
            ClientGone: the reader is gone.
        """
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._is_gone:
                raise ClientGone
            chunks, self._chunks, self._num_bytes = self._chunks, [], 0
            if chunks:
                yield chunks
            if self._is_over and not self._chunks:
                return


class EventLog:
    """Events of one response in Redis, written together a few times a second. Where there is no
    room for more, it ends: the last event can be made from the response.

    Args:
        epoch: of the session, when the turn began.
    """

    def __init__(
        self, app: App, tenant: TenantId, session_id: SessionId, epoch: str, response_id: str
    ) -> None:
        self._app = app
        self._of = tenant, session_id, epoch, response_id
        self._waiting: list[bytes] = []
        self._num_parts = 0
        self._next_at_ns = 0
        self._is_full = False

    async def add(self, chunks: list[bytes], *, is_last: bool = False) -> None:
        """Add events; they are written now, or with the next ones."""
        if self._is_full:
            return
        self._waiting += chunks
        now_ns = self._app.clock.now_ns()
        if not is_last and now_ns < self._next_at_ns:
            return
        self._next_at_ns = now_ns + FLUSH_NS
        data = BETWEEN.join(self._waiting)
        part, limits = zlib.compress(data, 1), self._app.quotas.of(self._of[0])
        try:
            kept = await self._app.responses.add_events(*self._of, self._num_parts, part, limits)
        except StoreAway:
            self._waiting, self._is_full = [data], len(data) > EVENTS_BYTES_MAX
            return
        self._waiting = []
        self._num_parts += 1
        self._is_full = not kept


async def resumed(
    app: App, tenant: TenantId, response_id: str, starting_after: int, gone: asyncio.Event
) -> AsyncGenerator[list[bytes], None]:
    """Events of a response with larger numbers than this, until its last.

    Args:
        gone: set when the reader is.

    Raises:
        ClientGone: the reader is gone.
        NotFound: there is no such response.
        InvalidRequest: it has no events.
        StoreAway: Redis does not answer.
    """
    number, last_sent, polls_left = 0, -1, END_POLLS
    while True:
        part = await _part(app, tenant, response_id, number)
        if not part.has_events and not number:
            raise InvalidRequest(
                "stream: only a response that was made with background and stream has events",
                "stream",
            )
        chunks = []
        for event in _events_in(part.parts):
            fields = _fields_of(event)
            last_sent = fields["sequence_number"]
            if last_sent > starting_after:
                chunks.append(event)
            if fields["type"] in LAST:
                yield chunks or [event]
                return
        number += len(part.parts)
        if chunks:
            yield chunks
        if part.parts:
            continue
        if not part.is_being_made:
            polls_left -= 1
            if polls_left < 0:
                yield [await _last_event(app, tenant, response_id, last_sent + 1)]
                return
        with suppress(TimeoutError):
            await asyncio.wait_for(gone.wait(), POLL_S)
            raise ClientGone


async def _part(app: App, tenant: TenantId, response_id: str, number: int) -> EventsPart:
    for _ in range(AWAY_MAX):
        with suppress(StoreAway):
            return await app.responses.events(tenant, response_id, number)
        await asyncio.sleep(POLL_S)
    raise NoCapacity("Redis does not answer: ask again")


def _events_in(parts: list[bytes]) -> Iterator[bytes]:
    for part in parts:
        yield from zlib.decompress(part).split(BETWEEN)


def _fields_of(event: bytes) -> Any:
    return orjson.loads(event.partition(b"data: ")[2])


async def _last_event(app: App, tenant: TenantId, response_id: str, number: int) -> bytes:
    """Of a response whose events end before: it was cancelled, lost, or too long."""
    response = (await app.responses.read(tenant, response_id)).whole()
    status = response["status"]
    kind = f"response.{status}" if status in {"completed", "incomplete"} else "response.failed"
    return named_event(kind, sequence_number=number, response=response)
