"""``/health``, ``/ping``, ``/version`` and ``/metrics``."""

from functools import cache
from importlib import metadata

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from services.frontend.api.answers import Json
from services.frontend.app import app_of
from shared.errors import NoCapacity

PACKAGE = "symphony-serving"

router = APIRouter(tags=["operations"], default_response_class=Response)


@router.get("/health")
async def health(request: Request) -> Response:
    """An empty 200 if some model can be asked, else 503."""
    models = app_of(request).models
    if not models.all() and not models.all_oneshot():
        raise NoCapacity("no worker can serve")
    return Response()


@router.get("/ping")
@router.post("/ping", include_in_schema=False)
async def ping() -> Response:
    """An empty 200: this process lives."""
    return Response()


@router.get("/version", response_class=Json)
async def version() -> Response:
    """The installed release."""
    return Json({"version": release()})


@router.get("/metrics")
async def metrics() -> Response:
    """Prometheus's text format."""
    return Response(generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})


@cache
def release() -> str:
    """The installed release; ``source`` when nothing is installed."""
    try:
        return metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        return "source"
