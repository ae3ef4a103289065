"""Adds and removes adapters: from a folder or an upload to the disk, and to Redis.

The long work (copy, check) is done in threads, several at once. Changes of names are made one after
another under one lock: the disk first, which is authoritative, then Redis. If that does not take
the change, it is undone on the disk.
"""

import asyncio
import base64
import binascii
import errno
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

from services.kvstore.adapters.copies import AdapterCopies, Sources
from services.kvstore.adapters.index import AdapterIndex
from services.kvstore.adapters.saving import AdapterSaving
from services.kvstore.adapters.store import AdapterSource, AdapterStore, IncomingAdapter
from services.kvstore.core.registry import (
    DiskFull,
    Name,
    Registry,
    RegistryLimits,
    next_revision,
)
from services.kvstore.index.redis_link import Redis
from shared.adapters.check import CheckedAdapter
from shared.adapters.files import TAKEN, check_names
from shared.adapters.record import GONE_MAX, AdapterExists, check_adapter_name
from shared.errors import InvalidRequest, NotFound, PeerUnavailable, SymphonyError, TenantQuota
from shared.fair_slots import FairGate, FairLimits
from shared.ids import HostId
from shared.runtime.metrics import counter, gauge
from shared.service import Runtime
from shared.wire import subjects
from shared.wire.messages import (
    AdapterAdd,
    AdapterChanged,
    AdapterRecord,
    AdapterRemove,
    AdapterUpload,
    UploadPull,
)

log = logging.getLogger(__name__)

P = ParamSpec("P")
Q = TypeVar("Q")
T = TypeVar("T")

COPYING_MAX = 2  # copies and checks of adapters at once, of different tenants
THREADS = COPYING_MAX + 2  # the others are for short work
WAITING_MAX = 128
WAIT_S = 240.0  # less than a frontend waits
PULL_BYTES = 512 * 1024
PULL_TIMEOUT_S = 10.0
TICK_S = 30.0
NS_PER_S = 1_000_000_000
FULL = (errno.ENOSPC, errno.EDQUOT)
ADAPTERS = gauge("adapters", "Names of adapters whose files are on this host")
ADAPTER_CHANGES = counter(
    "adapter_changes_total", "Adapters that came and went, by what became of it", ["outcome"]
)


