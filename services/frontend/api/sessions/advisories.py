"""``/v1/advisories``: hints that a session's next turn is coming."""

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from services.frontend.api.bodies.base import ID_CHARS_MAX
from services.frontend.api.bodies.documents import takes
from services.frontend.api.bodies.fields import parse
from services.frontend.api.bodies.schemas import ADVISORY, answers
from services.frontend.api.bodies.text import ADVISORY_PRIORITY_MAX, AdvisoryBody
from services.frontend.api.sessions.advising import slow_refusals, submit
from services.frontend.app import App, app_of
from services.frontend.core.limits.quotas import priority_within
from services.frontend.http.answers import Json
from services.frontend.http.request import (
    caller_of,
    place_of_request,
    read_body,
    request_id_of,
    span_of,
)
from services.frontend.observability.access_log import note
from services.frontend.tenants.links import Link
from services.frontend.turns.hints import NATS_PLACE, sender_of
from shared.errors import HintsThrottled, InvalidRequest
from shared.ids import ModelId, SessionId, TenantId
from shared.wire.advisory_checks import check_advisory
from shared.wire.hint_accounts import TAKE_BACK_COST
from shared.wire.messages import ADVISORY_PRIORITY, Advisory, AdvisoryKey, AdvisoryState
from shared.wire.subjects import (
    ADVISORY_GET,
    ADVISORY_INVALIDATE,
    TENANT_ADVISORY_GET,
    TENANT_ADVISORY_INVALIDATE,
    TENANT_ADVISORY_SUBMIT,
)
from shared.wire.tenants import own_tenant

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
    app = app_of(request)
    body = parse(AdvisoryBody, await read_body(request, app.config))
    model_id = body.model_id or body.model
    tenant = caller_of(request).tenant
    is_asked = "priority" in body.model_fields_set
    advisory = Advisory(
        session_id=SessionId(body.session_id),
        model_id=None if model_id is None else ModelId(model_id),
        expected_arrival=body.expected_arrival,
        ordered=body.ordered,
        priority=_priority(app, tenant, body.priority, is_asked=is_asked),
        tenant=tenant,
        request_id=request_id_of(request),
        agent=body.agent or "",
        workflow_id=body.workflow_id or "",
        ttl_ms=body.ttl_ms,
    )
    note(session_id=body.session_id, model=model_id)
    async with slow_refusals(request):
        try:
            state = await submit(app, advisory, place_of_request(request), span_of(request).trace)
        except InvalidRequest as error:
            if error.param == "model" and body.model_id is not None:
                error.param = "model_id"
            raise
    return Json(state, 202)


async def serve(app: App, link: Link) -> None:
    """Take what tenants say and ask of advisories over NATS, and give what they may to the tracker,
    which they do not reach.
    """

    async def submitted(tenant: TenantId, advisory: Advisory) -> AdvisoryState | None:
        check_advisory(advisory)
        owner = own_tenant(tenant, advisory.tenant)
        is_asked = advisory.priority != ADVISORY_PRIORITY  # saying it is as saying nothing
        priority = _priority(app, owner, advisory.priority, is_asked=is_asked)
        own = replace(advisory, tenant=owner, priority=priority)
        try:
            return await submit(app, own, NATS_PLACE)
        except HintsThrottled:
            if app.hints.is_answered(owner):
                raise
            return None

    async def asked(tenant: TenantId, key: AdvisoryKey) -> AdvisoryState:
        return await app.hints.ask(ADVISORY_GET, _own_key(tenant, key))

    async def taken_back(tenant: TenantId, key: AdvisoryKey) -> AdvisoryState:
        own = _own_key(tenant, key)
        app.hints.take(sender_of(own, NATS_PLACE), TAKE_BACK_COST)
        return await app.hints.ask(ADVISORY_INVALIDATE, own)

    for tenant in link.tenants:
        bus = link.bus
        await bus.serve_tenants(TENANT_ADVISORY_SUBMIT, submitted, tenant=tenant)
        await bus.serve_tenants(TENANT_ADVISORY_GET, asked, tenant=tenant)
        await bus.serve_tenants(TENANT_ADVISORY_INVALIDATE, taken_back, tenant=tenant)


def _own_key(tenant: TenantId, key: AdvisoryKey) -> AdvisoryKey:
    """The session that a tenant's message names.

    Raises:
        InvalidRequest: its name is too long, or empty.
        WrongTenant: it is another tenant's.
    """
    if not 0 < len(key.session_id) <= ID_CHARS_MAX:
        raise InvalidRequest(f"session_id: give 1 to {ID_CHARS_MAX} characters", "session_id")
    return replace(key, tenant=own_tenant(tenant, key.tenant))


@router.get("/v1/advisories/{session_id:path}", responses=answers(ADVISORY))
async def get_advisory(request: Request, session_id: SessionPath) -> Response:
    """The state of a session's advisory."""
    hints, key = app_of(request).hints, key_of(request, session_id)
    return Json(await hints.ask(ADVISORY_GET, key))


@router.delete("/v1/advisories/{session_id:path}", responses=answers(ADVISORY))
async def invalidate_advisory(request: Request, session_id: SessionPath) -> Response:
    """The turn is not coming after all."""
    hints, key = app_of(request).hints, key_of(request, session_id)
    async with slow_refusals(request):
        hints.take(sender_of(key, place_of_request(request)), TAKE_BACK_COST)
    return Json(await hints.ask(ADVISORY_INVALIDATE, key))


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
