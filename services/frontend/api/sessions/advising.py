"""Passes advisories to the tracker, whether they came over HTTP, over NATS or with a request."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from starlette.requests import Request

from services.frontend.app import App, app_of
from services.frontend.http.request import caller_of, place_of_request, watched
from services.frontend.observability import telemetry
from services.frontend.prepare.requests import Wish
from services.frontend.turns.hints import sender_of
from shared.errors import HintsThrottled, NoCapacity, NotFound, SymphonyError
from shared.ids import ModelId, SessionId, TenantId
from shared.runtime.tasks import wait_set
from shared.wire.hint_accounts import TAKE_BACK_COST
from shared.wire.messages import Advisory, AdvisoryKey, AdvisoryState
from shared.wire.subjects import ADVISORY_INVALIDATE, ADVISORY_SUBMIT

log = logging.getLogger(__name__)


@asynccontextmanager
async def slow_refusals(request: Request) -> AsyncIterator[None]:
    """Delays what refuses an advisory that comes over HTTP: for longer, if its sender goes on all
    the same.
    """
    try:
        yield
    except HintsThrottled:
        tenant, place = caller_of(request).tenant, place_of_request(request)
        async with app_of(request).hints.held(tenant, place) as seconds:
            is_gone = asyncio.Event()
            if seconds:
                with watched(request.receive, is_gone.set):
                    await wait_set(is_gone, seconds)
            raise


async def submit(app: App, advisory: Advisory, place: str, trace: str = "") -> AdvisoryState:
    """Charge an advisory and hand it to the tracker.

    Fields that its sender must not choose are replaced: an adapter's name by its base model and
    adapter; where the session's KV is; which frontend let it in, from which network, and who pays.

    Args:
        trace: of the request that it came with.

    Raises:
        HintsThrottled: too many of its sender's earlier ones came to nothing.
        NoCapacity: no tracker takes it now. The sender is charged a quarter.
        NotFound: there is no such model.
        InvalidRequest: the model does not generate text.
    """
    kv_at = await app.sessions.locate(advisory.tenant, advisory.session_id)
    own = replace(
        advisory, kv_at=kv_at, frontend_id=app.hints.frontend_id, place=place, trace=trace
    )
    own = replace(own, payer=app.hints.take(sender_of(own), has_kv=bool(kv_at)))
    app.hints.on_sent(own)
    try:
        state = await app.hints.ask(ADVISORY_SUBMIT, await _by_model(app, own))
    except NoCapacity:
        app.hints.on_refund(own)
        raise
    if state.num_merged:
        app.hints.on_refund(own)
    return state


async def _by_model(app: App, advisory: Advisory) -> Advisory:
    """The advisory, with the model and adapter that its sender means."""
    if advisory.model_id is None:
        return replace(advisory, adapter=None)
    record = await app.adapters.hinted(advisory.tenant, advisory.model_id)
    if record is None:
        return replace(advisory, model_id=app.models.own_name(advisory.model_id), adapter=None)
    return replace(advisory, model_id=record.model_id, adapter=record.ref)


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
                app.hints.take(sender_of(key, place), TAKE_BACK_COST)
                await app.hints.ask(ADVISORY_INVALIDATE, key)
        except NotFound:
            pass  # nothing was announced
        except HintsThrottled:
            telemetry.KV_HINTS.labels("throttled").inc()
            continue
        except SymphonyError as error:
            log.warning("a kv hint was lost", extra={"why": error.message})
        telemetry.KV_HINTS.labels(wish.action).inc()
