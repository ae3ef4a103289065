"""``POST /score``, as vLLM has it: how well pairs of texts fit."""

from dataclasses import replace

import numpy as np
from fastapi import APIRouter, Request, Response

from services.frontend.api.bodies.documents import takes
from services.frontend.api.bodies.oneshot import (
    SCORE_PAIRS,
    ScoreBody,
    inputs_of,
    names_of,
    strings_of,
)
from services.frontend.api.bodies.schemas import SCORES, answers
from services.frontend.api.oneshot.inputs import Context
from services.frontend.api.oneshot.requests import SLO_HEADERS, listed, respond, run_texts, usage
from services.frontend.api.oneshot.vectors import Values
from shared.errors import InvalidRequest

router = APIRouter(tags=["one-shot models"])


@router.post("/score", openapi_extra=takes(ScoreBody, *SLO_HEADERS), responses=answers(SCORES))
@router.post("/v1/score", include_in_schema=False)
async def score(request: Request) -> Response:
    """How well each second text fits its first, or the only first one."""
    return await respond(request, ScoreBody, rate)


async def rate(body: ScoreBody, context: Context) -> bytes:
    """The answer to a body: a reranker's scores, or the cosines of embeddings.

    Raises:
        SymphonyError: it cannot be served.
    """
    names, firsts, seconds = pairs_of(body, context.app.config.inputs_max)
    if context.app.models.task(body.model) == "embed":
        scores, num_tokens = await _cosines(body, context, names, firsts, seconds)
    else:
        model = context.app.models.oneshot(body.model, "rerank")
        inputs = inputs_of(body, list(seconds), names[1], firsts, names[0])
        results = await run_texts(context, model, body, inputs)
        scores = [float(values[0]) for values in results.values(model)]
        num_tokens = results.num_tokens
    data = [{"index": at, "object": "score", "score": score} for at, score in enumerate(scores)]
    return listed(context, body, "score", data, usage(num_tokens))


def pairs_of(body: ScoreBody, num_max: int) -> tuple[tuple[str, str], list[str], list[str]]:
    """The two fields that hold the pairs, and their texts: one and many, or as many.

    Raises:
        InvalidRequest: other fields are there, or other numbers.
    """
    given = {name for pair in SCORE_PAIRS for name in pair if getattr(body, name) is not None}
    names = next((pair for pair in SCORE_PAIRS if given == set(pair)), None)
    if names is None:
        raise InvalidRequest("give text_1 and text_2, or queries and documents", "text_1")
    firsts, seconds = (strings_of(getattr(body, name), name, num_max) for name in names)
    if len(firsts) not in {1, len(seconds)}:
        raise InvalidRequest(
            f"{names[0]}: give one, or as many as {names[1]}: {len(seconds)}", names[0]
        )
    return names, firsts, seconds


async def _cosines(
    body: ScoreBody, context: Context, names: tuple[str, str], firsts: list[str], seconds: list[str]
) -> tuple[list[float], int]:
    model = context.app.models.oneshot(body.model, "embed")
    both = inputs_of(body, [*firsts, *seconds], names[1])
    inputs = replace(both, names=names_of(names[0], firsts) + names_of(names[1], seconds))
    results = await run_texts(context, model, body, inputs)
    vectors = results.values(model)
    left, right = vectors[: len(firsts)], vectors[len(firsts) :]
    if len(left) == 1:
        left = left * len(right)
    return [cosine(a, b) for a, b in zip(left, right, strict=True)], results.num_tokens


def cosine(a: Values, b: Values) -> float:
    """Cosine of the angle between two vectors; 0 if one is all zeros.

    >>> cosine(np.array([3, 4], np.float32), np.array([4, 3], np.float32))
    0.96
    """
    x, y = a.astype(np.float64), b.astype(np.float64)
    lengths = float(np.linalg.norm(x) * np.linalg.norm(y))
    return float(x @ y) / lengths if lengths else 0.0
