"""A kvstore's process in a simulated cluster: the production core and what surrounds it."""

from collections import deque
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from loadtest.cluster.peering import Page, PeerHost, Peering
from loadtest.cluster.telling import Telling
from loadtest.sim.arena import PAGE_BYTES, SimArena
from loadtest.sim.redis import RedisServer
from loadtest.sim.timeline import MS, SECOND, US
from loadtest.world.checks import EXPIRY_NS, check_expired, check_kvstore
from loadtest.world.deployment import SimDeployment
from loadtest.world.memory import Content, DiskBlock
from loadtest.world.process import Process
from loadtest.world.wires import Reply
from services.kvstore.core import (
    Commit,
    DeleteBlocks,
    DiskWrite,
    DropMore,
    Effect,
    FetchedPages,
    FoundBlocks,
    KvCore,
    Limits,
    LoadOutcome,
    NewBlock,
    Open,
    PageFacts,
    PageReads,
    ReadPages,
    Release,
    RemotePrefix,
    Renew,
    ResetDisk,
    SetWords,
    Stage,
    TouchBlocks,
    WriteBlocks,
    WriteOutcome,
)
from services.kvstore.core.disk.stored_block import StoredBlock
from services.kvstore.core.tiers.arena_block import NO_PAGE, ArenaBlock
from shared.arena import PageState
from shared.blocks import BlockKey, pack_keys, unpack_keys
from shared.errors import InvalidRequest, NotFound, SymphonyError
from shared.expiry import expiry_ns
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
    disk: what survives a restart.
    unread: layers of blocks, by id, whose read failed.
    disk_slowness: factor on reads and writes now.
    is_disk_full: writes find no room now.
    unread_share: reads from disk that fail now.
    others: kvstores of the deployment, by host.
    is_lying: what it says of its pages is wrong now.
    """

    def __init__(
        self,
        deployment: SimDeployment,
        redis: RedisServer,
        host_id: HostId,
        num_pages: int,
        disk_slowness: int = 1,
    ) -> None:
        super().__init__(deployment, f"kvstore-{host_id}")
        self.host_id = host_id
        self._redis = redis
        self._num_pages = num_pages
        self.disk: dict[BlockKey, DiskBlock] = {}
        self.disk_slowness = disk_slowness
        self.is_disk_full = False
        self.unread_share = 0.0
        self.others: dict[HostId, Kvstore] = {}
        self.is_link_cut = self.is_lying = False

    def check(self) -> None:
        check_kvstore(self.core, self.arena, self.unread)

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
        self.unread: set[tuple[int, int]] = set()
        self._holders: dict[tuple[WorkerId, str], tuple[Process, int]] = {}
        found = [_found(key, block) for key, block in self.disk.items()]
        self._telling = Telling(self, self._redis, self.host_id, self.core.locations)
        self._is_dropping = False
        self._perform(self.core.on_disk_found(FoundBlocks.of(found), self.now_ns))
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
        return Limits(
            disk_bytes_max=self.deployment.disk_bytes_max,
            expiry_ns=EXPIRY_NS,
            noted_ns=60 * SECOND,
            ticket_ns=TICKET_NS,
            drops_max=DROPS_MAX,
            load_bytes_max=(2 if self.deployment.is_scattered else 8) * PAGE_BYTES,
            eviction=self.deployment.eviction,
        )

    def new_arena(self) -> Any:
        """For a new life."""
        return SimArena(Path(f"arena-{self.host_id}"), self._num_pages, self.deployment.contents)

    def new_peering(self) -> Peering:
        """For a new life."""
        return Peering(self, self.others)

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

    def lose_pages(self, share: float) -> None:
        """Damage some of what is on disk."""
        for block in self.disk.values():
            if self.deployment.fault_random.random() < share:
                block.is_damaged = True

    def lose_database(self) -> None:
        """The whole database cannot be used any more."""
        self._perform(self.core.on_disk_damaged(self.core.counts.num_disks_anew + 1, self.now_ns))

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
        self._perform(self.core.on_renew(event, self.now_ns))
        return m.KvRenewed(
            source_bytes_per_s=self.core.disk_speed.bytes_per_s,
            peer_bytes_per_s=self.core.peer_speeds,
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
        if not self._is_dropping:
            self.check_expired()

    def _drop_more(self) -> None:
        self._is_dropping = False
        self._perform(self.core.on_drop_more(self.now_ns))

    def check_expired(self) -> None:
        """No tier keeps expired blocks."""
        check_expired(self.core, self.now_ns)

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
                case DropMore():
                    self._is_dropping = True
                    self.later(0, self._drop_more)
                case TouchBlocks(keys, expiry_s):
                    for key in self.disk.keys() & keys:
                        self.disk[key].used_at_ns = self.now_ns
                        self.disk[key].expiry_s = expiry_s
        self._telling.look()

    def _begin_read(self) -> None:
        num_pages = sum(len(reads.pages) for reads in self._reads[0])
        most_ns = READ_NS * num_pages * self.disk_slowness
        duration_ns = self.deployment.random.randrange(most_ns) + 1
        self.later(duration_ns, partial(self._end_read, duration_ns))

    def _end_read(self, duration_ns: int) -> None:
        results = [(reads, self._read(reads)) for reads in self._reads.popleft()]
        if self._reads:
            self._begin_read()
        alive = {block.block_id for block in self._holding() if block.is_alive}
        self._perform(self.core.on_loaded(results, duration_ns, self.now_ns))
        for reads, outcomes in results:
            for block_id, key, outcome in zip(reads.block_ids, reads.keys, outcomes, strict=True):
                if outcome is LoadOutcome.FAILED:
                    self.unread.add((block_id, reads.layer))
                is_bad = outcome in (LoadOutcome.CORRUPT, LoadOutcome.MISSING)
                is_kept = is_bad and block_id in alive and key in self.core.disk
                assert not is_kept, "a block that cannot be read is still offered"

    def on_fetched(self, host_id: HostId, pages: list[FetchedPages], duration_ns: int) -> None:
        waited = [
            (block, layer)
            for block in self._holding()
            if block.source.host_id == host_id
            for layer in block.queued
        ]
        self._perform(self.core.on_fetched(host_id, pages, duration_ns, self.now_ns))
        self.unread |= {  # given up, though a ticket is for them
            (block.block_id, layer) for block, layer in waited if block.pages[layer] == NO_PAGE
        }
        for each in pages:
            for block_id, outcome in zip(each.reads.block_ids, each.outcomes, strict=True):
                if outcome is not LoadOutcome.READY:
                    self.unread.add((block_id, each.reads.layer))

    def page_of(self, key: BlockKey, layer: int) -> Page | None:
        if (block := self.disk.get(key)) is not None:
            content, num_layers = block.contents[layer], block.num_layers
            return Page(content, num_layers, block.parent, block.owner, block.is_damaged)
        if (write := self.core.find_written(key)) is not None:
            content = self.arena.content(write.pages[layer])
            return Page(content, len(write.pages), write.parent, write.owner)
        return None

    def tell_of(self, page: Page) -> PageFacts:
        """Perhaps a lie."""
        tokens = [*page.content[2], *([0] if self.is_lying else [])]
        checksum = checksum_of(page.content)
        return PageFacts(page.parent, tokens, page.num_layers, checksum, page.owner)

    def _holding(self) -> Iterator[ArenaBlock]:
        return (b for arena in self.core.arenas.values() for b in arena.holding.values())

    def _read(self, reads: PageReads) -> list[LoadOutcome]:
        outcomes = []
        for key, page, generation in zip(reads.keys, reads.pages, reads.generations, strict=True):
            outcome = self._read_page(key, reads.layer, page)
            state = PageState.READY if outcome is LoadOutcome.READY else PageState.BAD
            self.arena.set_word(page, generation, state)
            outcomes.append(outcome)
        return outcomes

    def _read_page(self, key: BlockKey, layer: int, page: int) -> LoadOutcome:
        if self.deployment.fault_random.random() < self.unread_share:
            return LoadOutcome.FAILED
        block = self.disk.get(key)
        if block is None:
            return LoadOutcome.MISSING
        if block.is_damaged:
            return LoadOutcome.CORRUPT
        self.arena.put(page, block.contents[layer])
        return LoadOutcome.READY

    def _order(self, *orders: DiskOrder) -> None:
        was_idle = not self._orders
        self._orders += orders
        if was_idle and self._orders:
            self._begin_write()

    def _begin_write(self) -> None:
        duration_ns = self.deployment.random.randrange(WRITE_NS * self.disk_slowness) + 1
        self.later(duration_ns, self._end_write)

    def _end_write(self) -> None:
        order = self._orders.popleft()
        results = []
        match order:
            case DiskWrite():
                results.append(self._write(order))
            case DeleteBlocks(blocks):
                for key, _ in blocks:
                    self.disk.pop(key, None)
            case ResetDisk():
                self.disk.clear()
        if self._orders:
            self._begin_write()
        if results:
            self._perform(self.core.on_written(results, self.now_ns))

    def _check_alike(self, key: BlockKey, contents: list[Content]) -> None:
        """All hosts that write a block write the same content."""
        for host in self.others.values():
            held = host.disk.get(key)
            assert held is None or held.contents == contents, f"{host.name} has another {key.hex()}"

    def _write(self, write: DiskWrite) -> tuple[int, WriteOutcome, int]:
        is_there = all(self.arena.word(page)[1] is PageState.READY for page in write.pages)
        assert is_there, "a page was taken from under the writer"
        if self.is_disk_full:
            return write.block_id, WriteOutcome.FULL, 0
        contents = [self.arena.content(page) for page in write.pages]
        if [checksum_of(content) for content in contents] != write.checksums:
            return write.block_id, WriteOutcome.CORRUPT, 0
        self._check_alike(write.key, contents)
        self.disk[write.key] = DiskBlock(
            len(contents), contents, write.owner, write.parent, used_at_ns=self.now_ns,
            expiry_s=write.expiry_s or 0,
        )  # fmt: skip
        return write.block_id, WriteOutcome.STORED, len(contents) * PAGE_BYTES


def _found(key: BlockKey, block: DiskBlock) -> StoredBlock:
    num_bytes = block.num_layers * PAGE_BYTES
    return StoredBlock(
        key, block.num_layers, PAGE_BYTES, num_bytes, block.used_at_ns, block.used_at_ns,
        block.owner, block.parent, expiry_ns=expiry_ns(block.expiry_s),
    )  # fmt: skip


MASK = (1 << 64) - 1


def checksum_of(content: object) -> int:
    """What the worker says of a page's bytes."""
    return hash(content) & MASK
