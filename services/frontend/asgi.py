"""The HTTP edge as one FastAPI application: routers, errors, middlewares.

``/openapi.json`` describes it. The interactive pages of FastAPI are off: they run scripts from a
third party's servers in the origin whose page holds its users' chats and keys.
"""

from copy import copy
from functools import cache
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.datastructures import State
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from services.frontend.api import dashboard, models, operations
from services.frontend.api.adapters import http as adapters
from services.frontend.api.anthropic import create as messages
from services.frontend.api.bodies.meanings import explain
from services.frontend.api.oneshot import endpoints as oneshot
from services.frontend.api.responses import compact, conversations
from services.frontend.api.responses import create as responses
from services.frontend.api.responses import stored as stored_responses
from services.frontend.api.sessions import advisories
from services.frontend.api.sessions import records as sessions
from services.frontend.api.text import chat, completions, tokenize
from services.frontend.app import App
from services.frontend.core.http.request_guard import RequestGuard
from services.frontend.http.errors import ERROR_RESPONSES, HANDLERS
from services.frontend.http.middleware import Authentication, RequestContext, SiteGuard
from services.frontend.tenants.auth import Keyring

ROUTERS = (
    chat,
    completions,
    responses,
    messages,
    oneshot,
    models,
    adapters,
    advisories,
    sessions,
    compact,
    stored_responses,
    conversations,
    tokenize,
    operations,
    dashboard,
)


PATHS = frozenset(
    route.path
    for module in ROUTERS
    for route in module.router.routes
    if isinstance(route, APIRoute)
)


def _cors(origins: list[str]) -> list[Middleware]:
    """Lets pages of these origins read answers; the outermost, since a browser asks first whether
    it may ask, without a key."""
    if not origins:
        return []
    methods, shown = ("GET", "POST", "PUT", "DELETE"), ("x-request-id", "retry-after")
    return [
        Middleware(
            CORSMiddleware, allow_origins=origins, allow_methods=methods, allow_headers=("*",),
            expose_headers=shown,
        )
    ]  # fmt: skip


class Api(FastAPI):
    """With a document that says what each field means."""

    def openapi(self) -> dict[str, Any]:
        """The document; made once."""
        if self.openapi_schema is None:
            self.openapi_schema = explain(super().openapi())
        return self.openapi_schema


@cache
def _routes() -> FastAPI:
    """All routes, without an `App`: built once, for it takes long. The busiest come first: they are
    looked up in this order.
    """
    api = Api(
        title="Symphony",
        version=operations.release(),
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses=ERROR_RESPONSES,
        exception_handlers=HANDLERS,
    )
    for module in ROUTERS:
        api.include_router(module.router)
    api.mount("/static", dashboard.Assets(directory=dashboard.FOLDER))
    return api


def make_api(app: App, keyring: Keyring) -> FastAPI:
    """The ASGI application."""
    guard = RequestGuard(
        address=app.config.http_address,
        allowed=app.config.allowed_places,
        origins=app.config.allowed_origins,
        asks_for_keys=not keyring.is_open,
    )
    api = copy(_routes())
    api.user_middleware = [
        *_cors(app.config.cors_origins),
        Middleware(RequestContext, paths=PATHS),
        Middleware(SiteGuard, guard=guard),
        Middleware(Authentication, keyring=keyring),
    ]
    api.state = State({"app": app})
    return api
