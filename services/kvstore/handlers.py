"""Handlers of the calls that a kvstore gets over the bus: from workers, other hosts, frontends."""

import logging
from pathlib import Path

from nats.aio.subscription import Subscription

from services.kvstore.calls import (
    commit_event,
    keys_in,
    open_event,
    release_event,
    renew_event,
    stage_event,
)
from services.kvstore.core import KvCore, Pinned, RemotePrefix
from services.kvstore.peers.peering import patience_s
from services.kvstore.performer import Performer
from services.kvstore.ports import Ports
from shared.blocks import BlockKey, pack_keys
from shared.errors import PeerUnavailable, SymphonyError
from shared.ids import HostId
from shared.owners import owner_key
from shared.service import Runtime
from shared.tracing import Span
from shared.wire import messages as m
from shared.wire import subjects
from shared.wire.messages.codec import pack_ints

log = logging.getLogger(__name__)


class Handlers:
    """Each decodes a message, calls the core, and has its effects performed.

    Args:
        adapters_path: where workers find adapters' files.
    """

    def __init__(
        self,
        runtime: Runtime,
        core: KvCore,
        ports: Ports,
        performer: Performer,
        host_id: HostId,
        adapters_path: Path,
    ) -> None:
        self._runtime = runtime
        self._bus = runtime.bus
        self._clock = runtime.clock
        self._core = core
        self._memory = ports.memory
        self._leases = ports.leases
        self._performer = performer
        self._host_id = host_id
        self._adapters_path = adapters_path
        self._is_closed = False
        self._subscriptions: list[Subscription] = []

    async def serve(self) -> None:
        """Subscribe."""
        bus, host_id = self._bus, self._host_id
        self._subscriptions = [
            await bus.serve(subjects.KV_OPEN, self._open, host_id),
            await bus.serve(subjects.KV_LEASE, self._lease, host_id),
            await bus.serve(subjects.KV_STAGE, self._stage, host_id),
            await bus.serve(subjects.KV_LOCATE, self._locate, host_id),
            await bus.serve_some(subjects.KV_FIND, self._find),
            await bus.serve(subjects.KV_COMMIT, self._commit, host_id),
            await bus.serve(subjects.KV_RENEW, self._renew, host_id),
            await bus.subscribe(subjects.KV_RELEASE, self._release, host_id),
            await bus.serve(subjects.SESSION_DELETE, self._delete),
            await bus.serve(subjects.KV_STATS, self._stats),
        ]

    async def close(self) -> None:
        """Answer no more calls."""
        self._is_closed = True
        if self._bus.connected:
            for subscription in self._subscriptions:
                await subscription.unsubscribe()

    async def _open(self, message: m.KvOpen) -> m.KvOpened:
        event = open_event(message)
        arena = await self._memory.get(message.page_bytes, message.num_layers)
        self._refuse_if_closed()
        if not self._core.has_arena(message.page_bytes):
            self._core.on_arena(message.page_bytes, self._memory.num_ready(message.page_bytes))
        before = self._core.incarnation_of(message.worker_id)
        self._performer.perform(self._core.on_open(event, self._clock.now_ns()))
        if before is not None and before != message.incarnation:
            self._leases.drop(message.worker_id, before)
        lease_path = self._leases.add(message.worker_id, message.incarnation)
        return m.KvOpened(
            arena_path=str(arena.path),
            lease_path=str(lease_path),
            adapters_path=str(self._adapters_path),
        )

    async def _lease(self, message: m.KvLease) -> m.KvLeased:
        self._refuse_if_closed()
        pages, effects = self._core.on_lease(
            message.worker_id, message.incarnation, message.page_bytes, message.num_pages,
            message.number, self._clock.now_ns(),
        )  # fmt: skip
        self._performer.perform(effects)
        return m.KvLeased(pages=pack_ints(pages))

    async def _stage(self, message: m.KvStage) -> m.KvStaged:
        span = self._runtime.tracer.begin("stage", message.trace, self._clock.now_ns())
        try:
            return await self._stage_traced(message, span)
        except SymphonyError as error:
            span.fail(error.code)
            raise
        finally:
            span.end(self._clock.now_ns())

    async def _stage_traced(self, message: m.KvStage, span: Span) -> m.KvStaged:
        self._refuse_if_closed()
        keys = await self._keys_of(message)
        remote = await self._find_remote(message, keys)
        self._refuse_if_closed()
        event = stage_event(message, keys, remote, self._bus.payload_bytes_max)
        staged, effects = self._core.on_stage(event, self._clock.now_ns())
        self._performer.perform(effects)
        from_host = None if remote is None else remote.host_id
        span.note(
            {
                "symphony.blocks_asked": len(keys),
                "symphony.blocks": staged.num_blocks,
                "symphony.blocks_here": staged.num_here,
                "symphony.pages_to_come": staged.num_pages_loading,
                "symphony.coming_from": staged.coming_from or "",
                "symphony.from_host": from_host or "",
            }
        )
        log.info(
            "staged",
            extra={
                "request_id": message.request_id,
                "session_id": message.session_id,
                "worker_id": message.worker_id,
                "num_blocks": staged.num_blocks,
                "num_pages_to_come": staged.num_pages_loading,
                "from_host": from_host,
            },
        )
        return _answer(staged, None if message.keys else keys)

    async def _keys_of(self, message: m.KvStage) -> list[BlockKey]:
        """The blocks that a stage names: by their keys, or by a session, whose record has them."""
        keys = keys_in(message.keys, "keys")
        if keys or message.session_id is None:
            return keys
        record = await self._performer.index.record(message.tenant, message.session_id)
        if record is None or record.fingerprint != message.fingerprint:
            return []
        return keys_in(record.block_keys, "session_id")

    async def _find_remote(self, message: m.KvStage, keys: list[BlockKey]) -> RemotePrefix | None:
        """What gives blocks that this host lacks: another host, or the object store if that has
        more.
        """
        offer = await self._performer.peering.offer(message, keys)
        if self._performer.objects is None:
            return offer
        num_offered = 0 if offer is None else offer.num_blocks
        objects = self._performer.objects
        return await objects.offer(message, keys, num_offered, patience_s(message)) or offer

    async def _locate(self, message: m.KvLocate) -> m.KvLocated:
        self._refuse_if_closed()
        return self._performer.peering.answer(message, keys_in(message.keys, "keys"))

    async def _find(self, message: m.KvLocate) -> m.KvLocated | None:
        self._performer.peering.on_question()
        if self._is_closed:
            return None
        answer = self._performer.peering.answer(message, keys_in(message.keys, "keys"))
        return answer if answer.num_blocks else None

    async def _commit(self, message: m.KvCommit) -> m.KvCommitted:
        self._refuse_if_closed()
        event = commit_event(message)
        num_blocks, effects = self._core.on_commit(event, self._clock.now_ns())
        self._performer.perform(effects)
        return m.KvCommitted(num_blocks=num_blocks)

    async def _renew(self, message: m.KvRenew) -> m.KvRenewed:
        self._refuse_if_closed()
        event = renew_event(message)
        gone, effects = self._core.on_renew(event, self._clock.now_ns())
        self._performer.perform(effects)
        return m.KvRenewed(
            source_bytes_per_s=self._core.disk_speed.bytes_per_s,
            peer_bytes_per_s=self._core.peer_speeds,
            gone=pack_keys(gone),
        )

    def _release(self, message: m.KvRelease) -> None:
        if not self._is_closed:
            event = release_event(message)
            self._performer.perform(self._core.on_release(event, self._clock.now_ns()))

    async def _delete(self, message: m.KvDelete) -> m.KvDeleted:
        """Answered when no restart can bring the blocks back."""
        self._refuse_if_closed()
        owner = owner_key(message.tenant, message.session_id)
        keys = keys_in(message.keys, "keys")
        num_blocks, effects = self._core.on_delete(owner, keys, self._clock.now_ns())
        self._performer.perform(effects)
        if not await self._performer.settle():
            raise PeerUnavailable("not everything was deleted in time")
        return m.KvDeleted(host_id=self._host_id, num_blocks=num_blocks)

    async def _stats(self, _: m.Empty) -> m.KvStats:
        usage, counts, memory = self._core.usage, self._core.counts, self._memory
        return m.KvStats(
            host_id=self._host_id,
            num_sessions=await self._performer.index.count_sessions(),
            arena_pages=usage.arena_pages,
            arena_pages_used=usage.arena_pages_used,
            arena_bytes=usage.arena_bytes,
            arena_bytes_used=usage.arena_bytes_used,
            arena_bytes_max={
                str(each): memory.capacity_bytes(each) for each in memory.by_page_bytes
            },
            arena_blocks_pinned=usage.arena_blocks_pinned,
            disk_blocks=usage.disk_blocks,
            disk_bytes=usage.disk_bytes,
            disk_bytes_max=usage.disk_bytes_max,
            objects_bytes=usage.objects_bytes,
            sessions_unsaved=usage.num_sessions_unsaved,
            staged_pages=counts.pages_by_tier(),
            num_corrupt=counts.num_pages_corrupt,
        )

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise PeerUnavailable("the kvstore is stopping")


def _answer(staged: Pinned, keys: list[BlockKey] | None) -> m.KvStaged:
    """Args:
    keys: of the sequence, if the worker did not name them.
    """
    return m.KvStaged(
        ticket=staged.ticket,
        num_blocks=staged.num_blocks,
        keys="" if keys is None else pack_keys(keys[: staged.num_blocks]),
        pages=pack_ints(staged.pages),
        generations=pack_ints(staged.generations),
        num_pages_loading=staged.num_pages_loading,
        ready_in_ns=pack_ints(staged.ready_in_ns, "q"),
        source_bytes_per_s=staged.source_bytes_per_s,
        num_here=staged.num_here,
        coming_from=staged.coming_from,
    )
