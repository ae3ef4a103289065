"""``GET /v1/models`` and ``/v1/models/{id}``."""

from typing import Any

from fastapi import APIRouter, Request, Response

from services.frontend.api.bodies.schemas import MODEL, MODELS, answers
from services.frontend.app import app_of
from services.frontend.http.answers import Json
from services.frontend.http.request import caller_of
from services.frontend.models.registry import OneshotModel, ServedModel
from shared.wire.messages import AdapterRecord, ModelCard, OneshotCard

router = APIRouter(tags=["models"])


@router.get("/v1/models", responses=answers(MODELS))
async def list_models(request: Request) -> Response:
    """Every model that can be asked now."""
    app = app_of(request)
    models = app.models.all()
    data = [_model(model) for model in models]
    data += [_oneshot(model) for model in app.models.all_oneshot()]
    by_name = {entry["id"]: entry for entry in data}
    for name, model_id in app.models.other_names():
        if model_id in by_name:
            data.append(by_name[model_id] | {"id": name})
    bases = {model.card.model_id: model for model in models if model.card.lora is not None}
    if bases:
        records = await app.adapters.listed(caller_of(request).tenant)
        data += [
            _adapter(record, bases[record.model_id])
            for record in records
            if record.model_id in bases
        ]
    return Json({"object": "list", "data": data})


@router.get("/v1/models/{model_id:path}", responses=answers(MODEL))
async def get_model(request: Request, model_id: str) -> Response:
    """One of them; ids may hold slashes."""
    app = app_of(request)
    models = app.models
    record = await app.adapters.find(caller_of(request).tenant, model_id)
    if record is not None:
        return Json(_adapter(record, models.served(record.model_id)))
    if (task := models.task(model_id)) is not None:
        entry = _oneshot(models.oneshot(model_id, task))
    else:
        entry = _model(models.served(model_id))
    return Json(entry | {"id": model_id})


def _model(model: ServedModel) -> dict[str, Any]:
    return _entry(model.card, model.card.max_model_len, "generate")


def _adapter(record: AdapterRecord, base: ServedModel) -> dict[str, Any]:
    own = {"id": record.name, "created": record.created, "root": record.root}
    return _model(base) | own | {"parent": record.model_id}


def _oneshot(model: OneshotModel) -> dict[str, Any]:
    card = model.card
    sizes = [variant.variant for variant in card.variants]
    entry = _entry(card, max(sizes) if all(sizes) else None, card.task)
    return entry | {"modality": card.modality, "slo_ms": card.slo_ms}


def _entry(card: ModelCard | OneshotCard, max_model_len: int | None, task: str) -> dict[str, Any]:
    return {
        "id": card.model_id,
        "object": "model",
        "created": card.created,
        "owned_by": "symphony",
        "root": card.source,
        "parent": None,
        "max_model_len": max_model_len,
        "task": task,
    }
