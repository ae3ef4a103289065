"""``POST /v1/embeddings``, and Cohere's ``POST /v2/embed``."""

from typing import Any

from fastapi import APIRouter, Request, Response

from services.frontend.api.bodies.base import unsupported
from services.frontend.api.bodies.documents import takes
from services.frontend.api.bodies.oneshot import (
    CohereEmbedBody,
    EmbeddingBody,
    Inputs,
    inputs_of,
    names_of,
    strings_of,
    texts_of,
)
from services.frontend.api.bodies.schemas import COHERE_EMBEDDINGS, EMBEDDINGS, answers
from services.frontend.api.oneshot.inputs import Context
from services.frontend.api.oneshot.requests import (
    SLO_HEADERS,
    dumps,
    listed,
    respond,
    run_texts,
    usage,
)
from services.frontend.api.oneshot.vectors import packed, scaled, shortened, written
from services.frontend.models.registry import OneshotModel
from shared.errors import InvalidRequest
from shared.ids import new_id

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
    """The answer to a body.

    Raises:
        SymphonyError: it cannot be served.
    """
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
    """The answer to a body of Cohere's.

    Raises:
        SymphonyError: it cannot be served.
    """
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
