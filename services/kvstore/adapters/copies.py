"""Files of adapters whose names are on other hosts: fetched when a worker here is to run one, or is
about to, from a host that has them or from the object store, and checked by their hash. They stay
until no worker has asked for them for as long as files without a name do.
"""

import asyncio
import errno
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

from services.kvstore.adapters.files import is_hash
from services.kvstore.adapters.objects import AdapterObjects
from services.kvstore.adapters.parts import are_sizes
from services.kvstore.adapters.pulling import PeerPull
from services.kvstore.adapters.store import AdapterStore, IncomingAdapter
from services.kvstore.core.popularity import Popularity
from services.kvstore.core.registry import DiskFull, Registry
from services.kvstore.peers.transport import PeerTransport
from services.kvstore.tiers.objects.store import StoreFailed
from shared.errors import InvalidRequest, NoCapacity, PeerUnavailable, SymphonyError
from shared.ids import HostId
from shared.runtime.metrics import counter
from shared.service import Runtime
from shared.wire import subjects
from shared.wire.messages import AdapterFetch, AdapterFind, AdapterFound, AdaptersUsed, Empty

log = logging.getLogger(__name__)

T = TypeVar("T")

FETCHES_MAX = 4  # at once
WAITING_MAX = 256
FETCH_S = 600.0  # for one, however large it is
FIND_S = 0.3  # for all hosts to say whether they have it
HOSTS_MAX = 3  # tried one after another
FULL = (errno.ENOSPC, errno.EDQUOT)
ADAPTER_FETCHES = counter(
    "adapter_fetches_total", "Adapters' files wanted from elsewhere, by what became of it",
    ["outcome"],
)  # fmt: skip


