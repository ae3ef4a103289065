"""``POST /v1/rerank``, as Jina and Cohere have it."""

from typing import Any

from fastapi import APIRouter, Request, Response

from services.frontend.api.bodies.documents import takes
from services.frontend.api.bodies.oneshot import RerankBody, Text, documents_of, inputs_of
from services.frontend.api.bodies.schemas import RANKING, answers
from services.frontend.api.oneshot.inputs import Context
from services.frontend.api.oneshot.requests import SLO_HEADERS, dumps, respond, run_texts, usage
from shared.ids import new_id

router = APIRouter(tags=["one-shot models"])


@router.post(
    "/v1/rerank", openapi_extra=takes(RerankBody, *SLO_HEADERS), responses=answers(RANKING)
)
@router.post("/rerank", include_in_schema=False)
@router.post("/v2/rerank", include_in_schema=False)
async def rerank(request: Request) -> Response:
    """Documents by how well they answer a query, the best first."""
    return await respond(request, RerankBody, rank)


async def rank(body: RerankBody, context: Context) -> bytes:
    """The answer to a body.

    Raises:
        SymphonyError: it cannot be served.
    """
    model = context.app.models.oneshot(body.model, "rerank")
    texts = documents_of(body, context.app.config.inputs_max)
    inputs = inputs_of(body, texts, "documents", [body.query])
    results = await run_texts(context, model, body, inputs)
    scores = [float(values[0]) for values in results.values(model)]
    order = sorted(range(len(texts)), key=lambda index: (-scores[index], index))
    shown = body.return_documents is not False
    return dumps(
        {
            "id": new_id("rerank"),
            "model": body.model,
            "usage": usage(results.num_tokens),
            "results": [_entry(i, scores[i], texts[i], shown) for i in order[: body.top_n]],
        }
    )


def _entry(index: int, score: float, text: Text, shown: bool) -> dict[str, Any]:
    entry: dict[str, Any] = {"index": index}
    if shown:
        entry["document"] = {"text": text}
    return entry | {"relevance_score": score}
