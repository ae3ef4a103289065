"""``POST /v1/classify``, as vLLM has it, for texts and images."""

from typing import Any

import numpy as np
from fastapi import APIRouter, Request, Response

from services.frontend.api.bodies.documents import takes
from services.frontend.api.bodies.oneshot import (
    ClassifyBody,
    EncodedBody,
    inputs_of,
    texts_of,
    urls_of,
)
from services.frontend.api.bodies.schemas import CLASSES, answers
from services.frontend.api.oneshot.inputs import Context
from services.frontend.api.oneshot.requests import (
    SLO_HEADERS,
    Results,
    listed,
    respond,
    run_images,
    run_texts,
    usage,
)
from services.frontend.api.oneshot.vectors import Values
from services.frontend.models.registry import OneshotModel

router = APIRouter(tags=["one-shot models"])


@router.post(
    "/v1/classify", openapi_extra=takes(ClassifyBody, *SLO_HEADERS), responses=answers(CLASSES)
)
@router.post("/classify", include_in_schema=False)
async def classify(request: Request) -> Response:
    """The likeliest label of texts or images, and the probabilities of all."""
    return await respond(request, ClassifyBody, label)


async def label(body: ClassifyBody, context: Context) -> bytes:
    """The answer to a body.

    Raises:
        SymphonyError: it cannot be served.
    """
    model = context.app.models.oneshot(body.model, "classify")
    results = await run_inputs(context, model, body, body.input)
    labels = model.card.labels
    data = [_entry(index, probs, labels) for index, probs in enumerate(results.values(model))]
    tokens = usage(results.num_tokens) | {"completion_tokens": 0}
    return listed(context, body, "classify", data, tokens)


async def run_inputs(
    context: Context, model: OneshotModel, body: EncodedBody, given: Any
) -> Results:
    """What the model makes of the field `input`: texts, or images.

    Raises:
        SymphonyError: it cannot be served.
    """
    num_max = context.app.config.inputs_max
    if model.card.modality == "image":
        return await run_images(context, model, body, urls_of(given, num_max))
    return await run_texts(context, model, body, inputs_of(body, texts_of(given, num_max), "input"))


def _entry(index: int, probs: Values, labels: list[str]) -> dict[str, Any]:
    best = int(np.argmax(probs))
    return {
        "index": index,
        "label": labels[best] if best < len(labels) else None,
        "probs": probs,
        "num_classes": len(probs),
    }
