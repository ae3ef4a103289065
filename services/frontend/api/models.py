"""``GET /v1/models`` and ``/v1/models/{id}``."""

from typing import Any

from fastapi import APIRouter, Request, Response

from services.frontend.api.answers import Json
from services.frontend.app import app_of
from services.frontend.models import ServedModel

router = APIRouter(tags=["models"])


@router.get("/v1/models")
async def list_models(request: Request) -> Response:
    """Every model that can be asked now."""
    data = [_model(model) for model in app_of(request).models.all()]
    return Json({"object": "list", "data": data})


@router.get("/v1/models/{model_id:path}")
async def get_model(request: Request, model_id: str) -> Response:
    """One of them; ids may hold slashes."""
    return Json(_model(app_of(request).models.get(model_id)))


def _model(model: ServedModel) -> dict[str, Any]:
    card = model.card
    return {
        "id": card.model_id,
        "object": "model",
        "created": card.created,
        "owned_by": "symphony",
        "root": card.source,
        "parent": None,
        "max_model_len": card.max_model_len,
    }
