"""Endpoints of one-shot models. An answer that cannot be made is a `SymphonyError`."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from fastapi import APIRouter, Request, Response

from services.frontend.api.bodies.base import unsupported
from services.frontend.api.bodies.documents import takes
from services.frontend.api.bodies.oneshot import (
    SCORE_PAIRS,
    ClassifyBody,
    CohereEmbedBody,
    EmbeddingBody,
    EncodedBody,
    Inputs,
    PoolingBody,
    RerankBody,
    ScoreBody,
    Text,
    documents_of,
    inputs_of,
    names_of,
    strings_of,
    texts_of,
    urls_of,
)
from services.frontend.api.bodies.schemas import (
    CLASSES,
    COHERE_EMBEDDINGS,
    EMBEDDINGS,
    POOLING,
    RANKING,
    SCORES,
    answers,
)
from services.frontend.api.oneshot.inputs import Context
from services.frontend.api.oneshot.requests import (
    SLO_HEADERS,
    Results,
    dumps,
    listed,
    respond,
    run_images,
    run_texts,
    usage,
)
from services.frontend.api.oneshot.vectors import Values, packed, scaled, shortened, written
from services.frontend.models.registry import OneshotModel
from shared.errors import InvalidRequest
from shared.ids import new_id
from shared.wire.messages import Task

COHERE_TYPES = ("float", "base64")


router = APIRouter(tags=["one-shot models"])


@router.post(
    "/v1/embeddings",
    openapi_extra=takes(EmbeddingBody, *SLO_HEADERS),
    responses=answers(EMBEDDINGS),
)
async def embeddings(request: Request) -> Response:
    """Texts as vectors."""
    return await respond(request, EmbeddingBody, embed)


@router.post(
    "/v2/embed",
    openapi_extra=takes(CohereEmbedBody, *SLO_HEADERS),
    responses=answers(COHERE_EMBEDDINGS),
)
async def cohere_embed(request: Request) -> Response:
    """Texts as vectors, as Cohere asks for them."""
    return await respond(request, CohereEmbedBody, embed_as_cohere)


async def embed(body: EmbeddingBody, context: Context) -> bytes:
    """The answer of ``embeddings``."""
    model = context.app.models.oneshot(body.model, "embed")
    check_dimensions(model, body.dimensions, "dimensions")
    texts = texts_of(body.input, context.app.config.inputs_max)
    results = await run_texts(context, model, body, inputs_of(body, texts, "input"))
    data = [
        {"object": "embedding", "index": index, "embedding": written(scaled(values, body), body)}
        for index, values in enumerate(results.values(model))
    ]
    return listed(context, body, "embd", data, usage(results.num_tokens))


async def embed_as_cohere(body: CohereEmbedBody, context: Context) -> bytes:
    """The answer to Cohere's body."""
    types = body.embedding_types or ["float"]
    if any(kind not in COHERE_TYPES for kind in types):
        raise unsupported("embedding_types", f"give {' or '.join(COHERE_TYPES)}")
    model = context.app.models.oneshot(body.model, "embed")
    check_dimensions(model, body.output_dimension, "output_dimension")
    texts = strings_of(body.texts, "texts", context.app.config.inputs_max)
    inputs = Inputs(
        texts=list(texts),
        names=names_of("texts", texts),
        queries=[],
        query_names=[],
        cut_to=None if body.truncate == "NONE" else -1,
        keep_end=body.truncate == "START",
    )
    results = await run_texts(context, model, body, inputs)
    vectors = results.values(model)
    if body.output_dimension is not None:
        vectors = [shortened(values, body.output_dimension) for values in vectors]
    made: dict[str, list[Any]] = {"float": vectors, "base64": [packed(v) for v in vectors]}
    billed = {"input_tokens": results.num_tokens}
    return dumps(
        {
            "id": new_id("embd"),
            "response_type": "embeddings_by_type",
            "embeddings": {kind: made[kind] for kind in COHERE_TYPES if kind in types},
            "texts": texts,
            "meta": {"api_version": {"version": "2"}, "billed_units": billed},
        }
    )


def check_dimensions(model: OneshotModel, dimensions: int | None, name: str) -> None:
    """Raises:
    InvalidRequest: the model makes fewer.
    """
    num_values = model.card.num_values
    if dimensions is not None and dimensions > num_values:
        raise InvalidRequest(f"{name}: the model makes {num_values}", name)


