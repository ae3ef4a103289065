"""``POST /v1/responses``, and how many tokens its input has."""

from fastapi import APIRouter, Request, Response

from services.frontend.api.bodies.documents import TURN_HEADERS, streams, takes
from services.frontend.api.bodies.fields import parse
from services.frontend.api.bodies.responses import (
    INPUT_TOKENS,
    RESPONSE,
    ReadResponsesBody,
    ResponsesBody,
)
from services.frontend.api.bodies.schemas import answers
from services.frontend.api.responses.background import begin
from services.frontend.api.responses.chats import OWN_WORDS
from services.frontend.api.responses.opening import opened
from services.frontend.api.responses.writing import ResponseWriter
from services.frontend.api.text.delivery import respond
from services.frontend.api.text.generation import Generation
from services.frontend.api.text.requests import errors_named
from services.frontend.app import App, app_of
from services.frontend.core.limits.capacity import HeldCapacity
from services.frontend.http.answers import Json
from services.frontend.http.request import Origin, caller_of, origin_of, read_body
from services.frontend.prepare.pipeline import prepare_chat
from services.frontend.prepare.template import rendered
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


async def _begin(app: App, writer: ResponseWriter) -> Response | None:
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
    with HeldCapacity(app.capacity_of(origin.tenant)) as held, errors_named(OWN_WORDS):
        asked = await opened(app, body, origin, held.grow_to)
        prepared = await prepare_chat(app, asked.chat)
    return ResponseWriter(app, Generation(app, prepared.plan), asked.form, prepared.reading)


@router.post(
    "/v1/responses/input_tokens",
    responses=answers(INPUT_TOKENS),
    openapi_extra=takes(ReadResponsesBody),
)
async def input_tokens(request: Request) -> Response:
    """How many tokens the prompt of a response has."""
    app, tenant = app_of(request), caller_of(request).tenant
    with HeldCapacity(app.capacity_of(tenant)) as held, errors_named(OWN_WORDS):
        body = parse(ReadResponsesBody, await read_body(request, app.config, held))
        with HeldCapacity(app.capacity_of(tenant)) as held_for_past:
            asked = await opened(app, body, origin_of(request), held_for_past.grow_to)
            model = await app.adapters.model(tenant, body.model, body.adapter_id)
            text = await rendered(app.texts, model.tokenizer, asked.chat.conversation)
            tokens = await app.texts.encode(model.tokenizer, text, special=False)
    return Json({"object": "response.input_tokens", "input_tokens": len(tokens)})
