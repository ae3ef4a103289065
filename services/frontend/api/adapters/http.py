"""Registering adapters: as vLLM's clients do it, by a folder on a kvstore's host, and by upload."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import PlainTextResponse

from services.frontend.api.adapters.registration import (
    NewAdapter,
    add_adapter,
    count_change,
    info_of,
    owner_of,
    remove_adapter,
    unknown,
)
from services.frontend.api.bodies.base import ID_CHARS_MAX
from services.frontend.api.bodies.documents import takes
from services.frontend.api.bodies.fields import parse
from services.frontend.api.bodies.schemas import (
    ADAPTER,
    ADAPTER_DELETED,
    ADAPTER_FORM,
    ADAPTERS,
    PLAIN_TEXT,
    answers,
)
from services.frontend.api.bodies.text import LoadAdapterBody, UnloadAdapterBody
from services.frontend.app import app_of
from services.frontend.http.answers import Json
from services.frontend.http.request import caller_of, read_body, request_id_of
from shared.adapters.record import check_adapter_name
from shared.errors import InvalidRequest
from shared.wire.messages import AdapterInfos

TRUE, FALSE = ("true", "1"), ("false", "0", "")
FORM_FIELDS = ("base_model_name", "load_inplace", "shared", "tenant")

Name = Annotated[str, Path(min_length=1, max_length=ID_CHARS_MAX)]
Tenant = Annotated[str | None, Query(min_length=1, max_length=ID_CHARS_MAX)]
Shared = Annotated[bool, Query()]

router = APIRouter(tags=["adapters"])


@router.post(
    "/load_lora_adapter",
    openapi_extra=takes(LoadAdapterBody),
    responses=PLAIN_TEXT,
    include_in_schema=False,
)
@router.post("/v1/load_lora_adapter", openapi_extra=takes(LoadAdapterBody), responses=PLAIN_TEXT)
async def load_adapter(request: Request) -> Response:
    """Add an adapter from a folder on a kvstore's host."""
    body = parse(LoadAdapterBody, await read_body(request, app_of(request).config))
    if not body.lora_name or not body.lora_path:
        missing = "lora_path" if body.lora_name else "lora_name"
        raise InvalidRequest("Both 'lora_name' and 'lora_path' must be provided.", missing)
    count_change(app_of(request), caller_of(request))
    new = NewAdapter(
        name=check_adapter_name(body.lora_name),
        tenant=owner_of(caller_of(request), body.tenant, shared=bool(body.shared)),
        base=body.base_model_name,
        replace=bool(body.load_inplace),
        path=body.lora_path,
    )
    await add_adapter(app_of(request), new, None, request_id_of(request))
    return PlainTextResponse(f"Success: LoRA adapter '{new.name}' added successfully.")


@router.post(
    "/unload_lora_adapter",
    openapi_extra=takes(UnloadAdapterBody),
    responses=PLAIN_TEXT,
    include_in_schema=False,
)
@router.post(
    "/v1/unload_lora_adapter", openapi_extra=takes(UnloadAdapterBody), responses=PLAIN_TEXT
)
async def unload_adapter(request: Request) -> Response:
    """Remove an adapter. Turns that run on it end on it."""
    body = parse(UnloadAdapterBody, await read_body(request, app_of(request).config))
    if not body.lora_name:
        raise InvalidRequest(
            "'lora_name' needs to be provided to unload a LoRA adapter.", "lora_name"
        )
    count_change(app_of(request), caller_of(request))
    await remove_adapter(
        app_of(request),
        caller_of(request),
        body.lora_name,
        request_id_of(request),
        tenant=body.tenant,
        shared=body.shared,
    )
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


@router.get("/v1/adapters", responses=answers(ADAPTERS))
async def list_adapters(request: Request, tenant: Tenant = None) -> Response:
    """The caller's adapters and everybody's."""
    app, caller = app_of(request), caller_of(request)
    records = await app.adapters.listed(owner_of(caller, tenant, shared=False))
    return Json(AdapterInfos(data=[info_of(record) for record in records]))


@router.put("/v1/adapters/{name:path}", openapi_extra=ADAPTER_FORM, responses=answers(ADAPTER))
async def put_adapter(request: Request, name: Name) -> Response:
    """Add an adapter whose files are sent along."""
    app, caller = app_of(request), caller_of(request)
    check_adapter_name(name)
    count_change(app, caller)  # before its files are taken
    with app.library.uploads.opened(caller.tenant) as upload:
        content_type = request.headers.get("content-type", "")
        received = await app.library.uploads.receive(upload, content_type, request.stream())
        fields = upload.fields
        for field in fields:
            if field not in FORM_FIELDS:
                raise InvalidRequest(f"{field}: no field of this form", field)
        new = NewAdapter(
            name=name,
            tenant=owner_of(caller, fields.get("tenant") or None, shared=_truth(fields, "shared")),
            base=fields.get("base_model_name") or None,
            replace=_truth(fields, "load_inplace"),
        )
        return Json(await add_adapter(app, new, received, request_id_of(request)))


@router.get("/v1/adapters/{name:path}", responses=answers(ADAPTER))
async def get_adapter(request: Request, name: Name, tenant: Tenant = None) -> Response:
    """What an adapter is."""
    app = app_of(request)
    record = await app.adapters.find(owner_of(caller_of(request), tenant, shared=False), name)
    if record is None:
        raise unknown(name)
    return Json(info_of(record))


@router.delete("/v1/adapters/{name:path}", responses=answers(ADAPTER_DELETED))
async def delete_adapter(
    request: Request, name: Name, tenant: Tenant = None, shared: Shared = False
) -> Response:
    """Remove an adapter. Turns that run on it end on it."""
    app, caller, request_id = app_of(request), caller_of(request), request_id_of(request)
    count_change(app, caller)
    gone = await remove_adapter(app, caller, name, request_id, tenant=tenant, shared=shared or None)
    return Json(gone)


def _truth(fields: dict[str, str], name: str) -> bool:
    value = fields.get(name, "").lower()
    if value not in (*TRUE, *FALSE):
        raise InvalidRequest(f"{name}: give true or false", name)
    return value in TRUE
