"""Adds and removes adapters: checks their owner, and asks a kvstore."""

import asyncio
from dataclasses import dataclass

from services.frontend.adapters.directory import lora_card
from services.frontend.app import App
from services.frontend.models.registry import ServedModel
from services.frontend.observability.access_log import note
from services.frontend.tenants.auth import SCOPE_ADMIN, Caller, Forbidden
from services.frontend.tenants.gates import WAIT_S
from shared.adapters.record import EVERYBODY
from shared.adapters.vocabulary import vocabulary_of
from shared.errors import InvalidRequest, NobodyListens, NoCapacity, NotFound
from shared.ids import TenantId
from shared.wire.messages import (
    AdapterAdd,
    AdapterChanged,
    AdapterDeleted,
    AdapterInfo,
    AdapterRecord,
    AdapterRemove,
    AdapterUpload,
)
from shared.wire.subjects import ADAPTER_ADD, ADAPTER_ADD_ANYWHERE, ADAPTER_REMOVE

ADD_TIMEOUT_S = 300.0
REMOVE_TIMEOUT_S = 10.0
GRACE_S = 0.25  # for a kvstore of this host, before others are asked


@dataclass(frozen=True, slots=True, kw_only=True)
class NewAdapter:
    """An adapter to be added."""

    name: str
    tenant: TenantId
    base: str | None
    replace: bool
    path: str = ""


def count_change(app: App, caller: Caller) -> None:
    """Count a change of adapters; administrators have no limit.

    Raises:
        TenantQuota: the tenant made too many.
    """
    if SCOPE_ADMIN not in caller.scopes:
        app.tenants.adapter_changes.take(caller.tenant)


async def add_adapter(
    app: App, new: NewAdapter, upload: AdapterUpload | None, request_id: str
) -> AdapterInfo:
    """Add an adapter to the kvstore of this host, or else to any.

    Raises:
        SymphonyError: it cannot be served, or no kvstore takes it.
    """
    note(adapter=new.name)
    if app.models.knows(new.name):
        raise InvalidRequest(
            f"lora_name: a model is called {new.name!r}", "lora_name", code="name_taken"
        )
    base = _base(app, new.base)
    async with app.gates.additions.slot(new.tenant, WAIT_S):
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
            request_id=request_id,
        )
        record = await _added(app, add)
    app.adapters.on_changed(
        AdapterChanged(
            name=record.name, tenant=record.tenant, revision=record.revision, record=record
        )
    )
    return info_of(record)


async def _added(app: App, add: AdapterAdd) -> AdapterRecord:
    bus = app.bus
    try:
        return await bus.request(
            ADAPTER_ADD, add, app.config.host_id, timeout_s=ADD_TIMEOUT_S, grace_s=GRACE_S
        )
    except NobodyListens:
        return await bus.request(ADAPTER_ADD_ANYWHERE, add, timeout_s=ADD_TIMEOUT_S)


async def remove_adapter(
    app: App, caller: Caller, name: str, request_id: str, *, tenant: str | None, shared: bool | None
) -> AdapterDeleted:
    """Remove an adapter from the kvstore that has it.

    Args:
        tenant: its owner, if not the caller.
        shared: whether all tenants share it; None: an administrator's own goes first.

    Raises:
        NotFound: the caller has none of this name.
        SymphonyError: its removal was not confirmed.
    """
    note(adapter=name)
    owners = [owner_of(caller, tenant, shared=bool(shared))]
    if shared is None and tenant is None and SCOPE_ADMIN in caller.scopes:
        owners.append(EVERYBODY)
    for owner in owners:
        record = await app.adapters.standing(owner, name)
        if record is not None:
            break
    else:
        raise unknown(name)
    remove = AdapterRemove(name=name, tenant=record.tenant, request_id=request_id)
    try:
        gone = await app.bus.request(
            ADAPTER_REMOVE, remove, record.host_id, timeout_s=REMOVE_TIMEOUT_S
        )
    except NobodyListens:
        raise NoCapacity(f"the host that has the adapter {name!r} is away") from None
    revision = max(gone.revision, record.revision) + 1
    app.adapters.on_changed(AdapterChanged(name=name, tenant=record.tenant, revision=revision))
    return AdapterDeleted(id=name)


def owner_of(caller: Caller, tenant: str | None, *, shared: bool) -> TenantId:
    """The owner of an adapter.

    Raises:
        Forbidden: not the caller, which is no administrator.
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
    return taking[0] if taking else models[0]  # its card then gives the error


def unknown(name: str) -> NotFound:
    """In vLLM's words; the same for another tenant's adapter."""
    return NotFound(
        f"The lora adapter '{name}' cannot be found.", "lora_name", code="model_not_found"
    )


def info_of(record: AdapterRecord) -> AdapterInfo:
    """What its owner is shown."""
    return AdapterInfo(
        id=record.name,
        created=record.created,
        tenant=record.tenant or None,
        parent=record.model_id,
        root=record.root,
        adapter_hash=record.adapter_hash,
        lora_rank=record.lora_rank,
        ranks=record.ranks,
        num_bytes=record.num_bytes,
        image_bytes=record.image_bytes,
        revision=record.revision,
        warnings=record.warnings,
    )
