"""What every request goes through, found or not: its id, its logs, its key."""

import logging
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.frontend.auth import SCOPE_INFERENCE, SCOPE_METRICS, Keyring
from services.frontend.errors import refusal
from services.frontend.hub import ClientGone
from services.frontend.request import HEADER_CHARS_MAX
from shared.errors import SymphonyError
from shared.ids import new_id
from shared.logs import log_context

log = logging.getLogger(__name__)

OPEN_PATHS = {"/health", "/ping"}
SCOPES = {"/metrics": SCOPE_METRICS}  # what a key must hold; for all others: SCOPE_INFERENCE
BEARER_REALM = "Bearer"
PAGE_REALM = 'Basic realm="symphony: any user name, the API key as password"'  # browsers ask


class RequestContext:
    """Names a request in its logs and its answer, and answers for what nobody caught."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "uvicorn is configured for nothing else"
        headers = Headers(scope=scope)
        request_id = _request_id(headers)
        scope.setdefault("state", {})["request_id"] = request_id
        header = (b"x-request-id", request_id.encode("latin-1"))
        has_started = False

        async def send_named(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                message["headers"] = [*message["headers"], header]
            await send(message)

        with log_context(**_log_fields(scope, headers, request_id)):
            try:
                await self._app(scope, receive, send_named)
            except (ClientGone, ClientDisconnect):
                log.debug("client gone")
            except Exception:
                log.exception("request failed")
                if not has_started:  # else uvicorn breaks the stream off, as its client can see
                    await refusal(SymphonyError("internal error"))(scope, receive, send_named)


class Authentication:
    """Lets in whom the keyring knows; `request.caller_of` tells who it is."""

    def __init__(self, app: ASGIApp, keyring: Keyring) -> None:
        self._app = app
        self._keyring = keyring

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if path not in OPEN_PATHS:
            authorization = Headers(scope=scope).get("authorization", "")
            try:
                caller = self._keyring.caller(authorization, SCOPES.get(path, SCOPE_INFERENCE))
            except SymphonyError as error:
                is_page = path == "/" or path.startswith("/static/")
                answer = refusal(error, PAGE_REALM if is_page else BEARER_REALM)
                await answer(scope, receive, send)
                return
            scope["state"]["caller"] = caller
        await self._app(scope, receive, send)


def _request_id(headers: Headers) -> str:
    given = headers.get("x-request-id", "")[:HEADER_CHARS_MAX]
    return given if given and given.isprintable() else new_id("req")


def _log_fields(scope: Scope, headers: Headers, request_id: str) -> dict[str, Any]:
    """What every line about this request says; one that is part of a trace is logged itself."""
    fields = {"request_id": request_id}
    if traceparent := headers.get("traceparent", "")[:HEADER_CHARS_MAX]:
        fields["traceparent"] = traceparent
        log.info("request", extra={**fields, "method": scope["method"], "path": scope["path"]})
    return fields
