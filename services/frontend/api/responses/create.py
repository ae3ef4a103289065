"""``POST /v1/responses``."""

from fastapi import APIRouter, Request, Response

from services.frontend.api.bodies import ResponsesBody
from services.frontend.api.documents import TURN_HEADERS, streams, takes
from services.frontend.api.responses.chats import OWN_WORDS, chat_of
from services.frontend.api.responses.writing import ResponseWriter
from services.frontend.api.schemas import RESPONSE
from services.frontend.api.text.chat import generation_of_chat
from services.frontend.api.text.delivery import respond
from services.frontend.api.text.translation import told_as
from services.frontend.app import App
from services.frontend.request import Origin

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
    """Check and tokenize.

    Raises:
        SymphonyError: it cannot be served as it is.
    """
    with told_as(OWN_WORDS):
        generation, tools = await generation_of_chat(app, chat_of(body), origin)
    return ResponseWriter(generation, body, tools)