@router.post(
    "/v1/classify", openapi_extra=takes(ClassifyBody, *SLO_HEADERS), responses=answers(CLASSES)
)
@router.post("/classify", include_in_schema=False)
async def classify(request: Request) -> Response:
    """The likeliest label of texts or images, and the probabilities of all."""
    return await respond(request, ClassifyBody, label)


async def label(body: ClassifyBody, context: Context) -> bytes:
    """The answer of ``classify``."""
    model = context.app.models.oneshot(body.model, "classify")
    results = await run_inputs(context, model, body, body.input)
    labels = model.card.labels
    data = [_labelled(index, probs, labels) for index, probs in enumerate(results.values(model))]
    tokens = usage(results.num_tokens) | {"completion_tokens": 0}
    return listed(context, body, "classify", data, tokens)


async def run_inputs(
    context: Context, model: OneshotModel, body: EncodedBody, given: Any
) -> Results:
    """What the model makes of the field `input`: texts, or images."""
    num_max = context.app.config.inputs_max
    if model.card.modality == "image":
        return await run_images(context, model, body, urls_of(given, num_max))
    return await run_texts(context, model, body, inputs_of(body, texts_of(given, num_max), "input"))


def _labelled(index: int, probs: Values, labels: list[str]) -> dict[str, Any]:
    best = int(np.argmax(probs))
    return {
        "index": index,
        "label": labels[best] if best < len(labels) else None,
        "probs": probs,
        "num_classes": len(probs),
    }


@router.post(
    "/v1/rerank", openapi_extra=takes(RerankBody, *SLO_HEADERS), responses=answers(RANKING)
)
@router.post("/rerank", include_in_schema=False)
@router.post("/v2/rerank", include_in_schema=False)
async def rerank(request: Request) -> Response:
    """Documents by how well they answer a query, the best first."""
    return await respond(request, RerankBody, rank)


async def rank(body: RerankBody, context: Context) -> bytes:
    """The answer of ``rerank``: a reranker's scores, or the cosines of embeddings."""
    texts = documents_of(body, context.app.config.inputs_max)
    if context.app.models.task(body.model) == "embed":
        names = "query", "documents"
        scores, num_tokens = await _cosines(body, context, names, [body.query], texts)
    else:
        model = context.app.models.oneshot(body.model, "rerank")
        inputs = inputs_of(body, texts, "documents", [body.query])
        results = await run_texts(context, model, body, inputs)
        scores = [float(values[0]) for values in results.values(model)]
        num_tokens = results.num_tokens
    order = sorted(range(len(texts)), key=lambda index: (-scores[index], index))
    shown = body.return_documents is not False
    return dumps(
        {
            "id": new_id("rerank"),
            "model": body.model,
            "usage": usage(num_tokens),
            "results": [_ranked(i, scores[i], texts[i], shown) for i in order[: body.top_n]],
        }
    )


def _ranked(index: int, score: float, text: Text, shown: bool) -> dict[str, Any]:
    entry: dict[str, Any] = {"index": index}
    if shown:
        entry["document"] = {"text": text}
    return entry | {"relevance_score": score}


@router.post("/score", openapi_extra=takes(ScoreBody, *SLO_HEADERS), responses=answers(SCORES))
@router.post("/v1/score", include_in_schema=False)
async def score(request: Request) -> Response:
    """How well each second text fits its first, or the only first one."""
    return await respond(request, ScoreBody, rate)


async def rate(body: ScoreBody, context: Context) -> bytes:
    """A reranker's scores, or the cosines of embeddings."""
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
    body: RerankBody | ScoreBody,
    context: Context,
    names: tuple[str, str],
    firsts: Sequence[str],
    seconds: Sequence[Text],
) -> tuple[list[float], int]:
    """Of the embeddings of each second text and its first, or the only first one; and how many
    tokens they have.
    """
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


@router.post("/pooling", openapi_extra=takes(PoolingBody, *SLO_HEADERS), responses=answers(POOLING))
async def pooling(request: Request) -> Response:
    """Embeddings, or the probabilities of all labels."""
    return await respond(request, PoolingBody, pool)


async def pool(body: PoolingBody, context: Context) -> bytes:
    """The answer of ``pooling``."""
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