class Adapters:
    """The adapters of this host.

    Args:
        store: has their files.
        limits: what tenants may have.
        sources: where files come from that are not here.
    """

    def __init__(
        self,
        runtime: Runtime,
        host_id: HostId,
        store: AdapterStore,
        redis: Redis,
        limits: RegistryLimits,
        sources: Sources,
    ) -> None:
        self._runtime = runtime
        self._host_id = host_id
        self._store = store
        self._registry = Registry(limits)
        self._index = AdapterIndex(
            redis, host_id, lambda: self._registry.state, lambda: self._registry.names,
            self._republish,
        )  # fmt: skip
        self._changing = asyncio.Lock()
        self._threads = ThreadPoolExecutor(THREADS, "adapters")
        self._copying = FairGate(
            "additions of adapters",
            FairLimits(
                num=COPYING_MAX, of_tenant=1, waiting=WAITING_MAX,
                waiting_of_tenant=WAITING_MAX // 2,
            ),
        )  # fmt: skip
        self._copies = AdapterCopies(
            runtime, host_id, store, self._registry, self._changing, sources
        )
        self._saving: AdapterSaving | None = None
        if sources.objects is not None:
            self._saving = AdapterSaving(sources.objects, store, self._registry)
        self._tasks: list[asyncio.Task[None]] = []
        self._changes: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    async def open(self) -> None:
        """Learn what is on the disk. Closed with the runtime.

        Raises:
            OSError: it cannot be read.
        """
        self._runtime.stack.push_async_callback(self.close)
        found = await self._in_thread(self._store.scan)
        for record in self._registry.on_found(found.records, found.files, self._now_ns()):
            log.error("an adapter's files are gone", extra=_named(record))
            await self._in_thread(self._store.delete_record, record.tenant, record.name)
        ADAPTERS.set(len(self._registry))

    async def serve(self) -> None:
        """Answer, and keep Redis in step."""
        bus, host_id = self._runtime.bus, self._host_id
        await bus.serve(subjects.ADAPTER_ADD, self._until_closed(self._add), host_id)
        await bus.serve(subjects.ADAPTER_ADD_ANYWHERE, self._until_closed(self._add))
        await bus.serve(subjects.ADAPTER_REMOVE, self._until_closed(self._remove), host_id)
        await bus.subscribe(subjects.ADAPTER_CHANGED, self._on_changed)
        await self._copies.serve()
        self._tasks = [
            self._runtime.spawn(self._index.run(), "adapter-index"),
            self._runtime.spawn(self._tick(), "adapter-tick"),
        ]
        if self._saving is not None:
            self._tasks.append(self._runtime.spawn(self._saving.run(), "adapter-saving"))

    async def close(self) -> None:
        """Begin nothing more, end what is being changed, and disconnect."""
        self._is_closed = True
        tasks = [*self._tasks, *self._changes]
        for task in tasks:
            task.cancel()
        await asyncio.gather(self._copies.close(), *tasks, return_exceptions=True)
        await asyncio.to_thread(self._threads.shutdown, wait=True, cancel_futures=True)

    async def _add(self, message: AdapterAdd) -> AdapterRecord:
        name = message.tenant, check_adapter_name(message.name)
        record = None
        try:
            record = await self._added(name, message)
        except OSError as error:
            raise _disk_error(error) from None
        finally:
            ADAPTER_CHANGES.labels("refused" if record is None else "added").inc()
        log.info("adapter added", extra=_named(record) | {"request_id": message.request_id})
        return record

    async def _added(self, name: Name, message: AdapterAdd) -> AdapterRecord:
        source, sizes = await self._sizes(message)
        self._registry.begin(name, sum(sizes.values()), replace=message.replace)
        incoming = None
        try:
            await self._refuse_standing(name, message)
            incoming = await self._in_thread(self._store.begin)
            if message.upload is not None:
                await self._pull(message.upload, sizes, incoming)
            async with self._copying.slot(message.tenant, WAIT_S):
                if source is not None:
                    await self._in_thread(incoming.copy, source, sizes)
                checked, num_image_bytes = await self._in_thread(incoming.check, message)
            async with self._changing:
                _, revision = await self._refuse_standing(name, message)
                record = self._record(message, checked, revision)
                record = replace(record, num_bytes=sum(sizes.values()), image_bytes=num_image_bytes)
                await self._in_thread(incoming.install, checked.adapter_hash, message.card)
                await self._stand(record)
            await self._announce(record)
            return record
        finally:
            self._registry.end(name)
            if incoming is not None:
                await asyncio.shield(self._in_thread(incoming.discard))

    def _record(self, message: AdapterAdd, checked: CheckedAdapter, revision: int) -> AdapterRecord:
        """Of an adapter that was checked, but for its sizes.

        Args:
            revision: the highest that the name had.
        """
        own = self._registry.get((message.tenant, message.name))
        return AdapterRecord(
            name=message.name,
            tenant=message.tenant,
            model_id=message.model_id,
            adapter_hash=checked.adapter_hash,
            ranks=dict(checked.ranks),
            lora_rank=checked.lora_rank,
            num_bytes=0,
            image_bytes=0,
            root=message.path or "upload",
            host_id=self._host_id,
            created=self._runtime.clock.wall_ns() // NS_PER_S,
            revision=next_revision(revision, 0 if own is None else own.revision),
            warnings=list(checked.warnings),
        )

    async def _sizes(self, message: AdapterAdd) -> tuple[AdapterSource | None, dict[str, int]]:
        """Where the files come from, and how large those are that are taken."""
        if message.upload is None:
            source = await self._in_thread(self._store.open_source, message.path)
            return source, await self._in_thread(source.sizes)
        files = message.upload.files
        check_names(files, has_pickle=False)
        sizes = {name: files[name] for name in TAKEN if name in files}
        if min(sizes.values()) < 0:
            raise InvalidRequest("files: a size is below 0", "files")
        return None, sizes

    async def _refuse_standing(
        self, name: Name, message: AdapterAdd
    ) -> tuple[AdapterRecord | None, int]:
        """What stands under the name on any host, if it may be replaced."""
        standing, revision = await self._index.standing(name)
        if not message.replace and (standing is not None or self._registry.get(name) is not None):
            raise AdapterExists(message.name)
        if not revision and await self._index.num_gone(message.tenant) >= GONE_MAX:
            raise TenantQuota(
                f"lora_name: this tenant has removed {GONE_MAX} adapters within a day: a "
                "further name is not taken; one of those is"
            )
        return standing, revision

    async def _stand(self, record: AdapterRecord) -> None:
        """Let a name stand for its adapter, on disk and in Redis, or for what it did.

        Raises:
            OSError: the disk did not take it.
            AdapterStoreAway: Redis did not.
            AdapterExists: another host was faster.
        """
        before, old = self._registry.state, self._registry.get((record.tenant, record.name))
        try:
            await self._in_thread(self._store.write_record, record)
            self._registry.stand(record, self._now_ns())
            if not await self._index.put(record, before):
                raise AdapterExists(record.name)
        except (OSError, SymphonyError):
            if old is None:
                await self._fall((record.tenant, record.name))
            else:
                await self._in_thread(self._store.write_record, old)
                self._registry.stand(old, self._now_ns())
            raise
        self._note_change()

    async def _fall(self, name: Name) -> None:
        await self._in_thread(self._store.delete_record, *name)
        self._registry.fall(name, self._now_ns())
        self._note_change()

    def _note_change(self) -> None:
        ADAPTERS.set(len(self._registry))
        if self._saving is not None:
            self._saving.on_changed()

    async def _remove(self, message: AdapterRemove) -> AdapterRecord:
        name = message.tenant, message.name
        try:
            async with self._changing:
                record = self._registry.get(name)
                if record is None:
                    raise NotFound(
                        f"The lora adapter '{message.name}' cannot be found.", "lora_name",
                        code="model_not_found",
                    )  # fmt: skip
                await self._index.standing(name)  # while Redis is away nothing changes
                before = self._registry.state
                await self._fall(name)
                revision = await self._index.withdraw(name, before)
        except OSError as error:
            raise _disk_error(error) from None
        if revision:
            changed = AdapterChanged(name=message.name, tenant=message.tenant, revision=revision)
            await self._runtime.bus.publish(subjects.ADAPTER_CHANGED, changed)
        ADAPTER_CHANGES.labels("removed").inc()
        log.info("adapter removed", extra=_named(record) | {"request_id": message.request_id})
        return record

    def _on_changed(self, changed: AdapterChanged) -> None:
        """Another host has a newer adapter under a name that stands for something here."""
        name = changed.tenant, changed.name
        own = self._registry.get(name)
        if own is not None and own.revision < changed.revision and not self._is_closed:
            self._runtime.spawn(self._yield(name), "adapter-superseded")

    async def _yield(self, name: Name) -> None:
        with suppress(PeerUnavailable):
            await self._until_closed(self._yield_to_newer)(name)

    async def _yield_to_newer(self, name: Name) -> None:
        """Give a name up unless it is newer here than anywhere."""
        try:
            async with self._changing:
                own = self._registry.get(name)
                _, revision = await self._index.standing(name)
                if own is not None and own.revision < revision:
                    await self._give_way(own)
        except (OSError, SymphonyError) as error:
            log.warning("an adapter of another host's", extra={"error": str(error)})

    async def _republish(self) -> None:
        """Put everything into Redis that belongs there, and take out what does not."""
        async with self._changing:
            for name in await self._index.published() - self._registry.names:
                if revision := await self._index.withdraw(name):
                    gone = AdapterChanged(name=name[1], tenant=name[0], revision=revision)
                    await self._runtime.bus.publish(subjects.ADAPTER_CHANGED, gone)
            for name in sorted(self._registry.names):
                record = self._registry.get(name)
                assert record is not None
                if not await self._index.put(record):
                    await self._settle(record)

    async def _settle(self, record: AdapterRecord) -> None:
        """Redis has something else under a name, of as high a revision. If this host put it there,
        before its disk was put back, the disk is right.
        """
        name = record.tenant, record.name
        standing, revision = await self._index.standing(name)
        try:
            if standing is not None and standing.host_id == self._host_id:
                newer = replace(record, revision=next_revision(revision))
                await self._in_thread(self._store.write_record, newer)
                self._registry.stand(newer, self._now_ns())
                await self._index.put(newer)
                await self._announce(newer)
            elif revision >= record.revision:
                await self._give_way(record)
        except OSError as error:
            log.error("an adapter's record", extra=_named(record) | {"error": str(error)})

    async def _give_way(self, record: AdapterRecord) -> None:
        log.warning("an adapter was replaced or removed elsewhere", extra=_named(record))
        name = record.tenant, record.name
        before = self._registry.state
        await self._fall(name)
        await self._index.withdraw(name, before)

    async def _announce(self, record: AdapterRecord) -> None:
        changed = AdapterChanged(
            name=record.name, tenant=record.tenant, revision=record.revision, record=record
        )
        await self._runtime.bus.publish(subjects.ADAPTER_CHANGED, changed)

    async def _pull(
        self, upload: AdapterUpload, sizes: dict[str, int], incoming: IncomingAdapter
    ) -> None:
        """Fetch the files from the frontend that received them.

        Raises:
            PeerUnavailable: it does not have them any more.
            OSError: there is no room.
        """
        part_bytes = min(PULL_BYTES, self._runtime.bus.payload_bytes_max // 2)
        for name, size in sizes.items():
            await self._in_thread(incoming.append, name, b"")
            for offset in range(0, size, part_bytes):
                num_bytes = min(part_bytes, size - offset)
                pull = UploadPull(
                    upload_id=upload.upload_id, file=name, offset=offset, num_bytes=num_bytes
                )
                part = await self._runtime.bus.request(
                    subjects.UPLOAD_PULL, pull, upload.frontend_id, timeout_s=PULL_TIMEOUT_S
                )
                await self._in_thread(_append_part, incoming, name, part.data, num_bytes)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            await self.drop_unneeded()

    async def drop_unneeded(self) -> None:
        """Remove files that no name has pointed to for as long as a turn can last."""
        async with self._changing:
            for adapter_hash in self._registry.droppable(self._now_ns()):
                await self._in_thread(self._store.delete_folder, adapter_hash)
                log.info("adapter files removed", extra={"adapter_hash": adapter_hash})

    def _until_closed(self, work: Callable[[Q], Awaitable[T]]) -> Callable[[Q], Awaitable[T]]:
        """`work`, of which nothing is under way once this is closed."""

        async def guarded(argument: Q) -> T:
            if self._is_closed:
                raise PeerUnavailable("the kvstore is stopping")
            task = asyncio.ensure_future(work(argument))
            self._changes.add(task)
            task.add_done_callback(self._changes.discard)
            try:
                return await asyncio.shield(task)
            except asyncio.CancelledError:
                if task.cancelled():
                    raise PeerUnavailable("the kvstore is stopping") from None
                raise

        return guarded

    def _now_ns(self) -> int:
        return self._runtime.clock.now_ns()

    async def _in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: work(*args, **kwargs))


def _append_part(incoming: IncomingAdapter, name: str, data: str, num_bytes: int) -> None:
    try:
        part = base64.b64decode(data, validate=True)
    except binascii.Error as error:
        raise PeerUnavailable(f"the upload: {error}") from None
    if len(part) != num_bytes:
        raise PeerUnavailable("the upload: a part has another length than was asked for")
    incoming.append(name, part)


def _disk_error(error: OSError) -> SymphonyError:
    if error.errno in FULL:
        return DiskFull("there is no room on the disk for the adapter")
    return SymphonyError(f"the adapter's files: {error.strerror}")


def _named(record: AdapterRecord) -> dict[str, object]:
    return {
        "adapter": record.name,
        "tenant": record.tenant,
        "model": record.model_id,
        "adapter_hash": record.adapter_hash,
    }
