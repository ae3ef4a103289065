"""``POST /v1/responses``."""

from fastapi import APIRouter, Request, Response

from services.frontend.api.bodies import ResponsesBody, session_of
from services.frontend.api.documents import TURN_HEADERS, streams, takes
from services.frontend.api.responses.chats import OWN_WORDS, chat_of
from services.frontend.api.responses.writing import ResponseWriter
from services.frontend.api.schemas import RESPONSE
from services.frontend.api.text.chat import generation_of_chat
from services.frontend.api.text.delivery import respond
from services.frontend.api.text.translation import told_as
from services.frontend.app import App
from services.frontend.core.capacity import FREE_BODY_BYTES, HeldCapacity
from services.frontend.core.response_items import items_of
from services.frontend.core.stored_responses import Past, new_session
from services.frontend.request import Origin
from shared.errors import InvalidRequest

router = APIRouter(tags=["text"])


@router.post(
    "/v1/responses",
    responses=streams("`response.created`, and what follows it", RESPONSE),
    openapi_extra=takes(ResponsesBody, *TURN_HEADERS),
)
async def responses(request: Request) -> Response:
    """What follows a list of items."""
    return await respond(request, ResponsesBody, prepare_response)


async def prepare_response(app: App, body: ResponsesBody, origin: Origin) -> ResponseWriter:
    """Look up what it goes on from, check and tokenize.

    Raises:
        SymphonyError: it cannot be served as it is.
    """
    items = items_of(body.input)
    past = await _past(app, body, origin)
    with HeldCapacity(app.capacity_of(origin.tenant), FREE_BODY_BYTES) as held:
        held.grow_to(past.num_bytes)
        with told_as(OWN_WORDS):
            generation, reading = await generation_of_chat(app, chat_of(body, items, past), origin)
    return ResponseWriter(app, generation, body, reading, items, past)


async def _past(app: App, body: ResponsesBody, origin: Origin) -> Past:
    """What it goes on from, and the session of that: the one it names, that of the response before,
    or, if it is to be stored, one of its own.

    Raises:
        InvalidRequest: there is no such response, or it is of another session than is named.
    """
    session_id = session_of(body, origin)
    if body.previous_response_id is None:
        return Past(session_id or (None if body.store is False else new_session()))
    past = await app.responses.past(origin.tenant, body.previous_response_id)
    if session_id not in {None, past.session_id}:
        raise InvalidRequest(
            f"session_id: the previous response is of the session {past.session_id!r}", "session_id"
        )
    return past
