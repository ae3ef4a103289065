"""``/health``, ``/ping``, ``/version`` and ``/metrics``."""

from functools import cache
from importlib import metadata
from typing import Any

from fastapi import APIRouter, Request, Response

from services.frontend.api.bodies.schemas import VERSION, answers
from services.frontend.app import app_of
from services.frontend.http.answers import Json
from services.frontend.http.errors import error_answer
from services.frontend.http.request import caller_of
from services.frontend.tenants.auth import SCOPE_ADMIN
from shared.errors import NoCapacity
from shared.runtime.exposition import (
    CONTENT_TYPE,
    OPENMETRICS,
    OPENMETRICS_TYPE,
    own_metrics,
    without,
)

PACKAGE = "symphony-serving"
ADAPTERS_AT_WORK = "lora_requests_info"  # names of adapters, which may be another tenant's
METRICS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The metrics",
        "content": {
            content_type: {"schema": {"type": "string"}}
            for content_type in ("text/plain", OPENMETRICS)
        },
    }
}

router = APIRouter(tags=["operations"], default_response_class=Response)


@router.get("/health")
async def health(request: Request) -> Response:
    """An empty 200 if some model can be asked, else 503."""
    models = app_of(request).models
    if not models.all() and not models.all_oneshot():
        refused = NoCapacity(f"no worker can serve: {models.why_away()}")
        return error_answer(refused, request.scope)  # asked for, so not counted
    return Response()


@router.get("/ping")
@router.post("/ping")
async def ping() -> Response:
    """An empty 200: this process lives."""
    return Response()


@router.get("/version", response_class=Json, responses=answers(VERSION))
async def version() -> Response:
    """The installed release."""
    return Json({"version": release()})


@router.get("/metrics", responses=METRICS)
async def metrics(request: Request) -> Response:
    """Prometheus's text format, or OpenMetrics if that is asked for: of this frontend, or of the
    whole deployment where it collects those."""
    app = app_of(request)
    as_openmetrics = OPENMETRICS in request.headers.get("accept", "")
    if app.config.metrics_of_house:
        text = await app.observability.metrics.text(as_openmetrics=as_openmetrics)
    else:
        text = own_metrics(as_openmetrics=as_openmetrics)
    if SCOPE_ADMIN not in caller_of(request).scopes:
        text = without(text, ADAPTERS_AT_WORK)
    content_type = OPENMETRICS_TYPE if as_openmetrics else CONTENT_TYPE
    return Response(text, headers={"Content-Type": content_type})


@cache
def release() -> str:
    """The installed release; ``source`` when nothing is installed."""
    try:
        return metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        return "source"
