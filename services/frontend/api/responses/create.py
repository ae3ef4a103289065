"""``POST /v1/responses``."""

from fastapi import APIRouter, Request, Response

from services.frontend.api.bodies import ResponsesBody
from services.frontend.api.documents import TURN_HEADERS, streams, takes
from services.frontend.api.responses.chats import chat_of, in_own_words
from services.frontend.api.responses.writing import ResponseWriter
from services.frontend.api.schemas import RESPONSE
from services.frontend.api.text.chat import generation_of_chat
from services.frontend.api.text.delivery import respond
from services.frontend.app import App
from services.frontend.request import Origin
from shared.errors import InvalidRequest

router = APIRouter(tags=["text"])


@router.post(
    "/v1/responses",
    responses=streams("response", RESPONSE),
    openapi_extra=takes(ResponsesBody, *TURN_HEADERS),
)
async def responses(request: Request) -> Response:
    """What follows a list of items."""
    return await respond(request, ResponsesBody, prepare_response)


async def prepare_response(app: App, body: ResponsesBody, origin: Origin) -> ResponseWriter:
    """Check and tokenize.

    Raises:
        SymphonyError: it cannot be served as it is.
    """
    try:
        generation, tools = await generation_of_chat(app, chat_of(body), origin)
    except InvalidRequest as error:
        raise in_own_words(error) from None
    return ResponseWriter(generation, body, tools)
