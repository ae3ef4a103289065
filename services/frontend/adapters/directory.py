"""Looks up adapters by the names in requests: the model to run, or an error."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Any

from services.frontend.core.adapters.names import AdapterNames, StoredAdapter
from services.frontend.models.registry import Models, ServedModel, elsewhere
from services.frontend.sessions.store import SessionStore, StoreAway
from shared.adapters.record import (
    BASE_SEPARATOR,
    EVERYBODY,
    adapter_gone_redis_key,
    adapters_redis_key,
    decode_adapter,
    is_adapter_name,
)
from shared.errors import InvalidRequest, MalformedMessage, NoCapacity, NotFound
from shared.ids import TenantId
from shared.runtime.clock import Clock
from shared.wire.messages import AdapterChanged, AdapterRecord, LoraCard, ModelCard

# Keys: the records of a tenant and the shared ones; the notes of the name's removal. Argument: the
# name.
_READ = """
return {
  redis.call('HGET', KEYS[1], ARGV[1]), redis.call('GET', KEYS[3]),
  redis.call('HGET', KEYS[2], ARGV[1]), redis.call('GET', KEYS[4])
}
"""


class AdapterDirectory:
    """Every adapter that can be named here.

    Args:
        store: Redis, as it is asked for sessions.
    """

    def __init__(self, store: SessionStore, models: Models, clock: Clock) -> None:
        self._store = store
        self._models = models
        self._clock = clock
        self._names = AdapterNames()
        self._asked: dict[tuple[TenantId, str], asyncio.Task[None]] = {}

    async def close(self) -> None:
        """Cancel questions to Redis."""
        asked = list(self._asked.values())
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)

    def on_changed(self, changed: AdapterChanged) -> None:
        """Handler of ADAPTER_CHANGED."""
        self._names.on_changed(changed, self._clock.now_ns())

    async def model(
        self, tenant: TenantId, model: str | None, adapter_id: str | None = None
    ) -> ServedModel:
        """What a request for text names: an adapter, a base model, ``BASE:NAME``, or a base model
        and an adapter of it.

        Args:
            model: None: the only base model.

        Raises:
            NotFound: nothing that the tenant may use.
            InvalidRequest: an adapter where none is taken, or of another base; or no name where
                there are several.
            NoCapacity: Redis does not answer, or the model cannot be served now.
        """
        if model is None:
            only = self._models.only()
            if adapter_id is None:
                return only
            model = str(only.card.model_id)
        if adapter_id is not None:
            return await self._of_base(tenant, model, adapter_id, "adapter_id")
        record = await self.find(tenant, model)
        if record is not None:
            return self._with(record)
        if (parts := self._base_and_name(model)) is not None:
            return await self._of_base(tenant, *parts, "model")
        return self._models.get(model)

    async def hinted(self, tenant: TenantId, model: str) -> AdapterRecord | None:
        """The adapter that a hint names as its model: by its name, or as ``BASE:NAME``. None: it is
        a base model's name.

        Raises:
            NotFound: it names neither. While Redis does not answer it may name an adapter.
            InvalidRequest: it names a one-shot model.
        """
        parts = self._base_and_name(model)
        with suppress(StoreAway):
            record = await self.find(tenant, model if parts is None else parts[1])
            base = record and record.model_id
            if record and (parts is None or base == self._models.own_name(parts[0])):
                return record
            self._models.check_exists(model)
        return None

    async def find(self, tenant: TenantId, name: str) -> AdapterRecord | None:
        """The adapter of this name that the tenant may use, if any. Redis is asked only about names
        that are not known here.

        Raises:
            StoreAway: Redis does not answer, and no base model has the name.
        """
        if not is_adapter_name(name):
            return None
        is_base = self._models.knows(name)
        answer = self._names.find(tenant, name, self._clock.now_ns(), is_base=is_base)
        if answer.ask == "no":
            return answer.record
        asking = self._ask(tenant, name)
        if answer.ask == "behind":
            return answer.record
        try:
            await asyncio.shield(asking)
        except StoreAway:
            if answer.record is None and not is_base:
                raise
            return answer.record
        return self._names.find(tenant, name, self._clock.now_ns(), is_base=is_base).record

    async def refuse(self, tenant: TenantId, name: str) -> None:
        """Check a name that was given for a one-shot model and that no model has.

        Raises:
            InvalidRequest: an adapter has it.
        """
        with suppress(StoreAway):
            record = await self.find(tenant, name)
            if record is not None:
                raise elsewhere(record.name, None)

    async def standing(self, owner: TenantId, name: str) -> AdapterRecord | None:
        """The adapter of this name that `owner` has (a tenant, or `EVERYBODY`), read from Redis.

        Raises:
            StoreAway: Redis does not answer.
        """
        if not is_adapter_name(name):
            return None
        await asyncio.shield(self._ask(owner, name))
        return self._names.known(owner, name)

    async def listed(self, tenant: TenantId) -> list[AdapterRecord]:
        """The tenant's own adapters and the shared ones, by name; while Redis is away those
        that are known here.
        """
        try:
            found: list[list[bytes]] = [
                await self._store.do("hvals", adapters_redis_key(owner))
                for owner in (tenant, EVERYBODY)
            ]
        except StoreAway:
            records = list(self._names.known_to(tenant))
        else:
            records = await asyncio.to_thread(
                _decode_all, [each for some in found for each in some]
            )
        own = {record.name for record in records if record.tenant == tenant}
        shown = [each for each in records if each.tenant == tenant or each.name not in own]
        return sorted(shown, key=lambda record: record.name)

    def _base_and_name(self, model: str) -> tuple[str, str] | None:
        """The parts of ``BASE:NAME``, if there is such a base, and no model of that whole name."""
        base, separator, name = model.rpartition(BASE_SEPARATOR)
        is_pair = separator and name and not self._models.knows(model) and self._models.knows(base)
        return (base, name) if is_pair else None

    async def _of_base(self, tenant: TenantId, model: str, name: str, param: str) -> ServedModel:
        base = self._models.get(model)
        record = await self.find(tenant, name)
        if record is None:
            shown = name if param == "adapter_id" else f"{model}{BASE_SEPARATOR}{name}"
            raise NotFound(f"The model `{shown}` does not exist.", param, code="model_not_found")
        if record.model_id != base.card.model_id:
            raise InvalidRequest(
                f"{param}: the adapter `{name}` is of the model `{record.model_id}`, not of "
                f"`{model}`",
                param,
                code="adapter_of_other_base",
            )
        return self._with(record)

    def _with(self, record: AdapterRecord) -> ServedModel:
        try:
            model = self._models.get(record.model_id)
        except NotFound:
            raise NoCapacity(
                f"no worker serves {record.model_id!r}, the base of the adapter {record.name!r}"
            ) from None
        check_fits(record, model.card)
        return replace(model, adapter=record.ref)

    def _ask(self, tenant: TenantId, name: str) -> "asyncio.Task[None]":
        """Ask Redis for a name, once for all requests that wait for it."""
        key = tenant, name
        task = self._asked.get(key)
        if task is None:
            task = self._asked[key] = asyncio.create_task(self._read(tenant, name))
            task.add_done_callback(lambda done: self._on_asked(key, done))
        return task

    def _on_asked(self, key: tuple[TenantId, str], task: "asyncio.Task[None]") -> None:
        del self._asked[key]
        if not task.cancelled():
            error = task.exception()  # raised in the requests that wait, if any do
            assert error is None or isinstance(error, StoreAway), repr(error)

    async def _read(self, tenant: TenantId, name: str) -> None:
        owners = tenant, EVERYBODY
        keys = [adapters_redis_key(owner) for owner in owners]
        keys += [adapter_gone_redis_key(owner, name) for owner in owners]
        found: list[Any] = await self._store.do("eval", _READ, len(keys), *keys, name)
        now_ns = self._clock.now_ns()
        for owner, record, gone in zip(owners, found[::2], found[1::2], strict=True):
            stored = StoredAdapter(None if record is None else _decode(record), int(gone or 0))
            self._names.on_stored(owner, name, stored, now_ns)


def check_fits(record: AdapterRecord, card: ModelCard) -> None:
    """Check that a base model takes an adapter: the model may have changed since it was added.

    Raises:
        InvalidRequest: it does not.
    """
    lora = lora_card(card)
    targets = {target.name for target in (*lora.targets, *lora.outer)}
    for name, rank in record.ranks.items():
        if name not in targets or rank > lora.rank_max:
            raise InvalidRequest(
                f"the adapter `{record.name}` does not fit the model `{card.model_id}` any more: "
                f"{name} with rank {rank}",
                "model",
                code="adapter_invalid",
            )


def lora_card(card: ModelCard) -> LoraCard:
    """What adapters a model takes.

    Raises:
        InvalidRequest: none.
    """
    if card.lora is None:
        raise InvalidRequest(
            f"The model `{card.model_id}` takes no adapters.", "model", code="adapters_unsupported"
        )
    return card.lora


def _decode(data: bytes) -> AdapterRecord | None:
    try:
        return decode_adapter(data)
    except MalformedMessage:
        return None  # of another release


def _decode_all(found: list[bytes]) -> list[AdapterRecord]:
    return [record for data in found if (record := _decode(data)) is not None]
