"""A kvstore's process in a simulated cluster: the production core and what surrounds it."""

from collections import deque
from functools import partial
from pathlib import Path
from typing import Any

from loadtest.cluster.shells.peering import PeerHost, Peering
from loadtest.cluster.shells.telling import Telling
from loadtest.sim.process import Process
from loadtest.sim.redis import RedisServer
from loadtest.sim.services.deployment import SimDeployment
from loadtest.sim.timeline import MS, SECOND, US
from loadtest.sim.wires import Reply
from services.kvstore.core import (
    Commit,
    DeleteBlocks,
    DiskWrite,
    DoMore,
    Effect,
    FoundBlocks,
    KvCore,
    Limits,
    NewBlock,
    Open,
    PageReads,
    ReadPages,
    Release,
    RemotePrefix,
    Renew,
    ResetDisk,
    SetWords,
    Stage,
    WriteBlocks,
)
from shared.blocks import BlockKey, pack_keys, unpack_keys
from shared.errors import InvalidRequest, NotFound, SymphonyError
from shared.ids import HostId, WorkerId
from shared.owners import OwnerKey
from shared.wire import messages as m
from shared.wire.messages import pack_ints, unpack_ints
from shared.wire.sessions import SessionRecord, decode_record, session_redis_key
from shared.wire.subjects import (
    KV_COMMIT,
    KV_LEASE,
    KV_LOCATE,
    KV_OPEN,
    KV_RELEASE,
    KV_RENEW,
    KV_STAGE,
)

TICK_NS = SECOND
GROWTH_NS = 50 * MS  # until more of an arena has memory
TICKET_NS = 4 * SECOND
READ_NS = 100 * US
WRITE_NS = 500 * US
REDIS_NS, REDIS_PATIENCE_NS = MS, 250 * MS
STAGE_MAX_NS = 80 * MS
DROPS_MAX = 2

OVERTAKING = {"delay", "freeze"}
DiskOrder = DiskWrite | DeleteBlocks | ResetDisk


