"""``/v1/advisories``: hints that a session's next turn is coming."""

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from services.frontend.access import note
from services.frontend.api.answers import Json
from services.frontend.api.bodies import ADVISORY_PRIORITY_MAX, ID_CHARS_MAX, AdvisoryBody, parse
from services.frontend.api.documents import takes
from services.frontend.api.schemas import ADVISORY, answers
from services.frontend.app import app_of
from services.frontend.core.quotas import priority_within
from services.frontend.request import caller_of, read_body, request_id_of
from shared.ids import ModelId, SessionId
from shared.messages import Advisory, AdvisoryKey
from shared.subjects import ADVISORY_GET, ADVISORY_INVALIDATE, ADVISORY_SUBMIT

TRACKER_TIMEOUT_S = 2.0
SessionPath = Annotated[str, Path(min_length=1, max_length=ID_CHARS_MAX)]


router = APIRouter(tags=["advisories"])


@router.post(
    "/v1/advisories",
    status_code=202,
    openapi_extra=takes(AdvisoryBody),
    responses=answers(ADVISORY, 202),
)
async def submit_advisory(request: Request) -> Response:
    """Say that a session's next turn is coming; 202 and the advisory's state."""
    body = parse(AdvisoryBody, await read_body(request))
    model_id = body.model_id or body.model
    tenant, app = caller_of(request).tenant, app_of(request)
    asked = body.priority if "priority" in body.model_fields_set else None
    advisory = Advisory(
        session_id=SessionId(body.session_id),
        model_id=None if model_id is None else ModelId(model_id),
        expected_arrival=body.expected_arrival,
        ordered=body.ordered,
        priority=priority_within(_allowed(app.quotas.of(tenant).priority), asked, body.priority),
        tenant=tenant,
        request_id=request_id_of(request),
    )
    note(session_id=body.session_id, model=model_id)
    return Json(await app.bus.request(ADVISORY_SUBMIT, advisory, timeout_s=TRACKER_TIMEOUT_S), 202)


@router.get("/v1/advisories/{session_id:path}", responses=answers(ADVISORY))
async def get_advisory(request: Request, session_id: SessionPath) -> Response:
    """The state of a session's advisory."""
    bus, key = app_of(request).bus, key_of(request, session_id)
    return Json(await bus.request(ADVISORY_GET, key, timeout_s=TRACKER_TIMEOUT_S))


@router.delete("/v1/advisories/{session_id:path}", responses=answers(ADVISORY))
async def invalidate_advisory(request: Request, session_id: SessionPath) -> Response:
    """The turn is not coming after all."""
    bus, key = app_of(request).bus, key_of(request, session_id)
    return Json(await bus.request(ADVISORY_INVALIDATE, key, timeout_s=TRACKER_TIMEOUT_S))


def _allowed(priority: tuple[int, int]) -> tuple[int, int]:
    """Of a tenant's range what advisories have: the nearest, if it is none of theirs."""
    return min(priority[0], ADVISORY_PRIORITY_MAX), max(priority[1], 0)


def key_of(request: Request, session_id: str) -> AdvisoryKey:
    """The session that the path names, of the caller's tenant."""
    return AdvisoryKey(session_id=SessionId(session_id), tenant=caller_of(request).tenant)
