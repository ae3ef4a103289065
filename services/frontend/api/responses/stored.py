"""``GET``, ``DELETE`` and end a response by its id; what it was asked with."""

import asyncio
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request, Response

from services.frontend.api.bodies.base import ID_CHARS_MAX
from services.frontend.api.bodies.documents import streams
from services.frontend.api.bodies.responses import ITEMS, RESPONSE, RESPONSE_DELETED
from services.frontend.api.bodies.schemas import answers
from services.frontend.api.responses.events import resumed
from services.frontend.api.sessions.deletion import delete_everywhere
from services.frontend.app import app_of
from services.frontend.core.sessions.response_items import page_of, shown
from services.frontend.core.sessions.stored_responses import (
    CANCELLED,
    ITEM_PREFIXES,
    is_own_session,
    item_id,
)
from services.frontend.http.answers import EventStream, Json
from services.frontend.http.request import caller_of, watched
from shared.errors import InvalidRequest, NoCapacity
from shared.wire.messages import AdvisoryKey

router = APIRouter(tags=["text"])
ResponsePath = Annotated[str, Path(min_length=1, max_length=ID_CHARS_MAX)]
Limit = Annotated[int, Query(ge=1, le=100)]
After = Annotated[str | None, Query(max_length=ID_CHARS_MAX)]


@router.get(
    "/v1/responses/{response_id}",
    responses=streams("those of a response that was made with background and stream", RESPONSE),
)
async def get_response(
    request: Request,
    response_id: ResponsePath,
    stream: bool = False,
    starting_after: Annotated[int | None, Query(ge=0, le=2**31 - 1)] = None,
) -> Response:
    """A response that was stored, or its events again and those that are still to come."""
    app, tenant = app_of(request), caller_of(request).tenant
    if not stream:
        if starting_after is not None:
            raise InvalidRequest("starting_after: only with stream=true", "starting_after")
        return Json((await app.responses.read(tenant, response_id)).whole())
    gone = asyncio.Event()
    after = -1 if starting_after is None else starting_after
    with watched(request.receive, gone.set):
        chunks = resumed(app, tenant, response_id, after, gone)
        return EventStream(await anext(chunks), chunks, gone.set)


@router.get("/v1/responses/{response_id}/input_items", responses=answers(ITEMS))
async def get_input_items(
    request: Request,
    response_id: ResponsePath,
    limit: Limit = 20,
    order: Literal["asc", "desc"] = "desc",
    after: After = None,
) -> Response:
    """Items that it was asked with, without those of responses before it."""
    tenant = caller_of(request).tenant
    stored = await app_of(request).responses.read(tenant, response_id)
    items = [
        shown(item, item_id(ITEM_PREFIXES[item["type"]], response_id, at))
        for at, item in enumerate(stored.input)
    ]
    if order == "desc":
        items.reverse()
    return Json(page_of(items, limit, after))


@router.post("/v1/responses/{response_id}/cancel", responses=answers(RESPONSE))
async def cancel_response(request: Request, response_id: ResponsePath) -> Response:
    """End a response that is made in the background. One that is over stays as it is."""
    app, tenant = app_of(request), caller_of(request).tenant
    stored = await app.responses.read(tenant, response_id)
    if not stored.response.get("background"):
        raise InvalidRequest("Cannot cancel a synchronous response.", "response_id")
    if await app.responses.say(tenant, response_id, CANCELLED):
        app.storage.background.abandon(tenant, response_id)
        stored = await app.responses.read(tenant, response_id)
    return Json(stored.whole())


@router.delete("/v1/responses/{response_id}", responses=answers(RESPONSE_DELETED))
async def delete_response(request: Request, response_id: ResponsePath) -> Response:
    """Forget a response. With the last one of a conversation that has no other name, all of that
    goes, its KV too."""
    app, tenant = app_of(request), caller_of(request).tenant
    left = await app.responses.drop(tenant, response_id)
    app.storage.background.abandon(tenant, response_id)
    if left is not None and is_own_session(left):
        try:
            await delete_everywhere(app, AdvisoryKey(session_id=left, tenant=tenant))
        except NoCapacity as error:
            error.message = f"it is deleted; of its session {left!r}: {error.message}"
            raise
    return Json({"id": response_id, "object": "response.deleted", "deleted": True})
