"""Reading a request: its caller, its headers, its body, and whether its client still waits."""

import asyncio
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fastapi import Request
from starlette.types import Receive

from services.frontend.config import FrontendConfig
from services.frontend.core.http.address_limits import network_name
from services.frontend.core.http.json_limits import FREE_BYTES, SLICE_BYTES, JsonSize
from services.frontend.core.http.request_guard import is_json
from services.frontend.core.limits.capacity import FREE_BODY_BYTES, HeldCapacity, PayloadTooLarge
from services.frontend.http.errors import NoJson
from services.frontend.tenants.auth import Caller
from shared.errors import InvalidRequest
from shared.ids import DEFAULT_TENANT, SessionId, TenantId
from shared.tracing import NO_SPAN, Span
from shared.wire.messages import SLO_MS_MAX

HEADER_CHARS_MAX = 256
SESSION_HEADER = "X-Session-Id"
AGENT_HEADER = "X-Agent"
WORKFLOW_HEADER = "X-Workflow-Id"
SLO_TTFT_HEADER = "X-SLO-TTFT-Ms"
SLO_TPOT_HEADER = "X-SLO-TPOT-Ms"
SLO_HEADER = "X-SLO-Ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What a request for text says outside its body.

    Attributes:
        place: where it came from.
        slo_ttft_ms: target for the time to the first token; None: the deployment's own.
        slo_tpot_ms: target for the mean time between further tokens; None: none.
        span: that it is traced by.
    """

    tenant: TenantId = DEFAULT_TENANT
    request_id: str = ""
    place: str = ""
    session_id: SessionId | None = None
    agent: str | None = None
    workflow_id: str | None = None
    slo_ttft_ms: float | None = None
    slo_tpot_ms: float | None = None
    span: Span = NO_SPAN


def caller_of(request: Request) -> Caller:
    """Its caller, whom `http.middleware.Authentication` has let in."""
    caller = request.scope["state"]["caller"]
    assert isinstance(caller, Caller)
    return caller


def span_of(request: Request) -> Span:
    """The span by which the request is traced."""
    span: Span = request.scope["state"]["span"]
    return span


def request_id_of(request: Request) -> str:
    """The request's id, which is in every log line about it."""
    request_id: str = request.scope["state"]["request_id"]
    return request_id


def place_of_request(request: Request) -> str:
    """The address of its connection, or the network."""
    return network_name(request.client.host) if request.client is not None else ""


def origin_of(request: Request) -> Origin:
    """The request's origin.

    Raises:
        InvalidRequest: a header's value cannot be what it says it is.
    """
    session_id = _name_in(request, SESSION_HEADER)
    return Origin(
        tenant=caller_of(request).tenant,
        request_id=request_id_of(request),
        place=place_of_request(request),
        session_id=SessionId(session_id) if session_id else None,
        agent=_name_in(request, AGENT_HEADER),
        workflow_id=_name_in(request, WORKFLOW_HEADER),
        slo_ttft_ms=slo_ttft_ms(request.headers.get(SLO_TTFT_HEADER)),
        slo_tpot_ms=slo_tpot_ms(request.headers.get(SLO_TPOT_HEADER)),
        span=span_of(request),
    )


def _name_in(request: Request, header: str) -> str | None:
    """What a header names; None: nothing."""
    name = request.headers.get(header)
    if name and len(name) > HEADER_CHARS_MAX:
        raise InvalidRequest(f"{header}: longer than {HEADER_CHARS_MAX} characters", header)
    return name or None


def slo_ms(value: str | None) -> float | None:
    """The target of a request to a one-shot model, milliseconds; None if there is none.

    Raises:
        InvalidRequest: no positive number, or more than an hour.

    >>> slo_ms("25")
    25.0
    """
    return None if value is None else _target_ms(SLO_HEADER, value)


def slo_ttft_ms(value: str | None) -> float | None:
    """A target for the first token, milliseconds; None if there is none.

    Raises:
        InvalidRequest: no positive number, or more than an hour.

    >>> slo_ttft_ms("250")
    250.0
    """
    return None if value is None else _target_ms(SLO_TTFT_HEADER, value)


def slo_tpot_ms(value: str | None) -> float | None:
    """A target for each further token, milliseconds; None if there is none.

    Raises:
        InvalidRequest: no positive number, or more than an hour.

    >>> slo_tpot_ms("50")
    50.0
    """
    return None if value is None else _target_ms(SLO_TPOT_HEADER, value)


def _target_ms(name: str, value: str) -> float:
    target_ms = _positive(value)
    if target_ms is None or target_ms > SLO_MS_MAX:
        raise InvalidRequest(
            f"{name}: give a positive number of milliseconds, at most {SLO_MS_MAX:.0f}", name
        )
    return target_ms


def _positive(value: str) -> float | None:
    """A finite number above 0, or None."""
    try:
        number = float(value)
    except ValueError:
        return None
    return number if 0 < number < math.inf else None


async def read_body(
    request: Request, config: FrontendConfig, held: HeldCapacity | None = None
) -> bytes:
    """The whole body.

    Args:
        held: room for it, which grows as it comes; None: it takes none, and is a small one.

    Raises:
        NoJson: it is not said to be JSON. A page elsewhere can post anything else without asking.
        InvalidRequest: it holds too many values.
        PayloadTooLarge: known as soon as its length is declared, or too much has come.
        NoCapacity, TenantQuota: there is no room for it.
        ClientDisconnect: the client hung up while sending.
    """
    if _has_body(request) and not is_json(request.headers.get("content-type", "")):
        raise NoJson("the body must be JSON and say so: send `Content-Type: application/json`")
    limit = config.body_bytes_max
    if held is None:
        limit = min(limit, FREE_BODY_BYTES)
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise PayloadTooLarge(f"the body is larger than {limit} bytes")
    parts: list[bytes] = []
    num_bytes = 0
    async for part in request.stream():
        num_bytes += len(part)
        if num_bytes > limit:
            raise PayloadTooLarge(f"the body is larger than {limit} bytes")
        if held is not None:
            held.grow_to(num_bytes)
        parts.append(part)
    body = b"".join(parts)
    await check_shape(body, config.body_values_max)
    return body


async def check_shape(body: bytes, values_max: int) -> None:
    """See that parsing takes no long time, with pauses in which others have their turn.

    Raises:
        InvalidRequest: the body holds too many values.
    """
    if len(body) <= FREE_BYTES:
        return
    shape = JsonSize(values_max)
    for start in range(0, len(body), SLICE_BYTES):
        shape.feed(body[start : start + SLICE_BYTES])
        await asyncio.sleep(0)


def _has_body(request: Request) -> bool:
    headers = request.headers
    return "transfer-encoding" in headers or headers.get("content-length", "0") != "0"


@contextmanager
def watched(receive: Receive, on_disconnect: Callable[[], None]) -> Iterator[None]:
    """Call `on_disconnect` if the client hangs up inside this block (after `read_body`)."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        on_disconnect()

    task = asyncio.create_task(watch())
    try:
        yield
    finally:
        task.cancel()
