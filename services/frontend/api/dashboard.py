"""``/dashboard``, and what it shows as JSON: once, or as events."""

import asyncio
import os
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles

from services.frontend.api.bodies.schemas import (
    DEPLOYMENT,
    DEPLOYMENT_HISTORY,
    STRING,
    answers,
    record,
)
from services.frontend.app import App, app_of
from services.frontend.core.observability.deployment_view import for_tenant
from services.frontend.http.answers import EventStream, Json
from services.frontend.http.request import caller_of
from services.frontend.tenants.auth import SCOPE_ADMIN, Caller

router = APIRouter(tags=["operations"])
EVENTS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "A view every other second",
        "content": {"text/event-stream": {"schema": record(data=STRING)}},
    }
}


@router.get("/dashboard", include_in_schema=False)
async def dashboard() -> Response:
    """The page."""
    return FileResponse(FOLDER / "dashboard.html", headers=GUARDS)


@router.get("/v1/house", responses=answers(DEPLOYMENT))
async def house(request: Request) -> Response:
    """Every process, host and worker, what they do, and what was counted lately."""
    app = app_of(request)
    return Json(_shown(await app.observability.feed.look(), caller_of(request)))


@router.get("/dashboard/history", responses=answers(DEPLOYMENT_HISTORY))
async def dashboard_history(request: Request) -> Response:
    """Ten minutes of the whole deployment's figures, as this frontend saw them."""
    return Json(app_of(request).observability.feed.history())


@router.get("/v1/house/events", response_class=Response, responses=EVENTS)
async def house_events(request: Request) -> Response:
    """The same again and again."""
    is_gone = asyncio.Event()
    chunks = _chunks(app_of(request), caller_of(request), is_gone)
    return EventStream(await anext(chunks), chunks, is_gone.set)


async def _chunks(
    app: App, caller: Caller, is_gone: asyncio.Event
) -> AsyncGenerator[list[bytes], None]:
    async for view in app.observability.feed.views(is_gone, caller.tenant):
        yield [orjson.dumps(_shown(view, caller))]


def _shown(view: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Only administrators see something of other tenants."""
    return view if SCOPE_ADMIN in caller.scopes else for_tenant(view, caller.tenant)


FOLDER = Path(__file__).parent.parent / "static"
CLIENT = Path(__file__).parents[3] / "clients" / "symphony.js" / "index.js"
GUARDS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


@router.get("/", include_in_schema=False)
async def page() -> Response:
    """The page."""
    return FileResponse(FOLDER / "index.html", headers=GUARDS)


class Assets(StaticFiles):
    """The page's files and the JavaScript client, guarded as the page is."""

    def lookup_path(self, path: str) -> tuple[str, os.stat_result | None]:
        if path == "symphony.js":  # where it is kept there is one of it, for pages and for Node
            return str(CLIENT), CLIENT.stat()
        return super().lookup_path(path)

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        answer = super().file_response(*args, **kwargs)
        answer.headers.update(GUARDS)
        return answer
