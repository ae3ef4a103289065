"""Passes advisories to the tracker, whether they came over HTTP, over NATS or with a request."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from starlette.requests import Request

from services.frontend.app import App, app_of
from services.frontend.http.request import caller_of, place_of_request, watched
from services.frontend.observability import telemetry
from services.frontend.prepare.requests import Wish
from shared.errors import HintsThrottled, NoCapacity, NotFound, SymphonyError
from shared.ids import ModelId, SessionId, TenantId
from shared.runtime.tasks import wait_set
from shared.wire.hint_accounts import TAKE_BACK_COST
from shared.wire.messages import Advisory, AdvisoryKey, AdvisoryState
from shared.wire.subjects import ADVISORY_INVALIDATE, ADVISORY_SUBMIT

log = logging.getLogger(__name__)


async def let_in(request: Request, cost: float = 1.0) -> str:
    """Admit an advisory that comes over HTTP. Returns the network that it comes from.

    Raises:
        HintsThrottled: too many of its sender's earlier ones came to nothing. It is raised after a
            delay that grows if its sender goes on all the same.
    """
    gate, tenant = app_of(request).hints, caller_of(request).tenant
    place = place_of_request(request)
    try:
        gate.take(tenant, place, cost)
    except HintsThrottled:
        async with gate.held(tenant, place) as seconds:
            is_gone = asyncio.Event()
            if seconds:
                with watched(request.receive, is_gone.set):
                    await wait_set(is_gone, seconds)
            raise
    return place


async def submit(app: App, advisory: Advisory, place: str, trace: str = "") -> AdvisoryState:
    """Hand an advisory that was let in to the tracker.

    Fields that its sender must not choose are replaced: an adapter's name by its base model and
    adapter; where the session's KV is; which frontend let it in, and from which network.

    Args:
        trace: of the request that it came with.

    Raises:
        NoCapacity: no tracker takes it now. The sender is charged a quarter.
    """
    app.hints.on_sent(advisory, place)
    try:
        state = await _hand_over(app, advisory, place, trace)
    except NoCapacity:
        app.hints.on_refund(advisory, place)
        raise
    if state.num_merged:
        app.hints.on_refund(advisory, place)
    return state


async def _hand_over(app: App, advisory: Advisory, place: str, trace: str) -> AdvisoryState:
    kv_at = await app.sessions.locate(advisory.tenant, advisory.session_id)
    record = model_id = None
    if advisory.model_id is not None:
        record = await app.adapters.hinted(advisory.tenant, advisory.model_id)
        model_id = app.models.own_name(advisory.model_id)
    own = replace(
        advisory,
        model_id=model_id if record is None else record.model_id,
        adapter=None if record is None else record.ref,
        kv_at=kv_at,
        frontend_id=app.hints.frontend_id,
        place=place,
        trace=trace,
    )
    return await app.hints.ask(ADVISORY_SUBMIT, own)


async def carry_out(
    app: App,
    wishes: Sequence[Wish],
    *,
    tenant: TenantId,
    place: str,
    model_id: ModelId | None,
    request_id: str,
    trace: str,
) -> None:
    """Carry out a request's `kv_hints`. Nothing here can fail the request.

    Args:
        model_id: that the request asks, for hints about its own session.
    """
    for wish in wishes:
        try:
            app.hints.take(tenant, place, 1.0 if wish.is_wanted else TAKE_BACK_COST)
            if wish.is_wanted:
                advisory = Advisory(
                    session_id=SessionId(wish.session_id),
                    model_id=model_id if wish.is_own else None,
                    expected_arrival=wish.expected_arrival,
                    ttl_ms=wish.ttl_ms,
                    tenant=tenant,
                    request_id=request_id,
                )
                await submit(app, advisory, place, trace)
            else:
                key = AdvisoryKey(session_id=SessionId(wish.session_id), tenant=tenant)
                await app.hints.ask(ADVISORY_INVALIDATE, key)
        except NotFound:
            pass  # nothing was announced
        except HintsThrottled:
            telemetry.KV_HINTS.labels("throttled").inc()
            continue
        except SymphonyError as error:
            log.warning("a kv hint was lost", extra={"why": error.message})
        telemetry.KV_HINTS.labels(wish.action).inc()