class FilesNowhere(NoCapacity):
    """No host that answers has an adapter's files, nor has the object store."""

    code = "adapter_unavailable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where files come from that are not here.

    Attributes:
        transport: to other hosts; None: none is asked.
        address: where this host serves its own; empty: nowhere.
        objects: the object store; None: there is none.
        num_bytes_max: of one adapter.
        serves: whether a worker of this host serves the model of this fingerprint.
    """

    transport: PeerTransport | None = None
    address: str = ""
    objects: AdapterObjects | None = None
    num_bytes_max: int
    serves: Callable[[str], bool]


class AdapterCopies:
    """Args:
    registry: of this host.
    changing: held while files get their name or go.
    """

    def __init__(
        self,
        runtime: Runtime,
        host_id: HostId,
        store: AdapterStore,
        registry: Registry,
        changing: asyncio.Lock,
        sources: Sources,
    ) -> None:
        self._runtime = runtime
        self._host_id = host_id
        self._store = store
        self._registry = registry
        self._changing = changing
        self._sources = sources
        self._fetches: dict[str, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(FETCHES_MAX)
        self._popularity = Popularity()
        self._popular: dict[str, AdapterFetch] = {}  # to be fetched ahead
        self._fetching_ahead: asyncio.Task[None] | None = None
        self._is_closed = False

    async def serve(self) -> None:
        """Answer."""
        bus = self._runtime.bus
        await bus.serve(
            subjects.ADAPTER_FETCH, self._on_fetch, self._host_id, concurrency_max=WAITING_MAX
        )
        await bus.serve_some(subjects.ADAPTER_FIND, self._on_find)
        await bus.subscribe(subjects.ADAPTERS_USED, self._on_used)

    async def close(self) -> None:
        """Abandon what is being fetched."""
        self._is_closed = True
        tasks = list(self._fetches.values())
        tasks += [] if self._fetching_ahead is None else [self._fetching_ahead]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _on_find(self, find: AdapterFind) -> AdapterFound | None:
        adapter_hash, address = find.adapter_hash, self._sources.address
        if self._is_closed or not (address and self._registry.has_files(adapter_hash)):
            return None
        try:
            sizes = await asyncio.to_thread(self._store.sizes, adapter_hash)
        except OSError:
            return None
        return AdapterFound(host_id=self._host_id, files=sizes, address=address)

    async def _on_fetch(self, fetch: AdapterFetch) -> Empty:
        """One at a time of an adapter, for all that ask."""
        name = fetch.adapter_hash
        if not is_hash(name):
            raise InvalidRequest(f"adapter_hash: {name!r} is none", "adapter_hash")
        if self._registry.use_files(name, self._runtime.clock.now_ns()):
            return Empty()
        if self._is_closed:
            raise PeerUnavailable("the kvstore is stopping")
        if (task := self._fetches.get(name)) is None:
            if len(self._fetches) >= WAITING_MAX:
                raise NoCapacity("too many adapters are being fetched")
            task = self._fetches[name] = asyncio.ensure_future(self._fetch(fetch))
            task.add_done_callback(lambda done: self._on_done(name, done))
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise PeerUnavailable("the kvstore is stopping") from None
            raise
        return Empty()

    def _on_used(self, used: AdaptersUsed) -> None:
        """Fetch what is popular now and not here, if a turn on it may come to this host."""
        if self._is_closed or not self._sources.serves(used.fingerprint):
            return
        now_ns, is_here = self._runtime.clock.now_ns(), self._registry.has_files
        for name in self._popularity.on_used(used.uses, now_ns, is_here):
            if len(self._popular) < WAITING_MAX and is_hash(name):
                self._popular[name] = AdapterFetch(adapter_hash=name, card=used.card)
        if self._popular and (self._fetching_ahead is None or self._fetching_ahead.done()):
            self._fetching_ahead = asyncio.ensure_future(self._fetch_ahead())

    async def _fetch_ahead(self) -> None:
        """One after another: turns' own are not to wait for them."""
        while self._popular:
            fetch = self._popular.pop(next(iter(self._popular)))
            if self._registry.has_room_ahead(self._sources.num_bytes_max):
                with suppress(SymphonyError):  # it is logged
                    await self._on_fetch(fetch)

    def _on_done(self, name: str, task: "asyncio.Task[None]") -> None:
        del self._fetches[name]
        error = None if task.cancelled() else task.exception()
        ADAPTER_FETCHES.labels("failed" if error or task.cancelled() else "fetched").inc()
        if error is not None:
            log.warning("adapter not fetched", extra={"adapter_hash": name, "error": str(error)})

    async def _fetch(self, fetch: AdapterFetch) -> None:
        """Raises:
        FilesNowhere: none gave them.
        DiskFull: there is no room here.
        """
        reasons: list[str] = []
        async with self._slots:
            try:
                async with asyncio.timeout(FETCH_S):
                    if await self._from_hosts(fetch, reasons):
                        return
                    if await self._from_objects(fetch, reasons):
                        return
            except TimeoutError:
                reasons.append(f"it took more than {FETCH_S:.0f} s")
            except OSError as error:
                if error.errno in FULL:
                    raise DiskFull("there is no room on the disk for the adapter") from None
                raise SymphonyError(f"the adapter's files: {error.strerror}") from None
        why = "; ".join(reasons) or "no host that answers has them"
        raise FilesNowhere(f"the files of adapter {fetch.adapter_hash}: {why}")

    async def _from_hosts(self, fetch: AdapterFetch, reasons: list[str]) -> bool:
        """Whether one gave them. Another one is asked for when the first that answered fails."""
        transport = self._sources.transport
        tried: set[HostId] = {self._host_id}
        while transport is not None and len(tried) <= HOSTS_MAX:
            found = await self._find(fetch.adapter_hash, tried)
            if found is None:
                break
            tried.add(found.host_id)
            async with self._incoming(fetch, found.files) as incoming:
                try:
                    await PeerPull(transport, found).into(fetch.adapter_hash, incoming)
                    await self._install(fetch, incoming, f"host {found.host_id}")
                except PeerUnavailable as error:
                    reasons.append(error.message)
                else:
                    return True
        return False

    async def _find(self, adapter_hash: str, tried: set[HostId]) -> AdapterFound | None:
        def is_of_use(found: AdapterFound) -> bool:
            limit = self._sources.num_bytes_max
            return found.host_id not in tried and are_sizes(found.files, limit)

        answers = await self._runtime.bus.gather(
            subjects.ADAPTER_FIND, AdapterFind(adapter_hash=adapter_hash), timeout_s=FIND_S,
            until=lambda replies: is_of_use(replies[-1]),
        )  # fmt: skip
        return next((answer for answer in answers if is_of_use(answer)), None)

    async def _from_objects(self, fetch: AdapterFetch, reasons: list[str]) -> bool:
        objects = self._sources.objects
        if objects is None:
            return False
        try:
            found = await asyncio.to_thread(objects.found, fetch.adapter_hash)
        except StoreFailed as error:
            reasons.append(f"the object store: {error}")
            return False
        for host_id, sizes in found[:HOSTS_MAX]:
            if not are_sizes(sizes, self._sources.num_bytes_max):
                continue
            async with self._incoming(fetch, sizes) as incoming:
                try:
                    await _uninterrupted(
                        lambda: objects.pull(fetch.adapter_hash, host_id, sizes, incoming)  # noqa: B023
                    )
                    await self._install(fetch, incoming, "the object store")
                except PeerUnavailable as error:
                    reasons.append(error.message)
                else:
                    return True
        return False

    @asynccontextmanager
    async def _incoming(
        self, fetch: AdapterFetch, sizes: dict[str, int]
    ) -> AsyncIterator[IncomingAdapter]:
        """Room for files of these sizes; what is not installed is removed."""
        adapter_hash, registry = fetch.adapter_hash, self._registry
        registry.begin_copy(adapter_hash, sum(sizes.values()))
        try:
            incoming = await asyncio.to_thread(self._store.begin)
            try:
                yield incoming
            finally:
                await asyncio.shield(asyncio.to_thread(incoming.discard))
        finally:
            registry.end_copy(adapter_hash)

    async def _install(self, fetch: AdapterFetch, incoming: IncomingAdapter, source: str) -> None:
        """Raises:
        PeerUnavailable: these are other files.
        """
        adapter_hash = fetch.adapter_hash
        if not await _uninterrupted(lambda: incoming.is_it(adapter_hash, fetch.card)):
            raise PeerUnavailable(f"{source} gave files of another hash")
        async with self._changing:
            await _uninterrupted(lambda: incoming.install(adapter_hash, fetch.card))
            self._registry.on_copied(adapter_hash, self._runtime.clock.now_ns())
        log.info("adapter fetched", extra={"adapter_hash": adapter_hash, "source": source})


async def _uninterrupted(work: Callable[[], T]) -> T:
    """Do it in a thread, to its end even if this is cancelled: it writes where others would."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.gather(task, return_exceptions=True)
        raise
