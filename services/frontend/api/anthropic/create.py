"""``POST /v1/messages`` and ``POST /v1/messages/count_tokens``."""

from fastapi import APIRouter, Request, Response

from services.frontend.api.answers import Json
from services.frontend.api.anthropic.bodies import CountTokensBody, MessagesBody
from services.frontend.api.anthropic.chats import chat_of, own_words
from services.frontend.api.anthropic.schemas import MESSAGE, NUM_TOKENS
from services.frontend.api.anthropic.writing import MessageWriter
from services.frontend.api.bodies import ChatBody, parse
from services.frontend.api.documents import TURN_HEADERS, streams, takes
from services.frontend.api.schemas import answers
from services.frontend.api.text.chat import generation_of_chat
from services.frontend.api.text.delivery import respond
from services.frontend.api.text.tools import tools_of
from services.frontend.api.text.translation import told_as
from services.frontend.app import App, app_of
from services.frontend.core.capacity import FREE_BODY_BYTES, HeldCapacity
from services.frontend.errors import ANTHROPIC_ERROR_RESPONSES
from services.frontend.prepare.messages import rendered
from services.frontend.request import Origin, caller_of, read_body
from shared.ids import TenantId

router = APIRouter(tags=["text"])


@router.post(
    "/v1/messages",
    responses=streams("`message_start` to `message_stop`", MESSAGE) | ANTHROPIC_ERROR_RESPONSES,
    openapi_extra=takes(MessagesBody, *TURN_HEADERS),
)
async def messages(request: Request) -> Response:
    """The next message of a chat, as Anthropic has it."""
    return await respond(request, MessagesBody, prepare_message)


async def prepare_message(app: App, body: MessagesBody, origin: Origin) -> MessageWriter:
    """Check and tokenize.

    Raises:
        SymphonyError: it cannot be served as it is.
    """
    with told_as(own_words(body)):
        generation, reading = await generation_of_chat(app, chat_of(body), origin)
    return MessageWriter(generation, body.model, reading)


@router.post(
    "/v1/messages/count_tokens",
    responses=answers(NUM_TOKENS) | ANTHROPIC_ERROR_RESPONSES,
    openapi_extra=takes(CountTokensBody),
)
async def count_tokens(request: Request) -> Response:
    """How many tokens the prompt of a message has."""
    app, tenant = app_of(request), caller_of(request).tenant
    with HeldCapacity(app.capacity_of(tenant), FREE_BODY_BYTES) as held:
        body = parse(CountTokensBody, await read_body(request, held))
        with told_as(own_words(body)):
            return Json({"input_tokens": await _num_tokens(app, chat_of(body), tenant)})


async def _num_tokens(app: App, chat: ChatBody, tenant: TenantId) -> int:
    model = await app.adapters.model(tenant, chat.model, chat.adapter_id)
    tools_of(chat, model.tokenizer, app.config.tool_parser)  # which says what is wrong with them
    text = await rendered(app.texts, model.tokenizer, chat)
    special = bool(chat.add_special_tokens)
    return len(await app.texts.encode(model.tokenizer, text, special=special))