class Kvstore(PeerHost):
    """Attributes:
    others: kvstores of the deployment, by host.
    """

    def __init__(
        self,
        deployment: SimDeployment,
        redis: RedisServer,
        host_id: HostId,
        num_pages: int,
    ) -> None:
        super().__init__(deployment, f"kvstore-{host_id}")
        self.host_id = host_id
        self._redis = redis
        self._num_pages = num_pages
        self.others: dict[HostId, Kvstore] = {}

    def check(self) -> None:
        raise NotImplementedError

    def on_start(self) -> None:
        self.core = KvCore(
            self.limits(),
            first_ticket=self.deployment.timeline.now_ns // US + 1,
            host_id=self.host_id,
        )
        self._peering = self.new_peering()
        self.arena = self.new_arena()
        self._orders: deque[DiskOrder] = deque()
        self._reads: deque[list[PageReads]] = deque()
        self._opened: dict[WorkerId, tuple[int, int]] = {}
        self._holders: dict[tuple[WorkerId, str], tuple[Process, int]] = {}
        self._telling = Telling(self, self._redis, self.host_id, self.core.locations)
        self._has_more = False
        self._perform(self.core.on_disk_found(FoundBlocks.of([]), self.now_ns))
        wires = self.deployment.wires
        wires.listen(self, KV_OPEN, self._answering(self._open), self.host_id)
        wires.listen(self, KV_LEASE, self._answering(self._lease), self.host_id)
        wires.listen(self, KV_STAGE, self._stage, self.host_id)
        wires.listen(self, KV_LOCATE, self._answering(self._locate), self.host_id)
        wires.listen(self, KV_COMMIT, self._answering(self._commit), self.host_id)
        wires.listen(self, KV_RENEW, self._answering(self._renew), self.host_id)
        wires.listen(self, KV_RELEASE, lambda message, _: self._release(message), self.host_id)
        self.later(TICK_NS, self._tick)

    def limits(self) -> Limits:
        """Small, so that they are reached."""
        raise NotImplementedError

    def new_arena(self) -> Any:
        """For a new life."""
        raise NotImplementedError

    def new_peering(self) -> Peering:
        """For a new life."""
        raise NotImplementedError

    def on_crash(self) -> None:
        """What the writer was at is lost; what it had acknowledged is on disk."""
        self._orders.clear()
        self._reads.clear()

    def attach(self, path: Path) -> Any:
        """Map the arena.

        Raises:
            FileNotFoundError: this life is over.
        """
        if not self.is_ready:
            raise FileNotFoundError(path)
        return self.arena

    def lock(self, path: Path, holder: Process) -> None:
        """A worker locks its lease file: the kernel lets go of it when the process dies."""
        worker_id, incarnation = path.parts
        self._holders[WorkerId(worker_id), incarnation] = (holder, holder.life)

    def _answering(self, handler: Any) -> Any:
        def on_message(message: Any, reply: Reply) -> None:
            try:
                reply(handler(message))
            except SymphonyError as error:
                reply(error)

        return on_message

    def _open(self, message: m.KvOpen) -> m.KvOpened:
        if message.page_bytes not in self.core.arenas:
            self.core.on_arena(message.page_bytes, self._num_pages // 2)
            self.later(GROWTH_NS, self._grow)
        life, number = map(int, message.incarnation.rsplit("-", 2)[1:])
        latest = self._opened.get(message.worker_id, (0, 0))
        is_overtaken = OVERTAKING & self.deployment.fault_kinds  # who lives opens again
        assert (life, number) >= latest or is_overtaken, "an old life opens"
        event = Open(
            message.worker_id, message.incarnation, message.fingerprint, message.num_layers,
            message.page_bytes,
        )  # fmt: skip
        self._perform(self.core.on_open(event, self.now_ns))
        self._opened[message.worker_id] = (life, number)
        lease_path = Path(message.worker_id) / message.incarnation
        return m.KvOpened(arena_path="arena", lease_path=str(lease_path))

    def _grow(self) -> None:
        """More of the arena has memory."""
        page_bytes = self.deployment.model.page_bytes
        arena = self.core.arenas[page_bytes]
        num_pages = min(arena.num_pages + self._num_pages // 4 + 1, self._num_pages)
        self.core.on_arena_grown(page_bytes, num_pages)
        if num_pages < self._num_pages:
            self.later(GROWTH_NS, self._grow)

    def _lease(self, message: m.KvLease) -> m.KvLeased:
        pages, effects = self.core.on_lease(
            message.worker_id, message.incarnation, message.page_bytes, message.num_pages,
            message.number, self.now_ns,
        )  # fmt: skip
        self._perform(effects)
        return m.KvLeased(pages=pack_ints(pages))

    def _stage(self, message: m.KvStage, reply: Reply) -> None:
        """In a crowd it takes its time, often too long."""
        if self.deployment.is_crowded:
            delay_ns = self.deployment.random.randrange(STAGE_MAX_NS)
            self.later(delay_ns, partial(self._look_up, message, reply))
        else:
            self._look_up(message, reply)

    def _look_up(self, message: m.KvStage, reply: Reply) -> None:
        """A session's keys are asked of Redis first, which takes its time."""

        def on_keys(keys: list[BlockKey]) -> None:
            def on_offer(offer: RemotePrefix | None) -> None:
                self._answering(lambda _: self._staged(message, keys, offer))(message, reply)

            self._peering.locate(message, keys, on_offer)

        def on_record(record: SessionRecord | None) -> None:
            is_usable = record is not None and record.fingerprint == message.fingerprint
            on_keys(unpack_keys(record.block_keys) if record is not None and is_usable else [])

        if message.keys or message.session_id is None:
            on_keys(unpack_keys(message.keys))
        else:
            stored = None
            if self._redis.is_up:
                key = session_redis_key(message.tenant, message.session_id)
                stored = self._redis.execute("GET", key)
            record = None if stored is None else decode_record(stored)
            wait_ns = REDIS_NS if self._redis.is_up else REDIS_PATIENCE_NS
            self.later(wait_ns, partial(on_record, record))

    def _locate(self, message: m.KvLocate) -> m.KvLocated:
        keys = unpack_keys(message.keys)
        num_blocks = self.core.on_locate(keys, message.num_layers, message.page_bytes)
        return m.KvLocated(host_id=self.host_id, num_blocks=num_blocks, address="there")

    def _staged(
        self, message: m.KvStage, keys: list[BlockKey], offer: RemotePrefix | None
    ) -> m.KvStaged:
        event = Stage(
            message.worker_id, message.incarnation, message.num_layers, message.page_bytes, keys,
            message.priority, offer=offer, fingerprint=message.fingerprint,
            num_before=message.num_before,
        )  # fmt: skip
        staged, effects = self.core.on_stage(event, self.now_ns)
        self._perform(effects)
        return m.KvStaged(
            ticket=staged.ticket,
            num_blocks=staged.num_blocks,
            keys="" if message.keys else pack_keys(keys[: staged.num_blocks]),
            pages=pack_ints(staged.pages),
            generations=pack_ints(staged.generations),
            num_pages_loading=staged.num_pages_loading,
            ready_in_ns=pack_ints(staged.ready_in_ns, "q"),
            num_here=staged.num_here,
            source_bytes_per_s=staged.source_bytes_per_s,
            coming_from=staged.coming_from,
        )

    def _commit(self, message: m.KvCommit) -> m.KvCommitted:
        blocks = [
            NewBlock(
                key=unpack_keys(block.key)[0],
                parent=unpack_keys(block.parent)[0],
                tokens=unpack_ints(block.tokens),
                pages=unpack_ints(block.pages),
                checksums=unpack_ints(block.checksums, "Q"),
                owner=OwnerKey(bytes.fromhex(block.owner)),
                replaces=BlockKey(bytes.fromhex(block.replaces)) or None,
                expiry_s=block.expiry_s,
            )
            for block in message.blocks
        ]
        event = Commit(
            message.worker_id,
            message.incarnation,
            message.fingerprint,
            message.page_bytes,
            blocks,
            message.seq,
            message.heard,
        )
        try:
            num_blocks, effects = self.core.on_commit(event, self.now_ns)
        except InvalidRequest as error:
            # Of an earlier incarnation; or overtaken by a renewal that names them no more.
            is_late = isinstance(error, NotFound) or OVERTAKING & self.deployment.fault_kinds
            assert is_late, f"{message.worker_id} commits what is not its own"
            raise
        self._perform(effects)
        return m.KvCommitted(num_blocks=num_blocks)

    def _renew(self, message: m.KvRenew) -> m.KvRenewed:
        event = Renew(
            message.worker_id, message.incarnation, unpack_ints(message.tickets, "Q"),
            message.page_bytes, unpack_ints(message.leased), message.heard,
            unpack_keys(message.used),
        )  # fmt: skip
        gone, effects = self.core.on_renew(event, self.now_ns)
        self._perform(effects)
        return m.KvRenewed(
            source_bytes_per_s=self.core.disk_speed.bytes_per_s,
            peer_bytes_per_s=self.core.peer_speeds,
            gone=pack_keys(gone),
        )

    def _release(self, message: m.KvRelease) -> None:
        event = Release(
            message.worker_id, message.incarnation, message.ticket, message.page_bytes,
            unpack_ints(message.pages), message.seq, message.heard, message.num_kept,
        )  # fmt: skip
        self._perform(self.core.on_release(event, self.now_ns))

    def _tick(self) -> None:
        self.later(TICK_NS, self._tick)
        for (worker_id, incarnation), (holder, life) in list(self._holders.items()):
            if not holder.is_up or holder.life != life:
                del self._holders[(worker_id, incarnation)]
                self._perform(self.core.on_worker_gone(worker_id, incarnation, self.now_ns))
        self._perform(self.core.on_tick(self.now_ns))
        if not self._has_more:
            self.check_expired()

    def _do_more(self) -> None:
        self._has_more = False
        self._perform(self.core.on_do_more(self.now_ns))

    def check_expired(self) -> None:
        """No tier keeps expired blocks."""
        raise NotImplementedError

    def _perform(self, effects: list[Effect]) -> None:
        self.is_touched = True
        for effect in effects:
            match effect:
                case SetWords(_, pages, generations, state):
                    self.arena.set_words(pages, generations, state)
                case ReadPages(reads, host_id) if host_id is not None:
                    self._peering.fetch(host_id, reads)
                case ReadPages(reads):
                    self._reads.append(reads)
                    if len(self._reads) == 1:
                        self._begin_read()
                case WriteBlocks(writes):
                    self._order(*writes)
                case DeleteBlocks() | ResetDisk():
                    self._order(effect)
                case DoMore():
                    self._has_more = True
                    self.later(0, self._do_more)
        self._telling.look()

    def _begin_read(self) -> None:
        raise NotImplementedError

    def _order(self, *orders: DiskOrder) -> None:
        was_idle = not self._orders
        self._orders += orders
        if was_idle and self._orders:
            self._begin_write()

    def _begin_write(self) -> None:
        raise NotImplementedError
