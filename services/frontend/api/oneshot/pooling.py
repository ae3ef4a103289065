"""``POST /pooling``, as vLLM has it: what a model makes of its inputs, whatever it is for."""

from fastapi import APIRouter, Request, Response

from services.frontend.api.bodies.base import unsupported
from services.frontend.api.bodies.documents import takes
from services.frontend.api.bodies.oneshot import PoolingBody
from services.frontend.api.bodies.schemas import POOLING, answers
from services.frontend.api.oneshot.classify import run_inputs
from services.frontend.api.oneshot.embeddings import check_dimensions
from services.frontend.api.oneshot.inputs import Context
from services.frontend.api.oneshot.requests import SLO_HEADERS, listed, respond, usage
from services.frontend.api.oneshot.vectors import scaled, written
from shared.wire.messages import Task

router = APIRouter(tags=["one-shot models"])


@router.post("/pooling", openapi_extra=takes(PoolingBody, *SLO_HEADERS), responses=answers(POOLING))
async def pooling(request: Request) -> Response:
    """Embeddings, or the probabilities of all labels."""
    return await respond(request, PoolingBody, pool)


async def pool(body: PoolingBody, context: Context) -> bytes:
    """The answer to a body.

    Raises:
        SymphonyError: it cannot be served.
    """
    is_classifier = context.app.models.task(body.model) == "classify"
    task: Task = "classify" if is_classifier else "embed"
    model = context.app.models.oneshot(body.model, task)
    if body.task is not None and body.task != task:
        raise unsupported("task", f"this model's is {task}")
    for name in ("dimensions", "normalize"):
        if is_classifier and getattr(body, name) is not None:
            raise unsupported(name, "this model gives probabilities")
    check_dimensions(model, body.dimensions, "dimensions")
    results = await run_inputs(context, model, body, body.input)
    values = results.values(model)
    if not is_classifier:
        values = [scaled(vector, body) for vector in values]
    data = [
        {"index": index, "object": "pooling", "data": written(vector, body)}
        for index, vector in enumerate(values)
    ]
    return listed(context, body, "pool", data, usage(results.num_tokens))
