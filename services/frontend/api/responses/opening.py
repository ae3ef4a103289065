"""What a request for a response goes on from and asks for, before it is tokenized."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from services.frontend.api.bodies.responses import ResponsesBody
from services.frontend.api.bodies.text import session_of
from services.frontend.api.responses.chats import ResponseForm, response_chat, response_form
from services.frontend.api.responses.tools import read_tools
from services.frontend.app import App
from services.frontend.core.sessions.response_items import items_of
from services.frontend.core.sessions.stored_responses import Past, new_session
from services.frontend.http.request import Origin
from services.frontend.prepare.requests import ChatRequest
from shared.errors import InvalidRequest, NotFound
from shared.ids import SessionId

TakeRoom = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Opened:
    """A request whose items are looked up and checked."""

    chat: ChatRequest
    form: ResponseForm


async def opened(
    app: App,
    body: ResponsesBody,
    origin: Origin,
    take_room: TakeRoom,
    more: Sequence[dict[str, Any]] = (),
) -> Opened:
    """Look up what it goes on from, and what it refers to.

    Args:
        take_room: for so many bytes, before they are looked at; may raise.
        more: items behind its input.

    Raises:
        SymphonyError: it cannot be served as it is.
    """
    if body.previous_response_id is not None and body.conversation is not None:
        raise InvalidRequest("conversation: not together with previous_response_id", "conversation")
    given = [] if body.input is None else items_of(body.input)
    tools = read_tools(body.tools or [])
    _check_written(body)
    past = await _past(app, body, origin, take_room)
    items = [*await app.conversations.resolved(origin.tenant, given, take_room), *more]
    chat = response_chat(body, items, past, origin, tools)
    return Opened(chat, response_form(body, items, past, tools))


def _check_written(body: ResponsesBody) -> None:
    """See that what the answer repeats can be written.

    Raises:
        InvalidRequest: a number in it is too large, or it is nested too deep.
    """
    for name in ("metadata", "tools", "tool_choice", "text"):
        try:
            orjson.dumps(getattr(body, name))
        except TypeError as error:
            raise InvalidRequest(f"{name}: {error}", name) from None


async def _past(app: App, body: ResponsesBody, origin: Origin, take_room: TakeRoom) -> Past:
    """What it goes on from, and the session of that: the one it names, that of the response before,
    the conversation, or, if it is to be stored, one of its own.

    Raises:
        InvalidRequest: there is no such response, or it is of another session than is named.
        NotFound: there is no such conversation.
    """
    session_id = session_of(body.session_id, origin)
    if body.conversation is not None:
        past = await _conversation(app, body.conversation, origin, take_room)
        what = "the conversation"
    elif body.previous_response_id is not None:
        past = await app.responses.past(origin.tenant, body.previous_response_id, take_room)
        what = "the previous response"
    else:
        return Past(session_id or (None if body.store is False else new_session()))
    if session_id not in {None, past.session_id}:
        raise InvalidRequest(
            f"session_id: {what} is of the session {past.session_id!r}", "session_id"
        )
    return past


async def _conversation(app: App, given: Any, origin: Origin, take_room: TakeRoom) -> Past:
    name = given.get("id") if isinstance(given, dict) else given
    if not isinstance(name, str):
        raise InvalidRequest("conversation: give its id, or an object with it", "conversation")
    try:
        stored = await app.conversations.read(origin.tenant, name)
    except NotFound as error:
        error.param = "conversation"
        raise
    take_room(stored.num_bytes)
    return Past(SessionId(name), None, stored.items, is_conversation=True)
