"""``POST /v1/embeddings``."""

import base64
from typing import Any

import numpy as np
from fastapi import APIRouter, Request, Response

from services.frontend.api.documents import takes
from services.frontend.api.oneshot import (
    SLO_HEADERS,
    Values,
    dumps,
    respond,
    run_texts,
    usage,
)
from services.frontend.api.oneshot_bodies import EmbeddingBody, texts_of
from services.frontend.api.oneshot_inputs import Ask
from shared.errors import InvalidRequest
from shared.ids import new_id

router = APIRouter(tags=["one-shot models"])


@router.post("/v1/embeddings", openapi_extra=takes(EmbeddingBody, *SLO_HEADERS))
async def embeddings(request: Request) -> Response:
    """Texts as vectors."""
    return await respond(request, EmbeddingBody, embed)


async def embed(body: EmbeddingBody, ask: Ask) -> bytes:
    """The answer to a body.

    Raises:
        SymphonyError: it cannot be served.
    """
    model = ask.app.models.oneshot(body.model, "embed")
    num_values = model.card.num_values
    if body.dimensions is not None and body.dimensions > num_values:
        raise InvalidRequest(f"dimensions: the model makes {num_values}", "dimensions")
    texts = texts_of(body.input, ask.app.config.inputs_max)
    results = await run_texts(ask, model, body, texts, None)
    data = [
        {"object": "embedding", "index": index, "embedding": _written(values, body)}
        for index, values in enumerate(results.values(model))
    ]
    return dumps(
        {
            "id": new_id("embd"),
            "object": "list",
            "created": int(ask.app.clock.wall_ns() // 1_000_000_000),
            "model": body.model,
            "data": data,
            "usage": usage(results.num_tokens),
        }
    )


def _written(values: Values, body: EmbeddingBody) -> Any:
    if body.dimensions is not None:
        values = shortened(values, body.dimensions)
    if body.encoding_format == "base64":
        return base64.b64encode(values.tobytes()).decode("ascii")
    return values


def shortened(values: Values, dimensions: int) -> Values:
    """The first `dimensions` of an embedding, scaled to length 1; all zeros stay so.

    >>> shortened(np.array([3, 4, 12], np.float32), 2).tolist()
    [0.6000000238418579, 0.800000011920929]
    """
    first = values[:dimensions].astype(np.float64)
    length = float(np.linalg.norm(first))
    return (first / (length or 1.0)).astype("<f4")
