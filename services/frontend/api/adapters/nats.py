"""``symphony.adapter.*``: adapters for clients of NATS.

Folders on a kvstore's host only: files are sent along over HTTP. A tenant may add and remove
adapters here if one of its API keys may, for NATS knows nothing of scopes.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from services.frontend.api.adapters.registration import (
    NewAdapter,
    add_adapter,
    count_change,
    info_of,
    remove_adapter,
    unknown,
)
from services.frontend.app import App
from services.frontend.observability.access_log import access_line, note
from services.frontend.tenants.auth import SCOPE_ADAPTERS, Caller, Forbidden, Keyring
from services.frontend.tenants.links import Link
from shared.adapters.record import check_adapter_name
from shared.errors import InvalidRequest, SymphonyError
from shared.ids import TenantId, new_id
from shared.runtime.logs import log_context
from shared.wire.messages import (
    AdapterDeleted,
    AdapterInfo,
    AdapterInfos,
    AdapterLoad,
    AdapterNamed,
)
from shared.wire.subjects import (
    ADAPTER_GET,
    ADAPTER_LIST,
    ADAPTER_LOAD,
    ADAPTER_UNLOAD,
    TENANT_ADAPTER_GET,
    TENANT_ADAPTER_LIST,
    TENANT_ADAPTER_LOAD,
    TENANT_ADAPTER_UNLOAD,
    Subject,
)
from shared.wire.tenants import own_tenant

Asked = TypeVar("Asked", AdapterLoad, AdapterNamed)
Answer = TypeVar("Answer")


async def serve(app: App, keyring: Keyring, link: Link) -> None:
    """Answer what comes on a link, together with every other frontend."""
    desk = _Desk(app, keyring, link)
    await desk.serve(ADAPTER_LOAD, TENANT_ADAPTER_LOAD, desk.load)
    await desk.serve(ADAPTER_UNLOAD, TENANT_ADAPTER_UNLOAD, desk.unload)
    await desk.serve(ADAPTER_GET, TENANT_ADAPTER_GET, desk.get)
    await desk.serve(ADAPTER_LIST, TENANT_ADAPTER_LIST, desk.list)


class _Desk:
    """Where requests are answered."""

    def __init__(self, app: App, keyring: Keyring, link: Link) -> None:
        self._app = app
        self._keyring = keyring
        self._link = link

    async def serve(
        self,
        public: Subject[Asked, Answer],
        tenants: Subject[Asked, Answer],
        handler: Callable[[TenantId, Asked, str], Awaitable[Answer]],
    ) -> None:
        """Call `handler` with the tenant of a request, and the request's id."""

        async def answer(tenant: TenantId, asked: Asked) -> Answer:
            request_id = new_id("req")
            line = {"method": "NATS", "path": public.pattern, "tenant": tenant}
            with log_context(request_id=request_id), access_line(line):
                try:
                    return await handler(tenant, asked, request_id)
                except SymphonyError as error:
                    note(error=error.code)
                    raise

        async def of_tenant(tenant: TenantId, asked: Asked) -> Answer:
            return await answer(own_tenant(tenant, asked.tenant or tenant), asked)

        async def of_anybody(asked: Asked) -> Answer:
            return await answer(self._keyring.named(asked.tenant), asked)

        bus = self._link.bus
        if self._link.is_public:
            await bus.serve(public, of_anybody)
        for tenant in self._link.tenants:
            await bus.serve_tenants(tenants, of_tenant, tenant=tenant)

    async def load(self, tenant: TenantId, asked: AdapterLoad, request_id: str) -> AdapterInfo:
        self._check_may_change(tenant)
        if not asked.lora_path:
            raise InvalidRequest("lora_path: give a folder on the kvstore's host", "lora_path")
        new = NewAdapter(
            name=check_adapter_name(asked.lora_name),
            tenant=tenant,
            base=asked.base_model_name,
            replace=asked.load_inplace,
            path=asked.lora_path,
        )
        count_change(self._app, Caller(tenant, frozenset({SCOPE_ADAPTERS})))
        return await add_adapter(self._app, new, None, request_id)

    async def unload(
        self, tenant: TenantId, asked: AdapterNamed, request_id: str
    ) -> AdapterDeleted:
        self._check_may_change(tenant)
        caller = Caller(tenant, frozenset({SCOPE_ADAPTERS}))
        count_change(self._app, caller)
        return await remove_adapter(
            self._app, caller, asked.lora_name, request_id, tenant=None, shared=False
        )

    async def get(self, tenant: TenantId, asked: AdapterNamed, _: str) -> AdapterInfo:
        record = await self._app.adapters.find(tenant, asked.lora_name)
        if record is None:
            raise unknown(asked.lora_name)
        return info_of(record)

    async def list(self, tenant: TenantId, _: AdapterNamed, __: str) -> AdapterInfos:
        records = await self._app.adapters.listed(tenant)
        return AdapterInfos(data=[info_of(record) for record in records])

    def _check_may_change(self, tenant: TenantId) -> None:
        """Raises:
        Forbidden: none of the tenant's keys may.
        """
        if not self._keyring.allows(tenant, SCOPE_ADAPTERS):
            raise Forbidden(f"no API key of the tenant {tenant!r} has the scope {SCOPE_ADAPTERS!r}")
