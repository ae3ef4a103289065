"""The worker's side of the kvstore: opens, leases, stages, commits; comes back by itself."""

import asyncio
import fcntl
import logging
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from services.worker import metrics
from services.worker.core.answers import leased_pages, staged_blocks
from services.worker.core.effects import BlockWrite
from services.worker.core.staged import Staged
from services.worker.engine.executor import ModelInfo
from shared.arena import Arena
from shared.blocks import BlockKey, pack_keys
from shared.bus import Bus
from shared.errors import MalformedMessage, NoCapacity, SymphonyError
from shared.ids import DEFAULT_TENANT, HostId, SessionId, TenantId, WorkerId, new_id
from shared.messages import (
    KvBlock,
    KvCommit,
    KvLease,
    KvOpen,
    KvRelease,
    KvRenew,
    KvStage,
    KvStaged,
    pack_ints,
)
from shared.subjects import KV_COMMIT, KV_LEASE, KV_OPEN, KV_RELEASE, KV_RENEW, KV_STAGE

log = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_S = 0.5
PROBE_S = 1.0  # between two questions whether the kvstore still knows us
CALL_TIMEOUT_S = 5.0
DEMAND_PRIORITY = 100  # above every advisory's


class KvClient:
    """One model's connection to the kvstore of this host.

    Attributes:
        epoch: counts connections; pages and tickets of an earlier one mean nothing any more.

    Args:
        on_connected: called with the arena and the epoch each time a kvstore knows us (anew).
        on_disconnected: called when it stops answering or has forgotten us.
    """

    def __init__(
        self,
        bus: Bus,
        host_id: HostId,
        worker_id: WorkerId,
        info: ModelInfo,
        on_connected: Callable[[Arena, int], None],
        on_disconnected: Callable[[], None],
    ) -> None:
        self._bus = bus
        self._host_id = host_id
        self._worker_id = worker_id
        self._incarnation = new_id("inc")
        self._info = info
        self._on_connected = on_connected
        self._on_disconnected = on_disconnected
        self._lease_lock: int | None = None
        self._tickets: set[int] = set()  # what the core was given and has not released
        self.epoch = 0
        self._num_arena_pages = 0
        self._lost = asyncio.Event()
        self._lost.set()
        self._met = asyncio.Event()

    @property
    def is_connected(self) -> bool:
        return not self._lost.is_set()

    async def maintain(self) -> None:
        """Keep the connection: open, and open again whenever it is lost. Runs for ever.

        A kvstore that was restarted knows nobody. It is told now and then what we hold, so that an
        idle worker learns of it before its next turn, whose new blocks would else go nowhere.
        """
        has_warned = False
        while True:
            try:
                await asyncio.wait_for(self._lost.wait(), PROBE_S)
            except TimeoutError:
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

    async def wait_met(self, timeout_s: float) -> None:
        """Return once a kvstore knows us for the first time, or after `timeout_s` without one."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._met.wait(), timeout_s)

    async def lease(self, num_pages: int) -> list[int]:
        """Arena pages to write into; few or none when the arena is full or the kvstore away."""
        request = KvLease(
            worker_id=self._worker_id,
            incarnation=self._incarnation,
            page_bytes=self._info.page_bytes,
            num_pages=num_pages,
        )
        reply = await self._call(self._bus.request(KV_LEASE, request, self._host_id))
        if reply is None:
            return []
        try:
            return leased_pages(reply, self._num_arena_pages)
        except MalformedMessage as error:
            _reject("lease", error)
            return []

    async def stage(self, keys: list[BlockKey], request_id: str = "") -> Staged | None:
        """Bring a waiting turn's blocks into the arena; None if the kvstore cannot be asked."""
        request = self._stage_request(pack_keys(keys), request_id=request_id)
        reply = await self._stage(request)
        return None if reply is None else await self._staged(reply, keys)

    async def stage_session(
        self, tenant: TenantId, session_id: SessionId, priority: int
    ) -> Staged | None:
        """Bring an expected session's blocks into the arena."""
        reply = await self._stage(self._stage_request("", tenant, session_id, priority))
        return None if reply is None else await self._staged(reply, None)

    async def release(self, ticket: int = 0, pages: list[int] | None = None) -> None:
        """Unpin a stage, give leased pages back."""
        self._tickets.discard(ticket)
        request = KvRelease(
            worker_id=self._worker_id,
            incarnation=self._incarnation,
            ticket=ticket,
            page_bytes=self._info.page_bytes,
            pages=pack_ints(pages or []),
        )
        await self._call(self._bus.publish(KV_RELEASE, request, self._host_id))

    async def commit(self, writes: list[BlockWrite], checksums: list[list[int]]) -> bool:
        """Hand new blocks over; whether the kvstore has them now."""
        blocks = [
            KvBlock(
                key=write.key.hex(),
                parent=write.parent.hex(),
                tokens=pack_ints(write.tokens),
                pages=pack_ints(write.arena_pages),
                checksums=pack_ints(sums, "Q"),
            )
            for write, sums in zip(writes, checksums, strict=True)
        ]
        request = KvCommit(
            worker_id=self._worker_id,
            incarnation=self._incarnation,
            fingerprint=self._info.fingerprint,
            page_bytes=self._info.page_bytes,
            blocks=blocks,
        )
        return await self._call(self._bus.request(KV_COMMIT, request, self._host_id)) is not None

    def close(self) -> None:
        """Let the lease go: the kvstore may take back what we hold."""
        if self._lease_lock is not None:
            os.close(self._lease_lock)
            self._lease_lock = None

    async def _open(self) -> None:
        # A new one each time: a call of ours that the kvstore hears late must not hold anything.
        incarnation = new_id("inc")
        request = KvOpen(
            worker_id=self._worker_id,
            incarnation=incarnation,
            fingerprint=self._info.fingerprint,
            num_layers=self._info.num_layers,
            page_bytes=self._info.page_bytes,
        )
        opened = await self._bus.request(KV_OPEN, request, self._host_id, timeout_s=CALL_TIMEOUT_S)
        arena = Arena.attach(Path(opened.arena_path))
        self.close()
        lock = os.open(opened.lease_path, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        self._lease_lock = lock
        self._num_arena_pages = arena.num_pages
        self._incarnation = incarnation
        self._tickets.clear()
        self._lost.clear()
        log.info("kvstore connected", extra={"arena_pages": arena.num_pages})
        self.epoch += 1
        self._on_connected(arena, self.epoch)
        self._met.set()

    async def _renew(self) -> None:
        request = KvRenew(
            worker_id=self._worker_id,
            incarnation=self._incarnation,
            tickets=pack_ints(sorted(self._tickets), "Q"),
        )
        await self._call(self._bus.request(KV_RENEW, request, self._host_id))

    async def _stage(self, request: KvStage) -> KvStaged | None:
        """None also for an answer to an earlier connection: its ticket went with that."""
        epoch = self.epoch
        reply = await self._call(self._bus.request(KV_STAGE, request, self._host_id))
        if reply is None or epoch != self.epoch:
            return None
        if reply.ticket:
            self._tickets.add(reply.ticket)
        return reply

    async def _call(self, call: Awaitable[T]) -> T | None:
        """Await a call to the kvstore. None, and a new connection, if it is not to be reached."""
        epoch = self.epoch
        try:
            return await call
        except NoCapacity as error:
            if error.code == NoCapacity.code:  # it answered: it has no room now
                return None
            self._lose(error, epoch)
        except SymphonyError as error:
            self._lose(error, epoch)
        return None

    def _lose(self, error: SymphonyError, epoch: int) -> None:
        if epoch == self.epoch and not self._lost.is_set():
            log.warning("kvstore lost", extra={"error": error.message, "code": error.code})
            self._lost.set()
            self._on_disconnected()

    def _stage_request(
        self,
        keys: str,
        tenant: TenantId = DEFAULT_TENANT,
        session_id: SessionId | None = None,
        priority: int = DEMAND_PRIORITY,
        request_id: str = "",
    ) -> KvStage:
        return KvStage(
            worker_id=self._worker_id,
            incarnation=self._incarnation,
            fingerprint=self._info.fingerprint,
            num_layers=self._info.num_layers,
            page_bytes=self._info.page_bytes,
            keys=keys,
            session_id=session_id,
            tenant=tenant,
            priority=priority,
            request_id=request_id,
        )

    async def _staged(self, reply: KvStaged, keys: list[BlockKey] | None) -> Staged | None:
        try:
            return staged_blocks(
                reply,
                keys,
                num_layers=self._info.num_layers,
                num_arena_pages=self._num_arena_pages,
                epoch=self.epoch,
            )
        except MalformedMessage as error:
            _reject("stage", error)
            await self.release(ticket=reply.ticket)
            return None


def _reject(what: str, error: MalformedMessage) -> None:
    """A peer's bad message costs what it was for, and nothing else."""
    metrics.REJECTED.labels(what, error.code).inc()
    log.warning("answer rejected", extra={"what": what, "error": error.message})
