"""What every request passes, found or not: its id and logs, the check of its origin, its key."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.frontend.core.http.request_guard import RequestGuard
from services.frontend.http.errors import HostRefused, PageRefused, is_anthropic, refusal
from services.frontend.http.request import HEADER_CHARS_MAX
from services.frontend.observability.access_log import Fields, access_line, serving
from services.frontend.observability.tracing import RequestTracer
from services.frontend.tenants.auth import SCOPE_ADAPTERS, SCOPE_INFERENCE, SCOPE_METRICS, Keyring
from services.frontend.turns.hub import ClientGone
from shared.errors import SymphonyError
from shared.ids import new_id
from shared.runtime.logs import log_context
from shared.tracing import NO_SPAN, TRACE_HEADER

log = logging.getLogger(__name__)

OPEN_PATHS = {"/health", "/ping"}
UNLOGGED_PATHS = {*OPEN_PATHS, "/metrics"}  # polled by machines every few seconds
WATCHED_PATHS = {
    "/metrics",
    "/dashboard",
    "/v1/house",
    "/v1/house/events",
    "/dashboard/history",
}
PAGES = {"/", "/dashboard"}
CLIENT_CLOSED_REQUEST = 499  # nginx's status for it; it is only logged
ADAPTER_PATHS = {
    f"{prefix}/{verb}_lora_adapter" for prefix in ("", "/v1") for verb in ("load", "unload")
}
BEARER_REALM = "Bearer"
PAGE_REALM = 'Basic realm="symphony: any user name, the API key as password"'  # browsers ask


class RequestContext:
    """Puts a request's id into its logs and its answer, answers uncaught exceptions, and writes a
    line into the access log at the end.

    Args:
        paths: of all routes. Traces are named after these only: other paths may be anything.
    """

    def __init__(self, app: ASGIApp, paths: frozenset[str]) -> None:
        self._app = app
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "uvicorn is configured for nothing else"
        headers = Headers(scope=scope)
        request_id = _request_id(headers)
        state = scope.setdefault("state", {})
        state["request_id"], state["span"] = request_id, NO_SPAN
        names = [b"x-request-id", *([b"request-id"] if is_anthropic(scope["path"]) else [])]
        ids = [(name, request_id.encode("latin-1")) for name in names]

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                line["status"] = message["status"]
                message["headers"] = [*message["headers"], *ids]
            await send(message)

        line: Fields = {"method": scope["method"], "path": scope["path"], "request_id": request_id}
        with self._traced(scope, headers, line), self._logged(scope, headers, line):
            try:
                await self._app(scope, receive, send_named)
            except (ClientGone, ClientDisconnect):
                line.setdefault("status", CLIENT_CLOSED_REQUEST)
                line["error"] = "client_gone"
            except Exception:
                log.exception("request failed")
                if "status" not in line:  # else uvicorn breaks the stream off, as its client sees
                    answer = refusal(SymphonyError("internal error"), scope)
                    await answer(scope, receive, send_named)
                line["error"] = SymphonyError.code

    @contextmanager
    def _traced(self, scope: Scope, headers: Headers, line: Fields) -> Iterator[None]:
        """Trace it if it asks for work; its line is noted at the end of the block."""
        if scope["method"] != "POST" or scope["path"] in UNLOGGED_PATHS:
            yield
            return
        name = f"POST {scope['path']}" if scope["path"] in self._paths else "POST"
        tracer: RequestTracer = scope["app"].state.app.observability.tracer
        with tracer.request(name, headers.get(TRACE_HEADER, ""), line) as span:
            scope["state"]["span"] = span
            yield

    @contextmanager
    def _logged(self, scope: Scope, headers: Headers, line: Fields) -> Iterator[None]:
        """Log its line at the end of the block; log lines inside name the request."""
        loop = asyncio.get_running_loop()
        started_at_s = loop.time()
        if scope["path"] in UNLOGGED_PATHS:
            yield
            return
        with log_context(**_log_fields(headers, scope["state"])), access_line(line):
            try:
                yield
            finally:
                if (caller := scope["state"].get("caller")) is not None:
                    line["tenant"] = caller.tenant
                line["duration_ms"] = round((loop.time() - started_at_s) * 1e3, 1)


class SiteGuard:
    """Refuses what web pages of other sites make their visitors' browsers send."""

    def __init__(self, app: ASGIApp, guard: RequestGuard) -> None:
        self._app = app
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] not in OPEN_PATHS:  # those reveal nothing and change nothing
            try:
                self._check(scope["method"], Headers(scope=scope))
            except SymphonyError as error:
                await refusal(error, scope)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, method: str, headers: Headers) -> None:
        host, origin = headers.get("host"), headers.get("origin")
        if not self._guard.admits_host(host):
            raise HostRefused(
                f"Host {_shown(host)} is not known here: name it in SYMPHONY_ALLOW_HOSTS"
                " (up --allow-host) to let it in."
            )
        if not self._guard.admits_page(method, host, origin, headers.get("sec-fetch-site", "")):
            raise PageRefused(
                f"Pages of {_shown(origin)} may send nothing here: name that origin in"
                " SYMPHONY_CORS_ORIGINS (up --cors) to let them."
            )


class Authentication:
    """Checks keys; `request.caller_of` gives the caller."""

    def __init__(self, app: ASGIApp, keyring: Keyring) -> None:
        self._app = app
        self._keyring = keyring

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if path not in OPEN_PATHS:
            headers = Headers(scope=scope)
            needed = _scope_of(scope["method"], path)
            try:
                caller = self._keyring.caller(
                    headers.get("authorization", ""), needed, headers.get("x-api-key", "")
                )
            except SymphonyError as error:
                is_page = path in PAGES or path.startswith("/static/")
                answer = refusal(error, scope, PAGE_REALM if is_page else BEARER_REALM)
                await answer(scope, receive, send)
                return
            scope["state"]["caller"] = caller
            with serving(caller.tenant):
                await self._app(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _scope_of(method: str, path: str) -> str:
    """The scope that a key must have."""
    if path in WATCHED_PATHS:
        return SCOPE_METRICS
    is_change = method in ("PUT", "DELETE") and path.startswith("/v1/adapters/")
    return SCOPE_ADAPTERS if is_change or path in ADAPTER_PATHS else SCOPE_INFERENCE


def _shown(value: str | None) -> str:
    return "another site" if value is None else repr(value[:HEADER_CHARS_MAX])


def _request_id(headers: Headers) -> str:
    given = headers.get("x-request-id", "")[:HEADER_CHARS_MAX]
    return given if given and given.isprintable() else new_id("req")


def _log_fields(headers: Headers, state: dict[str, Any]) -> dict[str, str]:
    """What every line about this request says."""
    fields = {"request_id": state["request_id"]}
    if traceparent := state["span"].trace or headers.get(TRACE_HEADER, "")[:HEADER_CHARS_MAX]:
        fields["traceparent"] = traceparent
    return fields
