"""Stored responses in Redis, with the sessions that they are of: they are forgotten together."""

from collections.abc import Callable
from typing import Any, Literal

from services.frontend.core.limits.quotas import TenantLimits
from services.frontend.core.sessions.response_items import ITEMS_MAX
from services.frontend.core.sessions.stored_responses import (
    CHAIN_BYTES_MAX,
    CHAIN_MAX,
    EVENTS_BYTES_MAX,
    RESPONSE_BYTES_MAX,
    EventsPart,
    Past,
    StoredResponse,
    as_shown,
    decode_items,
    decode_stored,
    encode_stored,
    is_being_made,
    mark_in,
)
from services.frontend.sessions.response_scripts import (
    ADD_EVENTS,
    CHAIN,
    DROP,
    READ,
    SAY,
    STORE,
    TAIL,
)
from services.frontend.sessions.store import SessionStore
from shared.errors import InvalidRequest, NotFound
from shared.ids import SessionId, TenantId
from shared.wire.sessions import responses_redis_key

TAIL_BYTES = 256 * 1024  # of a stream's events that are read at once
FIELD = "previous_response_id"
Which = Literal["all", "begin", "rest"]  # of one made in the background the latter two


class ResponseStore:
    """Reads and writes of responses. What is large may take its time: no turn waits for it."""

    def __init__(self, sessions: SessionStore) -> None:
        self._sessions = sessions

    async def put(
        self,
        tenant: TenantId,
        session_id: SessionId,
        epoch: str,
        stored: StoredResponse,
        limits: TenantLimits,
        which: Which = "all",
    ) -> bool:
        """Store a response of a turn that began when the session's epoch was this. Answers
        whether it is: not if it is too large, the session was deleted, or what was begun was ended.

        Raises:
            StoreAway: Redis does not answer.
        """
        data, items = encode_stored(stored)
        if len(data) + len(items) > RESPONSE_BYTES_MAX:
            return False
        ids = stored.response["id"], stored.response[FIELD] or ""
        more = (*ids, items, len(stored.items), which)
        return bool(
            await self._sessions.keep(
                STORE, tenant, session_id, epoch, data, limits, *more, is_needed=False
            )
        )

    async def say(self, tenant: TenantId, response_id: str, word: bytes = b"") -> bool:
        """Store how a response that is made in the background ended; without a word, its heartbeat.
        Answers whether it was still being made: not cancelled, lost or deleted.

        Raises:
            StoreAway: Redis does not answer.
        """
        if (mark := mark_in(response_id)) is None:
            return False
        command = ("eval", SAY, 1, responses_redis_key(tenant, mark), response_id, word)
        return bool(await self._sessions.do(*command, is_needed=False))

    async def add_events(
        self,
        tenant: TenantId,
        session_id: SessionId,
        epoch: str,
        response_id: str,
        number: int,
        part: bytes,
        limits: TenantLimits,
    ) -> bool:
        """Store another part of the events of a response that is streamed in the background.
        Answers whether it is: not if there is no room, or it was ended.

        Raises:
            StoreAway: Redis does not answer.
        """
        more = (response_id, number, EVENTS_BYTES_MAX)
        kept = await self._sessions.keep(
            ADD_EVENTS, tenant, session_id, epoch, part, limits, *more, is_needed=False
        )
        return bool(kept)

    async def events(self, tenant: TenantId, response_id: str, number: int) -> EventsPart:
        """Parts of a response's events from this number on, as many as are there.

        Raises:
            NotFound: there is no such response.
            StoreAway: Redis does not answer.
        """
        found: list[Any] = [0]
        if (mark := mark_in(response_id)) is not None:
            command = ("eval", TAIL, 1, responses_redis_key(tenant, mark))
            found = await self._sessions.do(
                *command, response_id, number, TAIL_BYTES, is_needed=False
            )
        if not found[0]:
            raise unknown_response(response_id)
        _, word, now_s, has_events, *parts = found
        return EventsPart(parts, bool(has_events), is_being_made(word, float(now_s)))

    async def past(
        self, tenant: TenantId, response_id: str, take_room: Callable[[int], None]
    ) -> Past:
        """The conversation that a response to this one continues.

        Args:
            take_room: for so many bytes, before they are looked at; may raise.

        Raises:
            InvalidRequest: there is no such response, or too much was said before.
            StoreAway: Redis does not answer.
            NoCapacity: there is no room.
        """
        found = None
        if (mark := mark_in(response_id)) is not None:
            command = ("eval", CHAIN, 1, responses_redis_key(tenant, mark))
            limits = (CHAIN_MAX, CHAIN_BYTES_MAX, ITEMS_MAX)
            found = await self._sessions.do(*command, response_id, *limits, is_needed=False)
        end, detail, chain = found or (b"missing", response_id.encode(), [])
        if end == b"long":
            raise InvalidRequest(
                f"{FIELD}: it follows more than {CHAIN_MAX} responses, {ITEMS_MAX} items or "
                f"{CHAIN_BYTES_MAX} bytes: begin a new conversation",
                FIELD,
            )
        if end == b"unfinished":
            raise _refused(response_id, detail.decode(), "is not there, or was not made to its end")
        if end == b"missing":
            raise _unknown(response_id, detail.decode())
        take_room(sum(map(len, chain)))
        decoded = [decode_items(data) for data in reversed(chain)]
        known = [items for items in decoded if items is not None]
        if len(known) < len(decoded):
            raise _unknown(response_id, response_id)
        items = [item for given, said in known for item in (*given, *said)]
        return Past(SessionId(detail.decode()), response_id, items)

    async def read(self, tenant: TenantId, response_id: str) -> StoredResponse:
        """A response; of one that is made in the background, its state.

        Raises:
            NotFound: there is none.
            StoreAway: Redis does not answer.
        """
        stored = None
        if (mark := mark_in(response_id)) is not None:
            command = ("eval", READ, 1, responses_redis_key(tenant, mark), response_id)
            data, items, word, now_s = await self._sessions.do(*command, is_needed=False)
            if data is not None and items is not None:
                stored = decode_stored(data, items)
        if stored is None:
            raise unknown_response(response_id)
        return as_shown(stored, word, float(now_s))

    async def drop(self, tenant: TenantId, response_id: str) -> SessionId | None:
        """Delete a response. Answers its session, if that has no other.

        Raises:
            NotFound: there is none.
            StoreAway: Redis does not answer.
        """
        found, session_id, is_last = 0, b"", 0
        if (mark := mark_in(response_id)) is not None:
            command = ("eval", DROP, 0, tenant, mark, response_id)
            found, session_id, is_last = await self._sessions.do(*command)
        if not found:
            raise unknown_response(response_id)
        self._sessions.on_deleted()
        return SessionId(session_id.decode()) if is_last else None


def unknown_response(response_id: str) -> NotFound:
    """The error of an id that is none."""
    return NotFound(f"Response with id {response_id!r} not found.", "response_id")


def _unknown(asked: str, missing: str) -> InvalidRequest:
    return _refused(asked, missing, "not found: not stored, deleted or expired")


def _refused(asked: str, which: str, why: str) -> InvalidRequest:
    named = f"{which!r}" if which == asked else f"{which!r}, before {asked!r},"
    return InvalidRequest(
        f"Previous response with id {named} {why}", FIELD, code="previous_response_not_found"
    )
