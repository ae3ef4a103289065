"""The worker's side of the kvstore: opens, leases, stages, commits; reconnects by itself."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from services.worker import metrics
from services.worker.core.effects import BlockWrite, StageImage, StageSession, StageTurn
from services.worker.core.kv.answers import gone_blocks
from services.worker.core.kv.kv_link import KvLink
from services.worker.core.kv.staged import Staged
from services.worker.core.splitting import commit_blocks_max
from services.worker.device.base.executor import ModelInfo
from services.worker.device.thread import DeviceThread
from services.worker.ports import HostFiles, Lock
from shared.arena import Arena
from shared.blocks import BlockKey
from shared.bus import Bus
from shared.errors import MalformedMessage, SymphonyError
from shared.ids import HostId, WorkerId, new_id
from shared.runtime.tasks import wait_set
from shared.wire.messages import AdapterFetch, AdapterRef, AdaptersUsed, KvStage
from shared.wire.subjects import (
    ADAPTER_FETCH,
    ADAPTERS_USED,
    KV_COMMIT,
    KV_LEASE,
    KV_OPEN,
    KV_RELEASE,
    KV_RENEW,
    KV_STAGE,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_S = 0.5
PROBE_S = 1.0  # between two questions whether the kvstore still knows us
CALL_TIMEOUT_S = 5.0
USES_EVERY, USES_MAX = 10, 1024  # probes between two reports of adapters, and how many in one
FETCH_TIMEOUT_S = 60.0  # for an adapter's files; then its turns ask again


@dataclass(frozen=True, slots=True, kw_only=True)
class KvHooks:
    """What follows from a connection to the kvstore.

    Attributes:
        on_connected: called with the arena and the epoch each time a connection is opened.
        on_disconnected: called when the kvstore stops answering or has forgotten the connection.
        before_open: called, outside of the event loop, before a connection is opened, which ends
            every lease of the one before: nothing may be written to their pages when it returns.
        before_use: called, outside of the event loop, with an arena that is to be used next.
        take_used: returns which blocks below were used since it was called last.
        on_source: called with the speed at which pages come into the arena, bytes/s, 0: unknown;
            and with the speeds from other hosts.
        on_copies_gone: called with blocks of which there is no copy below any more.
    """

    on_connected: Callable[[Arena, int], None]
    on_disconnected: Callable[[], None]
    before_open: Callable[[], None] = lambda: None
    before_use: Callable[[Arena], None] = lambda arena: None
    take_used: Callable[[], list[BlockKey]] = list
    on_source: Callable[[float, Mapping[HostId, float]], None] = lambda own, others: None
    on_copies_gone: Callable[[list[BlockKey]], None] = lambda keys: None


class KvClient:
    """The shell around `core.kv.kv_link`: one model's connection to the kvstore of this host.

    Args:
        worker_id: under which the kvstore knows this model of this worker.

    Attributes:
        adapters_path: folder of this host with the files of every adapter; empty: none is known.
        lease_path: see `LeaseLock`; of the connection that is being opened, or is open.
    """

    def __init__(
        self,
        bus: Bus,
        host_id: HostId,
        worker_id: WorkerId,
        info: ModelInfo,
        hooks: KvHooks,
        files: HostFiles,
        thread: DeviceThread,
    ) -> None:
        self._bus = bus
        self._host_id = host_id
        self._link = KvLink(worker_id, info.fingerprint, info.num_layers, info.stored_page_bytes)
        self._hooks = hooks
        self._files = files
        self._lora = info.lora
        self._uses: Counter[str] = Counter()  # of adapters, not reported yet
        self._num_renewed = 0
        self._thread = thread
        self.adapters_path = ""
        self.lease_path = ""
        self._lease_lock: Lock | None = None
        self._lost = asyncio.Event()
        self._lost.set()
        self._met = asyncio.Event()

    @property
    def epoch(self) -> int:
        """Counts connections; pages and tickets of an earlier one mean nothing any more."""
        return self._link.epoch

    @property
    def is_connected(self) -> bool:
        return self._link.is_open

    @property
    def has_met(self) -> bool:
        """Whether there ever was a connection."""
        return self._met.is_set()

    async def maintain(self) -> None:
        """Keep the connection: open, and open again whenever it is lost. Runs for ever.

        A kvstore that was restarted knows no worker. Renewing now and then lets an idle worker
        notice before its next turn, whose new blocks would otherwise not be stored.
        """
        has_warned = False
        while True:
            if not await wait_set(self._lost, PROBE_S):
                await self._renew()
                continue
            try:
                await self._open()
                has_warned = False
            except (SymphonyError, OSError) as error:
                if not has_warned:
                    log.warning("no kvstore: KV stays on this worker", extra={"error": str(error)})
                    has_warned = True
                await asyncio.sleep(RETRY_S)

    async def _renew(self) -> None:
        self._num_renewed += 1
        if self._num_renewed % USES_EVERY == 0:
            await self._tell_uses()
        request = self._link.renew(self._hooks.take_used())
        reply = await self._call(self._bus.request(KV_RENEW, request, self._host_id))
        if reply is None:
            return
        try:
            self._hooks.on_source(*self._link.on_renewed(reply))
            self._hooks.on_copies_gone(gone_blocks(reply))
        except MalformedMessage as error:
            _reject("renew", error)

    def count_use(self, adapter: AdapterRef) -> None:
        """A turn on it has come."""
        if len(self._uses) < USES_MAX:
            self._uses[adapter.adapter_hash] += 1

    async def _tell_uses(self) -> None:
        """Where turns on an adapter may come to other hosts, those fetch it before."""
        if self._uses and self._lora is not None:
            uses, self._uses = dict(self._uses), Counter()
            used = AdaptersUsed(fingerprint=self._link.fingerprint, card=self._lora, uses=uses)
            await self._call(self._bus.publish(ADAPTERS_USED, used))

    async def wait_met(self, timeout_s: float) -> None:
        """Return once there was a connection, or after `timeout_s` without one."""
        await wait_set(self._met, timeout_s)

    async def lease(self, num_pages: int) -> list[int] | None:
        """Arena pages to write into; few or none when the arena is full or the kvstore away. None
        if another connection was made meanwhile: the request was of an earlier epoch.
        """
        request, epoch = self._link.lease(num_pages), self.epoch
        reply = await self._call(self._bus.request(KV_LEASE, request, self._host_id))
        if reply is None:
            return [] if epoch == self.epoch else None
        try:
            return self._link.on_leased(reply, epoch)
        except MalformedMessage as error:
            _reject("lease", error)
            return []

    async def stage(self, keys: list[BlockKey]) -> Staged | None:
        """Bring blocks that a turn waits for into the arena; None: it cannot be asked."""
        return await self._stage(self._link.stage(keys), keys)

    async def stage_turn(self, effect: StageTurn) -> Staged | None:
        """Bring a waiting turn's history into the arena."""
        return await self._stage(self._link.stage_turn(effect), effect.keys)

    async def stage_image(self, effect: StageImage) -> Staged | None:
        """Bring an adapter's image into the arena, from any host if it cannot be built on this
        one.
        """
        is_far = not self.has_adapter(effect.adapter_hash)
        return await self._stage(self._link.stage_image(effect, is_far=is_far), effect.keys)

    async def stage_session(self, effect: StageSession) -> Staged | None:
        """Bring an expected session's blocks into the arena."""
        return await self._stage(self._link.stage_session(effect), list(effect.keys) or None)

    def has_adapter(self, adapter_hash: str) -> bool:
        """Whether its files are on this host, as far as is known."""
        path = self.adapters_path
        return bool(path) and self._files.has_adapter(f"{path}/{adapter_hash}")

    async def bring_adapter(self, adapter_hash: str) -> None:
        """Have the kvstore bring its files to this host, if they are elsewhere. If that fails, they
        are not there when it is built.
        """
        if self._lora is None or not self.is_connected or self.has_adapter(adapter_hash):
            return
        fetch = AdapterFetch(adapter_hash=adapter_hash, card=self._lora)
        try:
            await self._bus.request(ADAPTER_FETCH, fetch, self._host_id, timeout_s=FETCH_TIMEOUT_S)
        except SymphonyError as error:
            named = {"adapter_hash": adapter_hash, "error": error.message}
            log.warning("an adapter's files do not come", extra=named)

    async def release(
        self, ticket: int = 0, pages: list[int] | None = None, num_kept: int = 0
    ) -> None:
        """Unpin a stage, but for its first `num_kept` blocks; give leased pages back."""
        request = self._link.release(ticket, pages, num_kept)
        await self._call(self._bus.publish(KV_RELEASE, request, self._host_id))

    async def commit(
        self, writes: list[BlockWrite], checksums: list[list[int]]
    ) -> AsyncIterator[tuple[list[BlockKey], bool]]:
        """Hand new blocks over, as many at once as a message may have: their keys, and whether the
        kvstore has them now.
        """
        size = commit_blocks_max(self._link.num_layers, self._bus.payload_bytes_max)
        for at in range(0, len(writes), size):
            some = writes[at : at + size]
            request = self._link.commit(some, checksums[at : at + size])
            reply = await self._call(self._bus.request(KV_COMMIT, request, self._host_id))
            yield [write.key for write in some], reply is not None

    def close(self) -> None:
        """Unlock the lease file: the kvstore may take back what we hold."""
        if self._lease_lock is not None:
            self._lease_lock.close()
            self._lease_lock = None

    async def _open(self) -> None:
        await self._thread.run_beside(self._hooks.before_open)
        incarnation = new_id("inc")
        request = self._link.open(incarnation)
        opened = await self._bus.request(KV_OPEN, request, self._host_id, timeout_s=CALL_TIMEOUT_S)
        arena = self._files.attach(opened.arena_path)
        self.close()
        self._lease_lock = self._files.lock(opened.lease_path)
        self.lease_path = opened.lease_path
        await self._thread.run_beside(partial(self._hooks.before_use, arena))
        self.adapters_path = opened.adapters_path
        self._link.on_opened(incarnation, arena.num_pages)
        self._lost.clear()
        log.info("kvstore connected", extra={"arena_pages": arena.num_pages})
        self._hooks.on_connected(arena, self.epoch)
        self._met.set()

    async def _stage(self, request: KvStage, keys: list[BlockKey] | None) -> Staged | None:
        epoch = self.epoch
        reply = await self._call(self._bus.request(KV_STAGE, request, self._host_id))
        if reply is None:
            return None
        try:
            return self._link.on_staged(reply, keys, epoch)
        except MalformedMessage as error:
            _reject("stage", error)
            await self.release(ticket=reply.ticket)
            return None

    async def _call(self, call: Awaitable[T]) -> T | None:
        """Await a call to the kvstore. None, and a new connection, if it cannot be reached."""
        epoch = self.epoch
        try:
            return await call
        except SymphonyError as error:
            if self._link.on_error(error, epoch):
                log.warning("kvstore lost", extra={"error": error.message, "code": error.code})
                self._lost.set()
                self._hooks.on_disconnected()
        return None


def _reject(what: str, error: MalformedMessage) -> None:
    """A peer's bad message costs what it was for, and nothing else."""
    metrics.REJECTED.labels(what, error.code).inc()
    log.warning("answer rejected", extra={"what": what, "error": error.message})
