"""``/v1/conversations``: sessions whose items their clients and responses add to."""

from typing import Any, Literal

from fastapi import APIRouter, Request, Response

from services.frontend.api.bodies.documents import takes
from services.frontend.api.bodies.fields import parse
from services.frontend.api.bodies.responses import (
    CONVERSATION,
    CONVERSATION_DELETED,
    ITEMS,
    ConversationBody,
    ConversationItemsBody,
)
from services.frontend.api.bodies.schemas import ANY_OBJECT, answers
from services.frontend.api.responses.stored import After, Limit, ResponsePath
from services.frontend.api.sessions.deletion import delete_everywhere
from services.frontend.app import App, app_of
from services.frontend.core.limits.capacity import HeldCapacity
from services.frontend.core.sessions.response_items import checked_items, page_of, shown
from services.frontend.core.sessions.stored_responses import new_item_id, new_session
from services.frontend.http.answers import Json
from services.frontend.http.request import caller_of, read_body
from services.frontend.sessions.conversation_store import no_item
from shared.errors import InvalidRequest
from shared.ids import SessionId, TenantId
from shared.wire.messages import AdvisoryKey

router = APIRouter(tags=["sessions"])


@router.post(
    "/v1/conversations",
    responses=answers(CONVERSATION),
    openapi_extra=takes(ConversationBody),
)
async def create_conversation(request: Request) -> Response:
    """A new conversation, maybe with items."""
    app, tenant = app_of(request), caller_of(request).tenant
    with HeldCapacity(app.capacity_of(tenant)) as held:
        body = parse(ConversationBody, await read_body(request, app.config, held))
        session_id = new_session()
        items = _with_ids([] if body.items is None else body.items, session_id)
        about = {
            "created_at": app.clock.wall_ns() // 1_000_000_000,
            "metadata": body.metadata or {},
        }
        await app.conversations.change(
            tenant, session_id, app.quotas.of(tenant), "create", about=about, items=items
        )
    return Json(_written(session_id, about))


@router.get("/v1/conversations/{conversation_id}", responses=answers(CONVERSATION))
async def get_conversation(request: Request, conversation_id: ResponsePath) -> Response:
    """A conversation, without its items."""
    tenant = caller_of(request).tenant
    stored = await app_of(request).conversations.read(tenant, conversation_id)
    return Json(_written(conversation_id, stored.about))


@router.post(
    "/v1/conversations/{conversation_id}",
    responses=answers(CONVERSATION),
    openapi_extra=takes(ConversationBody),
)
async def update_conversation(request: Request, conversation_id: ResponsePath) -> Response:
    """Replace a conversation's metadata."""
    app, tenant = app_of(request), caller_of(request).tenant
    body = parse(ConversationBody, await read_body(request, app.config))
    if body.items is not None:
        raise InvalidRequest("items: add them to /v1/conversations/{id}/items", "items")
    stored = await app.conversations.read(tenant, conversation_id)
    about = {**stored.about, "metadata": body.metadata or {}}
    session_id = SessionId(conversation_id)
    await app.conversations.change(tenant, session_id, app.quotas.of(tenant), "update", about=about)
    return Json(_written(conversation_id, about))


@router.delete("/v1/conversations/{conversation_id}", responses=answers(CONVERSATION_DELETED))
async def delete_conversation(request: Request, conversation_id: ResponsePath) -> Response:
    """Forget a conversation, its responses and its KV everywhere."""
    app, tenant = app_of(request), caller_of(request).tenant
    await app.conversations.read(tenant, conversation_id)
    await delete_everywhere(app, AdvisoryKey(session_id=SessionId(conversation_id), tenant=tenant))
    return Json({"id": conversation_id, "object": "conversation.deleted", "deleted": True})


@router.get("/v1/conversations/{conversation_id}/items", responses=answers(ITEMS))
async def list_items(
    request: Request,
    conversation_id: ResponsePath,
    limit: Limit = 20,
    order: Literal["asc", "desc"] = "desc",
    after: After = None,
) -> Response:
    """Items of a conversation, those of its responses among them."""
    items = await _items(app_of(request), caller_of(request).tenant, conversation_id)
    if order == "desc":
        items.reverse()
    return Json(page_of(items, limit, after))


@router.post(
    "/v1/conversations/{conversation_id}/items",
    responses=answers(ITEMS),
    openapi_extra=takes(ConversationItemsBody),
)
async def add_items(request: Request, conversation_id: ResponsePath) -> Response:
    """Add items at a conversation's end."""
    app, tenant = app_of(request), caller_of(request).tenant
    session_id = SessionId(conversation_id)
    with HeldCapacity(app.capacity_of(tenant)) as held:
        body = parse(ConversationItemsBody, await read_body(request, app.config, held))
        await app.conversations.read(tenant, conversation_id)
        items = _with_ids(body.items, session_id)
        if not body.items:
            raise InvalidRequest("items: give one at least", "items")
        await app.conversations.change(
            tenant, session_id, app.quotas.of(tenant), "add", items=items
        )
    return Json(page_of(items, len(items), None))


@router.get("/v1/conversations/{conversation_id}/items/{item_id}", responses=answers(ANY_OBJECT))
async def get_item(
    request: Request, conversation_id: ResponsePath, item_id: ResponsePath
) -> Response:
    """One item of a conversation."""
    items = await _items(app_of(request), caller_of(request).tenant, conversation_id)
    for item in items:
        if item["id"] == item_id:
            return Json(item)
    raise no_item(item_id)


@router.delete(
    "/v1/conversations/{conversation_id}/items/{item_id}", responses=answers(CONVERSATION)
)
async def delete_item(
    request: Request, conversation_id: ResponsePath, item_id: ResponsePath
) -> Response:
    """Take an item out of a conversation. Answers the conversation."""
    app, tenant = app_of(request), caller_of(request).tenant
    stored = await app.conversations.read(tenant, conversation_id)
    await app.conversations.drop_item(tenant, conversation_id, item_id)
    return Json(_written(conversation_id, stored.about))


async def _items(app: App, tenant: TenantId, conversation_id: str) -> list[dict[str, Any]]:
    return (await app.conversations.read(tenant, conversation_id)).items


def _with_ids(given: Any, session_id: SessionId) -> list[dict[str, Any]]:
    """Items that clients give, as they are listed."""
    items = checked_items(given)
    return [shown(item, new_item_id(item["type"], session_id)) for item in items]


def _written(conversation_id: str, about: dict[str, Any]) -> dict[str, Any]:
    return {"id": conversation_id, "object": "conversation", **about}
