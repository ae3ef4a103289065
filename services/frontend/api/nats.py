"""``symphony.inference.submit``: the same bodies and answers for clients of NATS.

A body with ``messages`` is a chat, one with ``prompt`` a completion, one with ``query`` a
reranking, one with ``input`` an embedding or a classification, as its model does. With ``stream``
each chunk is a message to the reply subject and ``[DONE]`` the last; without, the answer is one
message. Errors have OpenAI's shape; one is the answer too where the real one is larger than NATS
takes.

Where NATS has accounts, requests come by ``symphony.tenant.TENANT.inference.submit``, which names
the tenant. NATS remembers where their answers go until an empty message ends them.
"""

import logging
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import orjson

from services.frontend.api.bodies.fields import parse
from services.frontend.api.bodies.oneshot import ClassifyBody, EmbeddingBody, RerankBody
from services.frontend.api.bodies.text import ChatBody, CompletionBody, Generate
from services.frontend.api.oneshot.endpoints import embed, label, rank
from services.frontend.api.oneshot.inputs import Context
from services.frontend.api.text.chat import open_chat
from services.frontend.api.text.completions import open_completion
from services.frontend.api.text.delivery import answer_whole, prepared, stream_chunks
from services.frontend.api.text.writing import Writer
from services.frontend.app import App
from services.frontend.core.limits.capacity import HeldCapacity, PayloadTooLarge
from services.frontend.http.errors import error_body
from services.frontend.http.request import Origin, check_shape
from services.frontend.observability import telemetry
from services.frontend.observability.access_log import (
    Fields,
    access_line,
    note,
    served_tenant,
    serving,
)
from services.frontend.tenants.auth import Keyring
from services.frontend.tenants.links import Link
from services.frontend.turns.hints import NATS_PLACE
from services.frontend.turns.job_hub import PendingJobs
from shared.bus import RawMessage
from shared.errors import InvalidRequest, PeerUnavailable, SymphonyError, WrongTenant
from shared.fair_slots import Overloaded
from shared.ids import DEFAULT_TENANT, TenantId, new_id
from shared.runtime.logs import log_context
from shared.tracing import TRACE_HEADER, Span
from shared.wire.subjects import INFERENCE_SUBMIT, TENANT_INFERENCE_SUBMIT
from shared.wire.tenants import subject_of, tenant_of

log = logging.getLogger(__name__)

QUEUE = "frontend"
REQUESTS_MAX = 1024  # of a link at once
TEXT_FIELDS = {"messages", "prompt"}
JOB_FIELDS = {"input", "query"}
END = b""


