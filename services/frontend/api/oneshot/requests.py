"""One request to a one-shot model, from what its client sent to what its model made of it.

The endpoints differ in what they read and how they write; all that lies between is here.
"""

import base64
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import orjson
from fastapi import Request, Response

from services.frontend.api.bodies.documents import target_header
from services.frontend.api.bodies.fields import parse
from services.frontend.api.bodies.oneshot import Inputs, OneshotBody
from services.frontend.api.oneshot.inputs import Context, Preparation, image_jobs
from services.frontend.api.oneshot.texts import text_jobs
from services.frontend.api.oneshot.vectors import Values
from services.frontend.app import app_of
from services.frontend.core.limits.capacity import HeldCapacity
from services.frontend.core.turns.job_events import NewJob, NewRequest
from services.frontend.http.answers import Json
from services.frontend.http.request import (
    SLO_HEADER,
    caller_of,
    read_body,
    request_id_of,
    slo_ms,
    watched,
)
from services.frontend.models.registry import OneshotModel
from services.frontend.observability.access_log import note
from services.frontend.turns.job_hub import PendingJobs
from shared.errors import InvalidRequest, NotFound, SymphonyError
from shared.ids import new_id, shard_of

DEFAULT_BATCHES = 2  # of one input: time for so many there is where a client sets no target
SLO_HEADERS = (target_header(SLO_HEADER, "Target for the whole answer, milliseconds"),)

Body = TypeVar("Body", bound=OneshotBody)


@dataclass(frozen=True, slots=True)
class Results:
    """Attributes:
    packed: base64 of little-endian float32, one an input.
    num_tokens: of all inputs together.
    """

    packed: list[str]
    num_tokens: int

    def values(self, model: OneshotModel) -> list[Values]:
        """Float32 [num_values], one an input.

        Raises:
            SymphonyError: a worker sent something else.
        """
        return [unpack_values(packed, model.card.num_values) for packed in self.packed]


async def respond(
    request: Request, kind: type[Body], work: Callable[[Body, Context], Awaitable[bytes]]
) -> Response:
    """Answer over HTTP; the client's hanging up ends the work. The target counts from when the
    body is there.
    """
    app = app_of(request)
    capacity = app.capacity_of(caller_of(request).tenant)
    with HeldCapacity(capacity) as held:
        body = parse(kind, await read_body(request, app.config, held))
        target_ms = slo_ms(request.headers.get(SLO_HEADER))
        with PendingJobs(app.jobs, capacity, app.clock.now_ns(), request_id_of(request)) as pending:
            context = Context(app, pending, target_ms)
            with watched(request.receive, context.abandon):
                try:
                    return Json(await work(body, context))
                except NotFound:
                    await app.adapters.refuse(caller_of(request).tenant, body.model)
                    raise


async def run_texts(
    context: Context, model: OneshotModel, body: OneshotBody, inputs: Inputs
) -> Results:
    """What the model makes of texts, or of pairs of a query and a text.

    Raises:
        SymphonyError: an input cannot be served, or workers cannot serve it in time.
        ClientGone: the client hung up.
    """
    note(model=model.card.model_id, inputs=len(inputs.texts))
    preparation = _preparation(context, model, body, len(inputs.texts))
    jobs, num_tokens = await text_jobs(preparation, model, inputs)
    note(prompt_tokens=num_tokens)
    return Results(await _run(context, model, body, jobs), num_tokens)


async def run_images(
    context: Context, model: OneshotModel, body: OneshotBody, urls: Sequence[str]
) -> Results:
    """What the model makes of images.

    Raises: as `run_texts`.
    """
    note(model=model.card.model_id, inputs=len(urls))
    preparation = _preparation(context, model, body, len(urls))
    jobs = await image_jobs(preparation, model, urls)
    return Results(await _run(context, model, body, jobs), 0)


def unpack_values(packed: str, num_values: int) -> Values:
    """Float32 [num_values] from the wire.

    Raises:
        SymphonyError: not base64, or of another length.
    """
    try:
        values = np.frombuffer(base64.b64decode(packed, validate=True), dtype="<f4")
    except ValueError as error:
        raise SymphonyError(f"the worker's result: {error}") from None
    if len(values) != num_values:
        raise SymphonyError(f"the worker sent {len(values)} values, not {num_values}")
    return values


def listed(
    context: Context,
    body: OneshotBody,
    prefix: str,
    data: Sequence[dict[str, Any]],
    usage: dict[str, int],
) -> bytes:
    """The answer of an endpoint that gives one entry an input.

    Args:
        prefix: of the answer's id.
    """
    return dumps(
        {
            "id": new_id(prefix),
            "object": "list",
            "created": int(context.app.clock.wall_ns() // 1_000_000_000),
            "model": body.model,
            "data": data,
            "usage": usage,
        }
    )


def dumps(answer: dict[str, Any]) -> bytes:
    """JSON of an answer whose numbers may be arrays."""
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)


def usage(num_tokens: int) -> dict[str, int]:
    """Token counts in OpenAI's shape."""
    return {"prompt_tokens": num_tokens, "total_tokens": num_tokens}


def _preparation(
    context: Context, model: OneshotModel, body: OneshotBody, num_jobs: int
) -> Preparation:
    """How long inputs may take. How long they are is not known yet, so the fastest batch counts.

    Raises:
        InvalidRequest: not even that one could meet the target.
    """
    fastest_ns = min(variant.batch_ns[0] for variant in model.card.variants)
    target_ns = _target_ns(context, model, body, fastest_ns)
    return Preparation(context, num_jobs, context.pending.arrived_at_ns + target_ns - fastest_ns)


async def _run(
    context: Context, model: OneshotModel, body: OneshotBody, jobs: Sequence[NewJob]
) -> list[str]:
    card = model.card
    fastest_ns = max(_fastest_ns(model, job.variant) for job in jobs)
    target_ns = _target_ns(context, model, body, fastest_ns)
    new = NewRequest(
        request_id=context.pending.request_id,
        model_id=card.model_id,
        fingerprint=card.fingerprint,
        shard=shard_of(card.model_id, context.app.config.scheduler_shards),
        jobs=jobs,
        arrived_at_ns=context.pending.arrived_at_ns,
        deadline_at_ns=context.pending.arrived_at_ns + target_ns,
        fastest_ns=fastest_ns,
    )
    return (await context.pending.run(new)).values


def _target_ns(context: Context, model: OneshotModel, body: OneshotBody, fastest_ns: int) -> int:
    """The header's target, else the body's, else the model's own, or longer where not even a batch
    of one could meet that: the client has not asked for it.

    Raises:
        InvalidRequest: not even a batch of one could meet what was asked for.
    """
    name = SLO_HEADER
    if context.header_slo_ms is not None:
        target_ms = context.header_slo_ms
    elif body.slo_ms is not None:
        target_ms, name = body.slo_ms, "slo_ms"
    else:
        return max(int(model.card.slo_ms * 1e6), DEFAULT_BATCHES * fastest_ns)
    target_ns = int(target_ms * 1e6)
    if target_ns < fastest_ns:
        raise InvalidRequest(
            f"{name}: {target_ms:g} ms is less than the fastest batch of "
            f"`{model.card.model_id}` takes, {fastest_ns / 1e6:.3g} ms",
            name,
            code="slo_too_short",
        )
    return target_ns


def _fastest_ns(model: OneshotModel, size: int) -> int:
    """Run time of a batch of one."""
    return next(v.batch_ns[0] for v in model.card.variants if v.variant == size)
