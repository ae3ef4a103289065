"""Conversations in Redis: items that their clients put there, and those of responses in them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from services.frontend.core.limits.quotas import TenantLimits
from services.frontend.core.sessions.response_items import ITEMS_MAX, REFERENCE, kind_of
from services.frontend.core.sessions.stored_responses import (
    CHAIN_BYTES_MAX,
    ItemPlace,
    decode_items,
    is_own_session,
    place_of_item,
)
from services.frontend.sessions.conversation_scripts import (
    CHANGE,
    DROP_ITEM,
    FIELDS,
    READ_CONVERSATION,
)
from services.frontend.sessions.store import SessionStore
from shared.errors import InvalidRequest, NoCapacity, NotFound
from shared.ids import SessionId, TenantId
from shared.wire.sessions import responses_redis_key, session_mark

REFERENCES_MAX = 512  # to different responses and conversations' items
What = Literal["create", "update", "add"]


class ConversationFull(NoCapacity):
    """There is no room to keep more of it."""

    code = "conversation_not_stored"


@dataclass(frozen=True, slots=True)
class StoredConversation:
    """Attributes:
    about: when it was made, and its metadata.
    items: as they are listed.
    num_bytes: of those, as they are stored.
    """

    about: dict[str, Any]
    items: list[dict[str, Any]]
    num_bytes: int


class ConversationStore:
    """Reads and writes of conversations, each of which is a session."""

    def __init__(self, sessions: SessionStore) -> None:
        self._sessions = sessions

    async def change(
        self,
        tenant: TenantId,
        session_id: SessionId,
        limits: TenantLimits,
        what: What,
        *,
        about: dict[str, Any] | None = None,
        items: Sequence[dict[str, Any]] = (),
    ) -> None:
        """Make it, or change what is known about it, or add items, which have ids.

        Raises:
            NotFound: there is no such conversation.
            ConversationFull: there is no room for it.
            InvalidRequest: it would be too long.
            StoreAway: Redis does not answer.
        """
        epoch = (await self._sessions.get(tenant, session_id)).epoch
        data = b"" if about is None else orjson.dumps(about)
        more = [part for item in items for part in (item["id"], orjson.dumps(item))]
        limit = (CHAIN_BYTES_MAX, ITEMS_MAX)
        done = await self._sessions.keep(
            CHANGE, tenant, session_id, epoch, data, limits, what, *limit, *more, is_needed=False
        )
        if done > 0:
            return
        if done < 0:
            raise InvalidRequest(
                f"items: a conversation has at most {ITEMS_MAX} items and {CHAIN_BYTES_MAX} bytes",
                "items",
            )
        if what != "create":
            await self.read(tenant, session_id)
        raise ConversationFull("there is no room to keep the conversation")

    async def read(self, tenant: TenantId, session_id: str) -> StoredConversation:
        """All of it.

        Raises:
            NotFound: there is no such conversation.
            StoreAway: Redis does not answer.
        """
        found: list[bytes] = []
        if is_own_session(SessionId(session_id)):
            key = responses_redis_key(tenant, session_mark(SessionId(session_id)))
            command = ("eval", READ_CONVERSATION, 1, key)
            found = await self._sessions.do(*command, is_needed=False)
        if not found:
            raise no_conversation(session_id)
        about, *items = (orjson.loads(data) for data in (found[0], *filter(None, found[2::2])))
        return StoredConversation(about, items, sum(map(len, found)))

    async def drop_item(self, tenant: TenantId, session_id: str, item_id: str) -> None:
        """Delete an item.

        Raises:
            NotFound: there is none.
            StoreAway: Redis does not answer.
        """
        command = ("eval", DROP_ITEM, 0, tenant, session_id, item_id)
        is_own = is_own_session(SessionId(session_id))
        if not is_own or not await self._sessions.do(*command):
            raise no_item(item_id)
        self._sessions.on_deleted()

    async def resolved(
        self, tenant: TenantId, items: Iterable[Any], take_room: Callable[[int], None]
    ) -> list[Any]:
        """Items with those in place of references that they are to.

        Args:
            take_room: for so many bytes, before they are looked at; may raise.

        Raises:
            InvalidRequest: one of them is not stored; or there are too many.
            StoreAway: Redis does not answer.
        """
        given = list(items)
        wanted: dict[str, ItemPlace] = {}
        for at, item in enumerate(given):
            if isinstance(item, dict) and kind_of(item) == REFERENCE:
                name = item.get("id")
                place = place_of_item(name) if isinstance(name, str) else None
                if place is None:
                    raise _unknown_item(at, name)
                wanted[str(name)] = place
        if not wanted:
            return given
        found = await self._found(tenant, wanted, take_room)
        for at, item in enumerate(given):
            if isinstance(item, dict) and kind_of(item) == REFERENCE:
                if item["id"] not in found:
                    raise _unknown_item(at, item["id"])
                given[at] = found[item["id"]]
        return given

    async def _found(
        self, tenant: TenantId, wanted: dict[str, ItemPlace], take_room: Callable[[int], None]
    ) -> dict[str, dict[str, Any]]:
        """Stored items by their ids."""
        fields: dict[str, list[str]] = {}  # by mark
        for name, place in wanted.items():
            field = _field(name, place)
            of_mark = fields.setdefault(place.mark, [])
            if field not in of_mark:
                of_mark.append(field)
        if sum(map(len, fields.values())) > REFERENCES_MAX:
            raise InvalidRequest(
                f"input: references to more than {REFERENCES_MAX} responses", "input"
            )
        data: dict[str, bytes] = {}
        num_bytes = 0
        for mark, names in fields.items():
            key, left = responses_redis_key(tenant, mark), CHAIN_BYTES_MAX - num_bytes
            answer = await self._sessions.do("eval", FIELDS, 1, key, left, *names, is_needed=False)
            if not answer:
                raise InvalidRequest(
                    f"input: references to more than {CHAIN_BYTES_MAX} bytes", "input"
                )
            num_bytes += sum(map(len, answer))
            take_room(num_bytes)
            data |= dict(zip(names, answer, strict=True))
        made = {name: _item_in(data[_field(name, place)], place) for name, place in wanted.items()}
        return {name: item for name, item in made.items() if item is not None}


def no_conversation(session_id: str) -> NotFound:
    """The error of an id that is none."""
    return NotFound(f"Conversation with id {session_id[:64]!r} not found.", "conversation_id")


def no_item(item_id: str) -> NotFound:
    """The error of an item's id that is none."""
    return NotFound(f"Item with id {item_id[:64]!r} not found.", "item_id")


def _field(name: str, place: ItemPlace) -> str:
    return f":item:{name}" if place.response_id is None else f"{place.response_id}:items"


def _item_in(data: bytes, place: ItemPlace) -> dict[str, Any] | None:
    if not data:
        return None
    if place.response_id is None:
        item: dict[str, Any] = orjson.loads(data)
        return item
    decoded = decode_items(data)
    if decoded is None:
        return None
    items = [*decoded[0], *decoded[1]]
    return items[place.number] if place.number < len(items) else None


def _unknown_item(at: int, name: Any) -> InvalidRequest:
    where, known = f"input[{at}].id", str(name)[:64]
    return InvalidRequest(
        f"{where}: Item with id {known!r} not found: not stored, deleted or expired",
        where,
        code="item_not_found",
    )
