"""``POST /v1/responses``."""

from collections.abc import Callable

import orjson
from fastapi import APIRouter, Request, Response

from services.frontend.api.bodies.documents import TURN_HEADERS, streams, takes
from services.frontend.api.bodies.schemas import RESPONSE
from services.frontend.api.bodies.text import ResponsesBody, session_of
from services.frontend.api.responses.background import begin
from services.frontend.api.responses.chats import OWN_WORDS, response_chat, response_form
from services.frontend.api.responses.writing import ResponseWriter
from services.frontend.api.text.delivery import respond
from services.frontend.api.text.generation import Generation
from services.frontend.api.text.requests import errors_named
from services.frontend.app import App
from services.frontend.core.limits.capacity import HeldCapacity
from services.frontend.core.sessions.response_items import items_of
from services.frontend.core.sessions.stored_responses import Past, new_session
from services.frontend.http.request import Origin
from services.frontend.prepare.pipeline import prepare_chat
from shared.errors import InvalidRequest

router = APIRouter(tags=["text"])


@router.post(
    "/v1/responses",
    responses=streams("`response.created`, and what follows it", RESPONSE),
    openapi_extra=takes(ResponsesBody, *TURN_HEADERS),
)
async def responses(request: Request) -> Response:
    """What follows a list of items."""
    return await respond(request, ResponsesBody, open_response, _begin)


async def _begin(app: App, writer: ResponseWriter) -> bytes | None:
    return await begin(app, writer) if writer.form.is_background else None


async def open_response(app: App, body: ResponsesBody, origin: Origin) -> ResponseWriter:
    """Look up what it goes on from, check and tokenize.

    Raises:
        SymphonyError: it cannot be served as it is.
    """
    if body.background and body.store is False:
        raise InvalidRequest(
            "background can only be used when `store` is true: it is asked for by its id",
            "background",
        )
    if body.background and body.stream:
        raise InvalidRequest("background: not in a stream: ask for it by its id", "background")
    items = items_of(body.input)
    _check_written(body)
    with HeldCapacity(app.capacity_of(origin.tenant)) as held:
        past = await _past(app, body, origin, held.grow_to)
        with errors_named(OWN_WORDS):
            chat, form = response_chat(body, items, past, origin), response_form(body, items, past)
            prepared = await prepare_chat(app, chat)
    return ResponseWriter(app, Generation(app, prepared.plan), form, prepared.reading)


def _check_written(body: ResponsesBody) -> None:
    """See that what the answer repeats can be written.

    Raises:
        InvalidRequest: a number in it is too large, or it is nested too deep.
    """
    for name in ("metadata", "tools", "tool_choice", "text"):
        value = getattr(body, name)
        try:
            orjson.dumps([tool.model_dump() for tool in value or ()] if name == "tools" else value)
        except TypeError as error:
            raise InvalidRequest(f"{name}: {error}", name) from None


async def _past(
    app: App, body: ResponsesBody, origin: Origin, take_room: Callable[[int], None]
) -> Past:
    """What it goes on from, and the session of that: the one it names, that of the response before,
    or, if it is to be stored, one of its own.

    Raises:
        InvalidRequest: there is no such response, or it is of another session than is named.
    """
    session_id = session_of(body.session_id, origin)
    if body.previous_response_id is None:
        return Past(session_id or (None if body.store is False else new_session()))
    past = await app.responses.past(origin.tenant, body.previous_response_id, take_room)
    if session_id not in {None, past.session_id}:
        raise InvalidRequest(
            f"session_id: the previous response is of the session {past.session_id!r}", "session_id"
        )
    return past
