"""``POST /v1/messages`` and ``POST /v1/messages/count_tokens``."""

from fastapi import APIRouter, Request, Response

from services.frontend.api.anthropic.chats import counted_conversation, message_request, own_words
from services.frontend.api.anthropic.writing import MessageWriter
from services.frontend.api.bodies.anthropic import (
    MESSAGE,
    NUM_TOKENS,
    CountTokensBody,
    MessagesBody,
)
from services.frontend.api.bodies.documents import TURN_HEADERS, streams, takes
from services.frontend.api.bodies.fields import parse
from services.frontend.api.bodies.schemas import answers
from services.frontend.api.text.delivery import respond
from services.frontend.api.text.generation import Generation
from services.frontend.api.text.requests import errors_named
from services.frontend.app import App, app_of
from services.frontend.core.limits.capacity import HeldCapacity
from services.frontend.http.answers import Json
from services.frontend.http.errors import ANTHROPIC_ERROR_RESPONSES
from services.frontend.http.request import Origin, caller_of, read_body
from services.frontend.prepare.pipeline import prepare_chat
from services.frontend.prepare.template import rendered

router = APIRouter(tags=["text"])


@router.post(
    "/v1/messages",
    responses=streams("`message_start` to `message_stop`", MESSAGE) | ANTHROPIC_ERROR_RESPONSES,
    openapi_extra=takes(MessagesBody, *TURN_HEADERS),
)
async def messages(request: Request) -> Response:
    """The next message of a chat, as Anthropic has it."""
    return await respond(request, MessagesBody, open_message)


async def open_message(app: App, body: MessagesBody, origin: Origin) -> MessageWriter:
    """Check and tokenize.

    Raises:
        SymphonyError: it cannot be served as it is.
    """
    model, is_streamed = body.model, bool(body.stream)
    has_edits = body.context_management is not None
    with errors_named(own_words(body)):
        prepared = await prepare_chat(app, message_request(body, origin))
    generation = Generation(app, prepared.plan)
    return MessageWriter(
        generation, model, prepared.reading, is_streamed=is_streamed, has_edits=has_edits
    )


@router.post(
    "/v1/messages/count_tokens",
    responses=answers(NUM_TOKENS) | ANTHROPIC_ERROR_RESPONSES,
    openapi_extra=takes(CountTokensBody),
)
async def count_tokens(request: Request) -> Response:
    """How many tokens the prompt of a message has."""
    app, tenant = app_of(request), caller_of(request).tenant
    with HeldCapacity(app.capacity_of(tenant)) as held:
        body = parse(CountTokensBody, await read_body(request, app.config, held))
        with errors_named(own_words(body)):
            conversation = counted_conversation(body)
            model = await app.adapters.model(tenant, body.model, body.adapter_id)
            text = await rendered(app.texts, model.tokenizer, conversation)
            tokens = await app.texts.encode(model.tokenizer, text, special=False)
    return Json({"input_tokens": len(tokens)})