async def serve(app: App, keyring: Keyring, link: Link) -> None:
    """Answer what comes on a link, together with every other frontend."""

    async def of_tenant(message: RawMessage) -> None:
        await answer(message, tenant_of(TENANT_INFERENCE_SUBMIT, message.subject))
        if message.reply:
            await link.bus.publish_raw(message.reply, END)

    async def of_public(message: RawMessage) -> None:
        await answer(message, None)

    async def answer(message: RawMessage, tenant: TenantId | None) -> None:
        request_id, reply = new_id("req"), message.reply
        line: Fields = {"method": "NATS", "path": INFERENCE_SUBMIT, "request_id": request_id}
        sender = message.headers.get(TRACE_HEADER, "")
        with (
            log_context(request_id=request_id),
            app.observability.tracer.request(INFERENCE_SUBMIT, sender, line) as span,
            access_line(line),
        ):
            asked = _Asked(message.payload, reply, request_id, tenant, span, link)
            link.num_open += 1
            try:
                await _answer(app, keyring, asked)
            except PeerUnavailable as error:
                log.warning("answer not sent", extra={"error": error.message})
            except Exception:
                log.exception("request failed")
                note(error=SymphonyError.code)
                if reply:
                    await link.bus.publish_raw(reply, error_body(SymphonyError("internal error")))
            finally:
                link.num_open -= 1

    for tenant in link.tenants:
        subject = subject_of(TENANT_INFERENCE_SUBMIT, tenant)
        await link.bus.serve_raw(subject, of_tenant, QUEUE)
    if link.is_public:
        await link.bus.serve_raw(INFERENCE_SUBMIT, of_public, QUEUE)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request.

    Attributes:
        reply: subject of the answer; empty: none is wanted.
        tenant: whose credentials it came with; None: NATS asks for none.
        link: that it came on, and its answer goes on.
    """

    payload: bytes
    reply: str
    request_id: str
    tenant: TenantId | None
    span: Span
    link: Link


async def _answer(app: App, keyring: Keyring, asked: _Asked) -> None:
    if not asked.reply:
        log.warning("a request without reply subject")
        return
    capacity = app.tenants.capacity if asked.tenant is None else app.capacity_of(asked.tenant)
    with HeldCapacity(capacity) as held:
        try:
            if asked.link.num_open > REQUESTS_MAX:
                raise Overloaded(f"more than {REQUESTS_MAX} requests at once over NATS")
            await _answer_body(app, keyring, asked, held)
        except SymphonyError as error:
            telemetry.HTTP_ERRORS.labels(str(error.http_status)).inc()
            note(error=error.code)
            await asked.link.bus.publish_raw(asked.reply, error_body(error))


async def _answer_body(app: App, keyring: Keyring, asked: _Asked, held: HeldCapacity) -> None:
    payload, tenant = asked.payload, asked.tenant
    held.grow_to(len(payload))
    async with asked.link.preparing:
        await check_shape(payload, app.config.body_values_max)
        fields = _fields(app, payload)
    if tenant is not None and fields.get("tenant") not in (None, tenant):
        raise WrongTenant(tenant)
    if not fields.keys() & TEXT_FIELDS and fields.keys() & JOB_FIELDS:
        whose = tenant or DEFAULT_TENANT
        note(tenant=whose)
        with serving(whose):
            answer = await _answer_job(app, payload, fields, asked.request_id)
        await _send(asked, answer)
        return
    with serving(tenant or DEFAULT_TENANT):
        async with asked.link.preparing:
            writer = await _open(app, keyring, asked, fields)
    writer.generation.keep(held)
    with serving(writer.generation.plan.owner.tenant):
        if not writer.is_streamed:
            await _send(asked, await answer_whole(writer))
            return
        async with aclosing(stream_chunks(writer)) as batches:
            async for chunks in batches:
                for chunk in chunks:
                    await _send(asked, chunk)


async def _send(asked: _Asked, answer: bytes) -> None:
    """Raises:
    InvalidRequest: the answer does not fit; without this error its caller would wait in vain.
    """
    bus = asked.link.bus
    if len(answer) > bus.payload_bytes_max:
        raise InvalidRequest(
            f"the answer has {len(answer)} bytes, and NATS takes {bus.payload_bytes_max}: ask "
            "for less at once (fewer inputs or choices, shorter texts), or over HTTP",
            code="answer_too_large",
        )
    await bus.publish_raw(asked.reply, answer)


def _fields(app: App, payload: bytes) -> dict[str, Any]:
    """The body's JSON, not checked yet; empty if it is no object."""
    if len(payload) > app.config.body_bytes_max:
        raise PayloadTooLarge(f"the body is larger than {app.config.body_bytes_max} bytes")
    try:
        fields = orjson.loads(payload)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the body: {error}") from None
    return fields if isinstance(fields, dict) else {}


async def _answer_job(app: App, payload: bytes, fields: dict[str, Any], request_id: str) -> bytes:
    capacity = app.capacity_of(served_tenant())
    with PendingJobs(app.jobs, capacity, app.clock.now_ns(), request_id) as pending:
        context = Context(app, pending)
        if "query" in fields:
            return await rank(parse(RerankBody, payload), context)
        if app.models.task(str(fields.get("model"))) == "classify":
            return await label(parse(ClassifyBody, payload), context)
        return await embed(parse(EmbeddingBody, payload), context)


async def _open(app: App, keyring: Keyring, asked: _Asked, fields: dict[str, Any]) -> Writer:
    kind: type[ChatBody | CompletionBody] = CompletionBody if "prompt" in fields else ChatBody
    body = parse(kind, asked.payload)
    origin = Origin(
        tenant=_tenant(body, keyring, asked.tenant),
        request_id=asked.request_id,
        place=NATS_PLACE,
        span=asked.span,
    )
    with serving(origin.tenant):
        if isinstance(body, CompletionBody):
            return await prepared(app, body, origin, open_completion)
        return await prepared(app, body, origin, open_chat)


def _tenant(body: Generate, keyring: Keyring, tenant: TenantId | None) -> TenantId:
    """Whose turn this is; `tenant`: whose credentials it came with, if NATS asks for them."""
    whose = keyring.named(body.tenant) if tenant is None else tenant
    note(tenant=whose)
    return whose
