"""Hints over HTTP: ``POST /v1/hints``."""

from dataclasses import dataclass
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from services.worker.core.vllm.request_kv import SESSION_ID_MAX
from services.worker.vllm_sidecar.hints import Hints
from shared.errors import MalformedMessage
from shared.ids import SessionId
from shared.wire.messages import decode

BODY_BYTES_MAX = 16 * 1024
EXPIRES_S_MAX = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HintBody:
    """A session's turn is about to come, and is not to be waited for longer than this."""

    session_id: str
    expires_in_s: float = 60.0


def make_api(hints: Hints) -> Starlette:
    """The sidecar's HTTP API."""

    async def post_hint(request: Request) -> Response:
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > BODY_BYTES_MAX:
                return _error(
                    HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a hint has {BODY_BYTES_MAX} bytes"
                )
        try:
            hint = decode(HintBody, body)
        except MalformedMessage as error:
            return _error(HTTPStatus.BAD_REQUEST, error.message)
        if not 0 < len(hint.session_id) <= SESSION_ID_MAX:
            return _error(HTTPStatus.BAD_REQUEST, f"session_id: 1 to {SESSION_ID_MAX} characters")
        if not 0 < hint.expires_in_s <= EXPIRES_S_MAX:
            return _error(HTTPStatus.BAD_REQUEST, f"expires_in_s: above 0, to {EXPIRES_S_MAX:g}")
        num_blocks = await hints.expect(SessionId(hint.session_id), hint.expires_in_s)
        return JSONResponse({"blocks": num_blocks}, HTTPStatus.ACCEPTED)

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    return Starlette(
        routes=[
            Route("/v1/hints", post_hint, methods=["POST"]),
            Route("/health", health, methods=["GET"]),
        ]
    )


def _error(status: HTTPStatus, message: str) -> Response:
    return JSONResponse({"error": {"message": message, "code": status.value}}, status)
