"""Registering adapters: as vLLM's clients do it, by a folder on a kvstore's host, and by upload."""

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import PlainTextResponse

from services.frontend.access import note
from services.frontend.adapters import lora_card
from services.frontend.api.answers import Json
from services.frontend.api.bodies import (
    ID_CHARS_MAX,
    LoadAdapterBody,
    UnloadAdapterBody,
    parse,
)
from services.frontend.api.documents import takes
from services.frontend.api.schemas import (
    ADAPTER,
    ADAPTER_DELETED,
    ADAPTER_FORM,
    ADAPTERS,
    PLAIN_TEXT,
    answers,
)
from services.frontend.app import App, app_of
from services.frontend.auth import SCOPE_ADMIN, Caller, Forbidden
from services.frontend.models import ServedModel
from services.frontend.request import caller_of, read_body, request_id_of
from shared.adapters.record import EVERYBODY, check_adapter_name
from shared.adapters.vocabulary import vocabulary_of
from shared.errors import InvalidRequest, NobodyListens, NoCapacity, NotFound
from shared.ids import TenantId
from shared.messages import (
    AdapterAdd,
    AdapterChanged,
    AdapterRecord,
    AdapterRemove,
    AdapterUpload,
)
from shared.subjects import ADAPTER_ADD, ADAPTER_ADD_ANYWHERE, ADAPTER_REMOVE

ADD_TIMEOUT_S = 300.0
REMOVE_TIMEOUT_S = 10.0
GRACE_S = 0.25  # for a kvstore of this host, before others are asked
TRUE, FALSE = ("true", "1"), ("false", "0", "")
FORM_FIELDS = ("base_model_name", "load_inplace", "shared", "tenant")

Name = Annotated[str, Path(min_length=1, max_length=ID_CHARS_MAX)]
Tenant = Annotated[str | None, Query(min_length=1, max_length=ID_CHARS_MAX)]
Shared = Annotated[bool, Query()]

router = APIRouter(tags=["adapters"])


@dataclass(frozen=True, slots=True, kw_only=True)
class _New:
    """An adapter that somebody wants to add."""

    name: str
    tenant: TenantId
    base: str | None
    replace: bool
    path: str = ""


@router.post(
    "/load_lora_adapter",
    openapi_extra=takes(LoadAdapterBody),
    responses=PLAIN_TEXT,
    include_in_schema=False,
)
@router.post("/v1/load_lora_adapter", openapi_extra=takes(LoadAdapterBody), responses=PLAIN_TEXT)
async def load_adapter(request: Request) -> Response:
    """Add an adapter from a folder on a kvstore's host."""
    body = parse(LoadAdapterBody, await read_body(request))
    if not body.lora_name or not body.lora_path:
        missing = "lora_path" if body.lora_name else "lora_name"
        raise InvalidRequest("Both 'lora_name' and 'lora_path' must be provided.", missing)
    new = _New(
        name=check_adapter_name(body.lora_name),
        tenant=_owner(caller_of(request), body.tenant, shared=bool(body.shared)),
        base=body.base_model_name,
        replace=bool(body.load_inplace),
        path=body.lora_path,
    )
    await _add(request, new, None)
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
    body = parse(UnloadAdapterBody, await read_body(request))
    if not body.lora_name:
        raise InvalidRequest(
            "'lora_name' needs to be provided to unload a LoRA adapter.", "lora_name"
        )
    await _remove(request, body.lora_name, body.tenant, shared=body.shared)
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


@router.get("/v1/adapters", responses=answers(ADAPTERS))
async def list_adapters(request: Request, tenant: Tenant = None) -> Response:
    """The caller's adapters and everybody's."""
    app, caller = app_of(request), caller_of(request)
    records = await app.adapters.listed(_owner(caller, tenant, shared=False))
    return Json({"object": "list", "data": [_shown(record) for record in records]})


@router.put("/v1/adapters/{name:path}", openapi_extra=ADAPTER_FORM, responses=answers(ADAPTER))
async def put_adapter(request: Request, name: Name) -> Response:
    """Add an adapter whose files are sent along."""
    app, caller = app_of(request), caller_of(request)
    check_adapter_name(name)
    with app.uploads.opened() as upload:
        content_type = request.headers.get("content-type", "")
        received = await app.uploads.receive(upload, content_type, request.stream())
        fields = upload.fields
        for field in fields:
            if field not in FORM_FIELDS:
                raise InvalidRequest(f"{field}: no field of this form", field)
        new = _New(
            name=name,
            tenant=_owner(caller, fields.get("tenant") or None, shared=_truth(fields, "shared")),
            base=fields.get("base_model_name") or None,
            replace=_truth(fields, "load_inplace"),
        )
        return Json(_shown(await _add(request, new, received)))


@router.get("/v1/adapters/{name:path}", responses=answers(ADAPTER))
async def get_adapter(request: Request, name: Name, tenant: Tenant = None) -> Response:
    """What an adapter is."""
    app = app_of(request)
    record = await app.adapters.find(_owner(caller_of(request), tenant, shared=False), name)
    if record is None:
        raise _unknown(name)
    return Json(_shown(record))


