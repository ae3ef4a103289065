"""Stored responses in Redis, with the sessions that they are of: they are forgotten together."""

from collections.abc import Callable
from typing import Any

from services.frontend.core.quotas import TenantLimits
from services.frontend.core.response_items import ITEMS_MAX
from services.frontend.core.stored_responses import (
    CHAIN_BYTES_MAX,
    CHAIN_MAX,
    RESPONSE_BYTES_MAX,
    Past,
    StoredResponse,
    decode_items,
    decode_stored,
    encode_stored,
    mark_in,
)
from services.frontend.response_scripts import CHAIN, DROP, STORE
from services.frontend.sessions import SessionStore, StoreAway
from shared.errors import InvalidRequest, NotFound
from shared.ids import SessionId, TenantId
from shared.sessions import (
    responses_redis_key,
    session_index_redis_key,
    session_sizes_redis_key,
)

FIELD = "previous_response_id"


class ResponseStore:
    """Reads and writes of responses. What is large may take its time: no turn waits for it."""

    def __init__(self, sessions: SessionStore) -> None:
        self._sessions = sessions

    async def put(
        self,
        tenant: TenantId,
        session_id: SessionId,
        generation: str,
        stored: StoredResponse,
        limits: TenantLimits,
    ) -> bool:
        """Store a response of a turn that began when the session's generation was this. Answers
        whether it is: not if it is too large, the session was deleted, or Redis is away.
        """
        data, items = encode_stored(stored)
        if len(data) + len(items) > RESPONSE_BYTES_MAX:
            return False
        ids = stored.response["id"], stored.response[FIELD] or ""
        more = (*ids, items, len(stored.items))
        try:
            return await self._sessions.keep(
                STORE, tenant, session_id, generation, data, limits, *more, is_needed=False
            )
        except StoreAway:
            return False

    async def past(
        self, tenant: TenantId, response_id: str, take_room: Callable[[int], None]
    ) -> Past:
        """What a response that follows this one goes on from.

        Args:
            take_room: for so many bytes, before they are looked at; may raise.

        Raises:
            InvalidRequest: there is no such response, or too much was said before.
            StoreAway: it cannot be told.
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
                f"{CHAIN_BYTES_MAX} bytes: begin anew",
                FIELD,
            )
        if end == b"missing":
            raise _unknown(response_id, detail.decode())
        take_room(sum(map(len, chain)))
        told = [decode_items(data) for data in reversed(chain)]
        known = [items for items in told if items is not None]
        if len(known) < len(told):
            raise _unknown(response_id, response_id)
        items = [item for given, said in known for item in (*given, *said)]
        return Past(SessionId(detail.decode()), response_id, items)

    async def read(self, tenant: TenantId, response_id: str) -> StoredResponse:
        """A response.

        Raises:
            NotFound: there is none.
            StoreAway: it cannot be told.
        """
        found: list[Any] = [None]
        if (mark := mark_in(response_id)) is not None:
            command = ("hmget", responses_redis_key(tenant, mark), response_id)
            found = await self._sessions.do(*command, f"{response_id}:items", is_needed=False)
        stored = None if None in found else decode_stored(*found)
        if stored is None:
            raise NotFound(f"Response with id {response_id!r} not found.", "response_id")
        return stored

    async def drop(self, tenant: TenantId, response_id: str) -> SessionId | None:
        """Delete a response. Answers its session, if that has no other.

        Raises:
            NotFound: there is none.
            StoreAway: it cannot be told.
        """
        found, session_id, is_last = 0, b"", 0
        if (mark := mark_in(response_id)) is not None:
            keys = (
                session_index_redis_key(tenant),
                session_sizes_redis_key(tenant),
                responses_redis_key(tenant, mark),
            )
            command = ("eval", DROP, len(keys), *keys, response_id)
            found, session_id, is_last = await self._sessions.do(*command)
        if not found:
            raise NotFound(f"Response with id {response_id!r} not found.", "response_id")
        self._sessions.on_deleted()
        return SessionId(session_id.decode()) if is_last else None


def _unknown(asked: str, missing: str) -> InvalidRequest:
    which = f"{missing!r}" if missing == asked else f"{missing!r}, before {asked!r},"
    return InvalidRequest(
        f"Previous response with id {which} not found: not stored, deleted or expired",
        FIELD,
        code="previous_response_not_found",
    )
