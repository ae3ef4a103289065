"""``/v1/advisories``: hints that a session's next turn is coming."""

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from services.frontend.access import note
from services.frontend.api.answers import Json
from services.frontend.api.bodies import ADVISORY_PRIORITY_MAX, ID_CHARS_MAX, AdvisoryBody, parse
from services.frontend.api.documents import takes
from services.frontend.api.schemas import ADVISORY, answers
from services.frontend.app import App, app_of
from services.frontend.core.quotas import priority_within
from services.frontend.request import caller_of, read_body, request_id_of
from shared.ids import ModelId, SessionId, TenantId
from shared.messages import ADVISORY_PRIORITY, Advisory, AdvisoryKey, AdvisoryState
from shared.subjects import (
    ADVISORY_GET,
    ADVISORY_INVALIDATE,
    ADVISORY_SUBMIT,
    TENANT_ADVISORY_SUBMIT,
)
from shared.tenants import own_tenant

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
    is_asked = "priority" in body.model_fields_set
    advisory = Advisory(
        session_id=SessionId(body.session_id),
        model_id=None if model_id is None else ModelId(model_id),
        expected_arrival=body.expected_arrival,
        ordered=body.ordered,
        priority=_priority(app, tenant, body.priority, is_asked=is_asked),
        tenant=tenant,
        request_id=request_id_of(request),
    )
    note(session_id=body.session_id, model=model_id)
    advisory = await _resolved(app, advisory)
    return Json(await app.bus.request(ADVISORY_SUBMIT, advisory, timeout_s=TRACKER_TIMEOUT_S), 202)


async def serve(app: App) -> None:
    """Take the advisories that tenants publish to NATS, and give those that they may to the
    tracker.
    """

    async def submit(tenant: TenantId, advisory: Advisory) -> AdvisoryState:
        owner = own_tenant(tenant, advisory.tenant)
        is_asked = advisory.priority != ADVISORY_PRIORITY  # saying it is as saying nothing
        priority = _priority(app, owner, advisory.priority, is_asked=is_asked)
        own = await _resolved(app, replace(advisory, tenant=owner, priority=priority))
        return await app.bus.request(ADVISORY_SUBMIT, own, timeout_s=TRACKER_TIMEOUT_S)

    await app.bus.serve_tenants(TENANT_ADVISORY_SUBMIT, submit)


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


async def _resolved(app: App, advisory: Advisory) -> Advisory:
    """An advisory whose model may be an adapter's name, with the base and that adapter, and with
    where the session's KV is. Its sender may have made them up."""
    kv_at = await app.sessions.locate(advisory.tenant, advisory.session_id)
    record = None
    if advisory.model_id is not None:
        record = await app.adapters.hinted(advisory.tenant, advisory.model_id)
    if record is None:
        return replace(advisory, adapter=None, kv_at=kv_at)
    return replace(advisory, model_id=record.model_id, adapter=record.ref, kv_at=kv_at)


def _priority(app: App, tenant: TenantId, named: int, *, is_asked: bool) -> int:
    """Of a tenant's range advisories have what is theirs: the nearest, if nothing is.

    Raises:
        InvalidRequest: it is asked for, and not allowed.
    """
    lowest, highest = app.quotas.of(tenant).priority
    allowed = min(lowest, ADVISORY_PRIORITY_MAX), max(highest, 0)
    return priority_within(allowed, named if is_asked else None, named)


def key_of(request: Request, session_id: str) -> AdvisoryKey:
    """The session that the path names, of the caller's tenant."""
    return AdvisoryKey(session_id=SessionId(session_id), tenant=caller_of(request).tenant)