@router.delete("/v1/adapters/{name:path}", responses=answers(ADAPTER_DELETED))
async def delete_adapter(
    request: Request, name: Name, tenant: Tenant = None, shared: Shared = False
) -> Response:
    """Remove an adapter. Turns that run on it end on it."""
    await _remove(request, name, tenant, shared=shared or None)
    return Json({"id": name, "object": "adapter.deleted", "deleted": True})


async def _add(request: Request, new: _New, upload: AdapterUpload | None) -> AdapterRecord:
    """Have a kvstore take it: that of this host, or else any.

    Raises:
        SymphonyError: it cannot be served, or nobody takes it.
    """
    app = app_of(request)
    note(adapter=new.name)
    if app.models.knows(new.name):
        raise InvalidRequest(
            f"lora_name: a model is called {new.name!r}", "lora_name", code="name_taken"
        )
    base = _base(app, new.base)
    add = AdapterAdd(
        name=new.name,
        tenant=new.tenant,
        model_id=base.card.model_id,
        card=lora_card(base.card),
        base_names=[base.card.source, base.card.model_id],
        vocabulary=await asyncio.to_thread(vocabulary_of, base.card.source),
        path=new.path,
        upload=upload,
        replace=new.replace,
        request_id=request_id_of(request),
    )
    bus = app.bus
    try:
        record = await bus.request(
            ADAPTER_ADD, add, app.config.host_id, timeout_s=ADD_TIMEOUT_S, grace_s=GRACE_S
        )
    except NobodyListens:
        record = await bus.request(ADAPTER_ADD_ANYWHERE, add, timeout_s=ADD_TIMEOUT_S)
    app.adapters.on_changed(
        AdapterChanged(
            name=record.name, tenant=record.tenant, revision=record.revision, record=record
        )
    )
    return record


async def _remove(request: Request, name: str, tenant: str | None, *, shared: bool | None) -> None:
    """Have the kvstore that has it give it up.

    Raises:
        NotFound: the caller has none of this name.
        SymphonyError: nobody can say that it is gone.
    """
    app, caller = app_of(request), caller_of(request)
    note(adapter=name)
    owners = [_owner(caller, tenant, shared=bool(shared))]
    if shared is None and tenant is None and SCOPE_ADMIN in caller.scopes:
        owners.append(EVERYBODY)
    for owner in owners:
        record = await app.adapters.standing(owner, name)
        if record is not None:
            break
    else:
        raise _unknown(name)
    remove = AdapterRemove(name=name, tenant=record.tenant, request_id=request_id_of(request))
    try:
        gone = await app.bus.request(
            ADAPTER_REMOVE, remove, record.host_id, timeout_s=REMOVE_TIMEOUT_S
        )
    except NobodyListens:
        raise NoCapacity(f"the host that has the adapter {name!r} is away") from None
    revision = max(gone.revision, record.revision) + 1
    app.adapters.on_changed(AdapterChanged(name=name, tenant=record.tenant, revision=revision))


def _owner(caller: Caller, tenant: str | None, *, shared: bool) -> TenantId:
    """Whose adapter it is, or is to be.

    Raises:
        Forbidden: not the caller's, who is no administrator.
    """
    owner = EVERYBODY if shared else TenantId(tenant or caller.tenant)
    if owner != caller.tenant and SCOPE_ADMIN not in caller.scopes:
        raise Forbidden(f"other adapters than one's own are for the scope {SCOPE_ADMIN!r}")
    return owner


def _base(app: App, name: str | None) -> ServedModel:
    """The base of a new adapter: the one that is named, or the only one that takes any.

    Raises:
        InvalidRequest: it takes none; or none is named, and there are several.
        NotFound: there is no such model.
        NoCapacity: none can be asked now.
    """
    if name is not None:
        if app.models.task(name) is not None:
            raise InvalidRequest(
                f"base_model_name: `{name}` is a one-shot model, which takes no adapters",
                "base_model_name",
                code="adapters_unsupported",
            )
        try:
            return app.models.get(name)
        except NotFound as error:
            raise NotFound(error.message, "base_model_name", error.code) from None
    models = app.models.all()
    if not models:
        raise NoCapacity("no model can be asked now")
    taking = [model for model in models if model.card.lora is not None]
    if len(taking) > 1:
        names = ", ".join(repr(model.card.model_id) for model in taking)
        raise InvalidRequest(f"base_model_name: name one of {names}", "base_model_name")
    return taking[0] if taking else models[0]  # who is asked for its card then says no by name


def _truth(fields: dict[str, str], name: str) -> bool:
    value = fields.get(name, "").lower()
    if value not in (*TRUE, *FALSE):
        raise InvalidRequest(f"{name}: give true or false", name)
    return value in TRUE


def _unknown(name: str) -> NotFound:
    # vLLM's words; the same for one that is somebody else's
    return NotFound(
        f"The lora adapter '{name}' cannot be found.", "lora_name", code="model_not_found"
    )


def _shown(record: AdapterRecord) -> dict[str, Any]:
    return {
        "id": record.name,
        "object": "adapter",
        "created": record.created,
        "tenant": record.tenant or None,
        "parent": record.model_id,
        "root": record.root,
        "adapter_hash": record.adapter_hash,
        "lora_rank": record.lora_rank,
        "ranks": record.ranks,
        "num_bytes": record.num_bytes,
        "image_bytes": record.image_bytes,
        "revision": record.revision,
        "warnings": record.warnings,
    }
