"""Errors in the shapes that OpenAI's clients expect, and Anthropic's on their paths."""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import orjson
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Match

from services.frontend.core.sessions.stored_responses import mark_in
from services.frontend.observability import telemetry
from services.frontend.observability.access_log import note
from shared.errors import InvalidRequest, NotFound, SymphonyError

METHODS = ("GET", "POST", "PUT", "DELETE")
TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    413: "invalid_request_error",
    414: "invalid_request_error",
    415: "invalid_request_error",
    421: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    503: "service_unavailable_error",
}
ANTHROPIC_PATH = "/v1/messages"  # and below
ANTHROPIC_TYPES = TYPES | {413: "request_too_large", 503: "overloaded_error", 504: "timeout_error"}
_STRING = {"type": "string"}
_NAME_OR_NULL = {"type": ["string", "null"]}
_ERROR = {
    "type": "object",
    "required": ["message", "type", "param", "code"],
    "properties": {
        "message": _STRING,
        "type": _STRING,
        "param": _NAME_OR_NULL,
        "code": _NAME_OR_NULL,
    },
}


_ANTHROPIC_ERROR = {
    "type": "object",
    "required": _ERROR["required"],
    "properties": {
        "message": _STRING,
        "type": _STRING,
        "param": _NAME_OR_NULL,
        "code": _NAME_OR_NULL,
        "details": {"type": "object"},
    },
}
RESPONSES = "/v1/responses/"  # what is posted behind it is for a response, or its id is unknown


class EndpointUnknown(NotFound):
    """No such path."""

    code = "unknown_url"


class MethodNotAllowed(InvalidRequest):
    """The path exists, but not for this method."""

    code = "method_not_allowed"
    http_status = 405


class NoHttp(InvalidRequest):
    """The bytes that came are no request."""

    code = "invalid_http"


class VersionUnknown(InvalidRequest):
    """Another version of HTTP."""

    code = "invalid_http"
    http_status = 505

    def __init__(self) -> None:
        super().__init__("only HTTP/1.1 and HTTP/1.0 are spoken here")


class NoJson(InvalidRequest):
    """The body is not said to be JSON."""

    code = "unsupported_media_type"
    http_status = 415


class HostRefused(SymphonyError):
    """The request is addressed to a name that is not known as ours."""

    code = "host_not_allowed"
    http_status = 421


class PageRefused(SymphonyError):
    """A web page from elsewhere sent the request."""

    code = "origin_not_allowed"
    http_status = 403


class ThreadNotFound(NotFound):
    """A conversation that is to be held here is not: Anthropic's clients then send all of it."""

    code = "thread_not_found"


def error_body(error: SymphonyError, scope: Mapping[str, Any] | None = None) -> bytes:
    """The JSON of an error, as answer or as an event in a stream.

    Args:
        scope: of the request, whose path decides the shape; None: OpenAI's.
    """
    if scope is not None and is_anthropic(scope["path"]):
        return orjson.dumps(anthropic_error(error, scope["state"].get("request_id")))
    return orjson.dumps({"error": error_fields(error)})


def error_fields(error: SymphonyError) -> dict[str, Any]:
    """The fields of an error in OpenAI's shape."""
    return {
        "message": error.message,
        "type": TYPES.get(error.http_status, "server_error"),
        "param": getattr(error, "param", None),
        "code": error.code,
    }


def is_anthropic(path: str) -> bool:
    """Whether clients on this path expect Anthropic's shapes.

    >>> is_anthropic("/v1/messages/batches"), is_anthropic("/v1/messages2")
    (True, False)
    """
    return path == ANTHROPIC_PATH or path.startswith(f"{ANTHROPIC_PATH}/")


def anthropic_error(error: SymphonyError, request_id: str | None) -> dict[str, Any]:
    """An error as Anthropic's clients expect it; `param` and `code` are more than they do."""
    kind = ANTHROPIC_TYPES.get(error.http_status, "api_error")
    fields = error_fields(error) | {"type": kind}
    if isinstance(error, ThreadNotFound):
        fields["details"] = {"error_code": error.code}
    return {"type": "error", "error": fields, "request_id": request_id}


def refusal(error: SymphonyError, scope: Mapping[str, Any], realm: str = "Bearer") -> Response:
    """The response for an error, counted.

    Args:
        scope: of the request.
        realm: how to ask for a key that is missing.
    """
    telemetry.HTTP_ERRORS.labels(str(error.http_status)).inc()
    return error_answer(error, scope, realm)


def error_answer(error: SymphonyError, scope: Mapping[str, Any], realm: str = "Bearer") -> Response:
    """The response for an error, not counted: see `refusal`."""
    status = error.http_status
    note(error=error.code)
    headers = {}
    if status == 401:
        headers["WWW-Authenticate"] = realm
    if status in {429, 503}:
        headers["Retry-After"] = str(max(1, round(getattr(error, "retry_after_s", 1.0))))
    return Response(error_body(error, scope), status, headers, "application/json")


async def _on_symphony_error(request: Request, error: SymphonyError) -> Response:
    return refusal(error, request.scope)


async def _on_http_exception(request: Request, error: HTTPException) -> Response:
    """What the router itself refuses: a path or a method that is not there."""
    path, method = request.url.path, request.method
    named = path.removeprefix(RESPONSES)
    is_no_id = method == "POST" and named != path and mark_in(named) is None
    if error.status_code == 404 or (error.status_code == 405 and is_no_id):
        unknown = EndpointUnknown(f"Unknown request URL: {method} {path}")
        return refusal(unknown, request.scope)
    if error.status_code == 405:
        not_allowed = MethodNotAllowed(f"Not allowed to {method} on {path}")
        answer = refusal(not_allowed, request.scope)
        answer.headers["Allow"] = ", ".join(_allowed_methods(request))
        return answer
    wrong = InvalidRequest(str(error.detail), code="http_error")
    wrong.http_status = error.status_code
    return refusal(wrong, request.scope)


async def _on_validation_error(request: Request, error: RequestValidationError) -> Response:
    """A wrong part of a path; bodies are parsed by their endpoints."""
    first = error.errors()[0]
    param = str(first["loc"][-1])
    return refusal(InvalidRequest(f"{param}: {first['msg']}", param), request.scope)


def _allowed_methods(request: Request) -> list[str]:
    """Methods of a path, which may have several routes; of one that is described by itself, those
    alone: `/v1/responses/compact` is no response.
    """
    if described := request.app.openapi()["paths"].get(request.url.path):
        return [method for method in METHODS if method.lower() in described]
    routes = request.app.routes
    return [
        method
        for method in METHODS
        if any(
            route.matches({**request.scope, "method": method})[0] is Match.FULL for route in routes
        )
    ]


HANDLERS: dict[int | type[Exception], Callable[[Request, Any], Coroutine[Any, Any, Response]]] = {
    SymphonyError: _on_symphony_error,
    HTTPException: _on_http_exception,
    RequestValidationError: _on_validation_error,
}


def _described(**members: Any) -> dict[int | str, dict[str, Any]]:
    schema = {"type": "object", "required": list(members), "properties": members}
    content = {"application/json": {"schema": schema}}
    return {
        "4XX": {"description": "The request cannot be served as it is", "content": content},
        "5XX": {"description": "Nothing can serve it now, or a failure", "content": content},
    }


ERROR_RESPONSES = _described(error=_ERROR)
ANTHROPIC_ERROR_RESPONSES = _described(
    type={"const": "error"}, error=_ANTHROPIC_ERROR, request_id=_NAME_OR_NULL
)
