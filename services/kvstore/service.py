"""The kvstore's shell: decodes calls, feeds the core, performs its effects."""

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import ParamSpec

import lmdb
from nats.aio.subscription import Subscription

from services.kvstore.adapters.service import Adapters
from services.kvstore.arenas import Arenas
from services.kvstore.calls import keys_in, new_block, path_token
from services.kvstore.config import KvstoreConfig
from services.kvstore.core import (
    BeginDiskAnew,
    Commit,
    DeleteBlocks,
    DropMore,
    DropRuns,
    DropSession,
    Effect,
    FetchedPages,
    KvCore,
    Limits,
    Offer,
    Open,
    ReadPages,
    Release,
    Renew,
    Run,
    SaveOutcome,
    SaveRun,
    SetWords,
    Stage,
    TouchBlocks,
    WriteBlocks,
)
from services.kvstore.core.integrity import check_integrity
from services.kvstore.disk import Disk, DiskDamaged
from services.kvstore.found import found_blocks, lasting
from services.kvstore.index import RedisIndex
from services.kvstore.leases import LeaseFiles, lock_directory
from services.kvstore.loader import Loader, LoadResults
from services.kvstore.objects.link import ObjectLink
from services.kvstore.objects.store import Bucket
from services.kvstore.peering import Peering, patience_s
from services.kvstore.start import Started, start_disk
from services.kvstore.telemetry import LOAD_SECONDS, Telemetry
from services.kvstore.threads import WriteResults, WriterThread
from services.kvstore.values import LAYERS_MAX
from shared import messages as m
from shared import subjects
from shared.blocks import KEY_BYTES, BlockKey, pack_keys
from shared.errors import ConfigError, InvalidRequest, PeerUnavailable, SymphonyError
from shared.ids import HostId
from shared.locations import OBJECTS, objects_of
from shared.messages.codec import pack_ints, unpack_ints
from shared.owners import owner_key
from shared.service import Runtime
from shared.tracing import Span
from shared.urls import hide_password

log = logging.getLogger(__name__)

P = ParamSpec("P")

NS_PER_S = 1_000_000_000
TICK_S = 1.0
SWITCH_S = 0.0005  # so long at most a thread beside the event loop computes while that waits
NUM_BEFORE_MAX = 1 << 31  # blocks: no sequence has as many
CHECK_EVERY_S = 60.0
CHECK_PAGES_MAX = 65_536  # of all arenas: a check of so many holds up the event loop for some 5 ms
SETTLE_TIMEOUT_S = 5.0
NOTED_SHARE = 24  # a block's last use is written down once in this part of its expiry
PAGE_BYTES_MAX = 1024**3
STAGED_FIELDS_BYTES = 512  # of an answer to a stage, besides what it says of each block


async def main(runtime: Runtime, config: KvstoreConfig) -> None:
    """Run the kvstore of this host until the runtime stops."""
    sys.setswitchinterval(SWITCH_S)
    with lasting():
        service = await KvService.open(runtime, config)
    adapters = await open_adapters(runtime, config)
    await service.serve()
    await adapters.serve()
    await runtime.ready()
    await runtime.stopping.wait()


class KvService:
    """One running kvstore. Everything but the threads' loops runs on the event loop, and every
    call of the core is a plain call there, so the core is never re-entered.
    """

    def __init__(
        self, runtime: Runtime, config: KvstoreConfig, core: KvCore, disk: Disk, index: RedisIndex
    ) -> None:
        self._runtime = runtime
        self._config = config
        self._core = core
        self._index = index
        self._arenas = Arenas(
            config.arena_path, config.arena_bytes, self._from_thread(self._on_grown)
        )
        self._leases = LeaseFiles(config.arena_path)
        self._loop = asyncio.get_running_loop()
        self._is_closed = False
        self._subscriptions: list[Subscription] = []
        self._tasks: list[asyncio.Task[None]] = []
        arenas = self._arenas.by_page_bytes
        self._loader = Loader(
            disk, arenas, self._from_thread(self._on_loaded), self._from_thread(self._on_damaged),
            self._from_thread(self._on_failure),
        )  # fmt: skip
        self._writer = WriterThread(
            disk, arenas, runtime.clock, self._from_thread(self._on_written),
            self._from_thread(self._on_damaged), self._from_thread(self._on_failure),
        )  # fmt: skip
        self._peering = Peering(
            config, core, disk, self._arenas, runtime.bus, runtime.clock, self._on_fetched,
            self._from_thread(self._on_damaged), self._from_thread(self._on_failure),
        )  # fmt: skip
        self._objects_index: RedisIndex | None = None
        self._objects = self._open_objects(disk)
        self._telemetry = Telemetry(core, self._peering)

    @classmethod
    async def open(cls, runtime: Runtime, config: KvstoreConfig) -> "KvService":
        """Take the folders, open the disk, and learn what is on it. Closed with the runtime.

        Raises:
            ConfigError: a folder is taken, cannot be written to, or has no room.
        """
        expiry_ns = int(config.expiry_s * NS_PER_S)
        limits = Limits(
            disk_bytes_max=config.disk_bytes_max,
            expiry_ns=expiry_ns,
            noted_ns=expiry_ns // NOTED_SHARE,
            disk_bytes_per_s=config.disk_bytes_per_s,
            has_objects=config.objects_url is not None,
            objects_bytes_max=config.objects_bytes_max,
            objects_expiry_ns=int(config.objects_expiry_s * NS_PER_S),
            objects_rest_ns=int(config.objects_rest_s * NS_PER_S),
            objects_bytes_per_s=config.objects_bytes_per_s,
            packs_objects=config.objects_compression == "zstd",
        )
        for folder, variable in (
            (config.arena_path, "SYMPHONY_ARENA_DIR"),
            (config.disk_path, "SYMPHONY_DATA_DIR"),
        ):
            runtime.stack.callback(os.close, lock_directory(folder, variable))
        started = await asyncio.to_thread(open_disk, config)
        disk = started.disk
        runtime.stack.callback(disk.close)
        runtime.process = config.host_id
        core = KvCore(limits, first_ticket=runtime.clock.wall_ns() // 1000, host_id=config.host_id)
        index = RedisIndex(
            config.redis_url, config.host_id, told_s(config), core.locations, config.redis_access
        )
        runtime.stack.push_async_callback(index.close)
        service = cls(runtime, config, core, disk, index)
        runtime.stack.push_async_callback(service.close)
        service._arenas.clean()
        now_s = runtime.clock.wall_ns() // NS_PER_S
        now_ns = runtime.clock.now_ns()
        core.counts.num_disks_anew += started.is_anew
        found = found_blocks(started.scan, now_ns, now_s)
        service._perform(core.on_disk_found(found, now_ns))
        return service

    async def serve(self) -> None:
        """Subscribe, and start what runs beside the calls."""
        bus, host_id = self._runtime.bus, self._config.host_id
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
        self._tasks = [
            self._runtime.spawn(self._index.run(), "kv-index"),
            self._runtime.spawn(self._tick(), "kv-tick"),
            self._runtime.spawn(check_for_ever(self._core), "kv-integrity"),
        ]
        if self._objects is not None:
            self._tasks.append(self._runtime.spawn(self._objects.list_all(), "kv-objects"))

    async def close(self) -> None:
        """Answer no more calls, write everything down, remove the arenas."""
        self._is_closed = True
        if self._runtime.bus.connected:
            for subscription in self._subscriptions:
                await subscription.unsubscribe()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._perform(self._core.on_stop())
        threads = (asyncio.to_thread(thread.stop) for thread in (self._loader, self._writer))
        objects = [] if self._objects is None else [self._objects.close()]
        await asyncio.gather(*threads, self._peering.close(), *objects)  # no write waits for a peer
        await asyncio.sleep(0)  # the threads' last reports are heard
        if self._objects_index is not None:
            await self._objects_index.close()
        self._telemetry.export()
        self._leases.close()
        self._arenas.close()

    async def _open(self, message: m.KvOpen) -> m.KvOpened:
        incarnation = path_token(message.incarnation, "incarnation")
        path_token(message.worker_id, "worker_id")
        if not 0 < message.num_layers <= LAYERS_MAX:
            raise InvalidRequest(f"num_layers must be 1 to {LAYERS_MAX}", "num_layers")
        if not 0 < message.page_bytes <= PAGE_BYTES_MAX:
            raise InvalidRequest(f"page_bytes must be 1 to {PAGE_BYTES_MAX}", "page_bytes")
        arena = await self._arenas.get(message.page_bytes, message.num_layers)
        self._refuse_if_closed()
        now_ns = self._runtime.clock.now_ns()
        if message.page_bytes not in self._core.arenas:
            self._core.on_arena(message.page_bytes, self._arenas.num_ready(message.page_bytes))
        old = self._core.workers.find(message.worker_id)
        event = Open(
            message.worker_id, incarnation, message.fingerprint, message.num_layers,
            message.page_bytes,
        )  # fmt: skip
        self._perform(self._core.on_open(event, now_ns))
        if old is not None and old.incarnation != message.incarnation:
            self._leases.drop(old.worker_id, old.incarnation)
        lease_path = self._leases.add(message.worker_id, message.incarnation)
        return m.KvOpened(
            arena_path=str(arena.path),
            lease_path=str(lease_path),
            adapters_path=str(self._config.adapters_path),
        )

    async def _lease(self, message: m.KvLease) -> m.KvLeased:
        self._refuse_if_closed()
        pages, effects = self._core.on_lease(
            message.worker_id, message.incarnation, message.page_bytes, message.num_pages,
            message.number, self._runtime.clock.now_ns(),
        )  # fmt: skip
        self._perform(effects)
        return m.KvLeased(pages=pack_ints(pages))

    async def _stage(self, message: m.KvStage) -> m.KvStaged:
        span = self._runtime.tracer.begin("stage", message.trace, self._runtime.clock.now_ns())
        try:
            return await self._stage_traced(message, span)
        except SymphonyError as error:
            span.fail(error.code)
            raise
        finally:
            span.end(self._runtime.clock.now_ns())

    async def _stage_traced(self, message: m.KvStage, span: Span) -> m.KvStaged:
        self._refuse_if_closed()
        keys = keys_in(message.keys, "keys")
        if not keys and message.session_id is not None:
            record = await self._index.record(message.tenant, message.session_id)
            if record is not None and record.fingerprint == message.fingerprint:
                keys = keys_in(record.block_keys, "session_id")
        offer = await self._offer(message, keys)
        self._refuse_if_closed()
        event = Stage(
            message.worker_id, message.incarnation, message.num_layers, message.page_bytes, keys,
            message.priority, staged_blocks_max(self._runtime.bus.payload_bytes_max, message),
            message.tenant if message.is_hint else None, offer, message.fingerprint,
            min(max(message.num_before, 0), NUM_BEFORE_MAX),
        )  # fmt: skip
        staged, effects = self._core.on_stage(event, self._runtime.clock.now_ns())
        self._perform(effects)
        span.note(
            {
                "symphony.blocks_asked": len(keys),
                "symphony.blocks": staged.num_blocks,
                "symphony.blocks_here": staged.num_here,
                "symphony.pages_to_come": staged.num_from_disk,
                "symphony.coming_from": staged.coming_from or "",
                "symphony.from_host": "" if offer is None else offer.host_id,
            }
        )
        log.info(
            "staged",
            extra={
                "request_id": message.request_id,
                "session_id": message.session_id,
                "worker_id": message.worker_id,
                "num_blocks": staged.num_blocks,
                "num_pages_to_come": staged.num_from_disk,
                "from_host": None if offer is None else offer.host_id,
            },
        )
        return m.KvStaged(
            ticket=staged.ticket,
            num_blocks=staged.num_blocks,
            keys="" if message.keys else pack_keys(keys[: staged.num_blocks]),
            pages=pack_ints(staged.pages),
            generations=pack_ints(staged.generations),
            num_from_disk=staged.num_from_disk,
            ready_in_ns=pack_ints(staged.ready_in_ns, "q"),
            source_bytes_per_s=staged.source_bytes_per_s,
            num_here=staged.num_here,
            coming_from=staged.coming_from,
        )

    async def _offer(self, message: m.KvStage, keys: list[BlockKey]) -> Offer | None:
        """Who gives what this host lacks: another host, or the object store if that has more."""
        offer = await self._peering.offer(message, keys)
        if self._objects is None:
            return offer
        num_offered = 0 if offer is None else offer.num_blocks
        return await self._objects.offer(message, keys, num_offered, patience_s(message)) or offer

    async def _locate(self, message: m.KvLocate) -> m.KvLocated:
        self._refuse_if_closed()
        return self._peering.answer(message, keys_in(message.keys, "keys"))

    async def _find(self, message: m.KvLocate) -> m.KvLocated | None:
        self._core.finding.on_question(self._runtime.clock.now_ns())
        if self._is_closed:
            return None
        answer = self._peering.answer(message, keys_in(message.keys, "keys"))
        return answer if answer.num_blocks else None

    async def _commit(self, message: m.KvCommit) -> m.KvCommitted:
        self._refuse_if_closed()
        event = Commit(
            message.worker_id,
            message.incarnation,
            message.fingerprint,
            message.page_bytes,
            [new_block(block) for block in message.blocks],
            message.seq,
            message.heard,
        )
        num_blocks, effects = self._core.on_commit(event, self._runtime.clock.now_ns())
        self._perform(effects)
        return m.KvCommitted(num_blocks=num_blocks)

    async def _renew(self, message: m.KvRenew) -> m.KvRenewed:
        self._refuse_if_closed()
        tickets = unpack_ints(message.tickets, "Q")
        event = Renew(
            message.worker_id, message.incarnation, tickets, message.page_bytes,
            unpack_ints(message.leased), message.heard, keys_in(message.used, "used"),
        )  # fmt: skip
        self._perform(self._core.on_renew(event, self._runtime.clock.now_ns()))
        return m.KvRenewed(
            source_bytes_per_s=self._core.disk_speed.bytes_per_s,
            peer_bytes_per_s=self._core.peer_speeds,
        )

    def _release(self, message: m.KvRelease) -> None:
        if self._is_closed:
            return
        event = Release(
            message.worker_id, message.incarnation, message.ticket, message.page_bytes,
            unpack_ints(message.pages), message.seq, message.heard, message.num_kept,
        )  # fmt: skip
        self._perform(self._core.on_release(event, self._runtime.clock.now_ns()))

    async def _delete(self, message: m.KvDelete) -> m.KvDeleted:
        """Answered when no restart can bring the blocks back."""
        self._refuse_if_closed()
        owner = owner_key(message.tenant, message.session_id)
        keys = keys_in(message.keys, "keys")
        num_blocks, effects = self._core.on_delete(owner, keys, self._runtime.clock.now_ns())
        self._perform(effects)
        settled = [self._settled(self._writer.settle)]
        if self._objects is not None:
            settled.append(self._settled(self._objects.settle))
        if not all(await asyncio.gather(*settled)):
            raise PeerUnavailable("not everything was deleted in time")
        return m.KvDeleted(host_id=self._config.host_id, num_blocks=num_blocks)

    async def _settled(self, settle: Callable[[Callable[[bool], None]], None]) -> bool:
        """Whether a tier has deleted all that it was told to."""
        settled: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        settle(self._from_thread(partial(_resolve, settled)))
        try:
            return await asyncio.wait_for(settled, SETTLE_TIMEOUT_S)
        except TimeoutError:
            return False

    async def _stats(self, _: m.Empty) -> m.KvStats:
        arenas = self._core.arenas.values()
        return m.KvStats(
            host_id=self._config.host_id,
            num_sessions=await self._index.count_sessions(),
            arena_pages=sum(arena.num_pages for arena in arenas),
            arena_pages_used=sum(arena.num_pages - arena.num_free for arena in arenas),
            arena_bytes=sum(arena.num_pages * arena.page_bytes for arena in arenas),
            arena_bytes_used=sum(
                (arena.num_pages - arena.num_free) * arena.page_bytes for arena in arenas
            ),
            arena_blocks_pinned=sum(arena.num_pinned for arena in arenas),
            disk_blocks=len(self._core.disk),
            disk_bytes=self._core.disk.num_bytes,
            objects_bytes=self._core.objects.tier.num_bytes,
            sessions_unsaved=self._core.objects.num_sessions_unsaved,
            staged_pages=self._core.counts.pages_by_tier(),
            num_corrupt=self._core.counts.num_pages_corrupt,
        )

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            now_ns = self._runtime.clock.now_ns()
            for worker_id, incarnation in self._leases.poll():
                self._leases.drop(worker_id, incarnation)
                self._perform(self._core.on_worker_gone(worker_id, incarnation, now_ns))
            self._perform(self._core.on_tick(now_ns))
            self._telemetry.export()

    def _drop_more(self) -> None:
        if not self._is_closed:
            self._perform(self._core.on_drop_more(self._runtime.clock.now_ns()))

    def _on_grown(self, page_bytes: int, num_pages: int) -> None:
        arena = self._core.arenas.get(page_bytes)  # None: who opens it first is still to be told
        if arena is not None and num_pages > arena.num_pages:
            self._core.on_arena_grown(page_bytes, num_pages)

    def _on_loaded(self, results: LoadResults, seconds: float) -> None:
        LOAD_SECONDS.observe(seconds)
        duration_ns, now_ns = int(seconds * NS_PER_S), self._runtime.clock.now_ns()
        self._perform(self._core.on_loaded(results, duration_ns, now_ns))

    def _on_written(self, results: WriteResults) -> None:
        self._perform(self._core.on_written(results, self._runtime.clock.now_ns()))

    def _on_fetched(
        self, host_id: HostId, pages: list[FetchedPages], duration_ns: int, is_current: bool
    ) -> None:
        now_ns = self._runtime.clock.now_ns()
        self._perform(
            self._core.on_fetched(host_id, pages, duration_ns, now_ns, is_current=is_current)
        )

    def _on_saved(
        self, run: Run, outcome: SaveOutcome, missing: BlockKey | None, stored_bytes: int | None
    ) -> None:
        now_ns = self._runtime.clock.now_ns()
        self._perform(self._core.on_saved(run, outcome, missing, now_ns, stored_bytes))

    def _on_objects_listed(self) -> None:
        """From now on Redis is told what this host has there."""
        config, objects = self._config, self._core.objects
        self._perform(objects.on_all_listed(self._runtime.clock.now_ns()))
        self._objects_index = RedisIndex(
            config.redis_url, objects_of(config.host_id), told_s(config), objects.locations,
            config.redis_access,
        )  # fmt: skip
        task = self._runtime.spawn(self._objects_index.keep_in_step(), "kv-objects-index")
        self._tasks.append(task)

    def _open_objects(self, disk: Disk) -> ObjectLink | None:
        config = self._config
        if config.objects_url is None:
            return None
        try:
            bucket = Bucket(config.objects_url)
        except ValueError as error:
            shown_url = hide_password(config.objects_url)
            raise ConfigError(f"SYMPHONY_OBJECTS_URL={shown_url!r}: {error}") from None
        return ObjectLink(
            bucket, config.host_id, self._core, disk, self._arenas.by_page_bytes,
            self._runtime.clock, self._on_fetched, self._on_saved, self._on_objects_listed,
            self._from_thread(self._on_damaged), self._from_thread(self._on_failure),
        )  # fmt: skip

    def _on_damaged(self, error: DiskDamaged) -> None:
        effects = self._core.on_disk_damaged(error.life, self._runtime.clock.now_ns())
        if effects:
            log.error("the KV database is damaged and begins anew", extra={"error": str(error)})
        self._perform(effects)

    def _on_failure(self, error: BaseException) -> None:
        self._runtime.fail("a thread failed", error)

    def _perform(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case SetWords(page_bytes, pages, generations, state):
                    arena = self._arenas.by_page_bytes[page_bytes]
                    arena.set_words(pages, generations, state)
                case ReadPages(_, None):
                    self._loader.submit(effect)
                case ReadPages(reads, host_id) if host_id == OBJECTS and self._objects is not None:
                    self._objects.fetch(reads)
                case ReadPages(reads, host_id) if host_id is not None:
                    self._peering.fetch(host_id, reads)
                case SaveRun() | DropRuns() | DropSession() if self._objects is not None:
                    self._objects.perform(effect)
                case DropMore():
                    self._loop.call_soon(self._drop_more)
                case WriteBlocks() | DeleteBlocks() | TouchBlocks() | BeginDiskAnew():
                    self._writer.submit(effect)
        self._index.look()
        if self._objects_index is not None:
            self._objects_index.look()

    def _from_thread(self, handler: Callable[P, None]) -> Callable[P, None]:
        loop = asyncio.get_running_loop()

        def hand_over(*args: P.args, **kwargs: P.kwargs) -> None:
            loop.call_soon_threadsafe(lambda: handler(*args, **kwargs))

        return hand_over

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise PeerUnavailable("the kvstore is stopping")


async def check_for_ever(core: KvCore) -> None:
    """Now and then, while nothing is loaded or written, see that everything adds up.

    Raises:
        AssertionError: it does not.
    """
    while True:
        await asyncio.sleep(CHECK_EVERY_S)
        num_pages = sum(arena.num_pages for arena in core.arenas.values())
        if not core.is_loading and not core.num_writing and num_pages <= CHECK_PAGES_MAX:
            check_integrity(core)


def staged_blocks_max(payload_bytes_max: int, stage: m.KvStage) -> int:
    """Blocks whose pages fit the answer to a stage: a page's number and its generation are 4 bytes
    each, in base64, and a promise for each layer 8; the key is in hex.

    >>> stage = m.KvStage(
    ...     worker_id="w", incarnation="i", fingerprint="f", num_layers=30, page_bytes=1
    ... )
    >>> staged_blocks_max(1024**2, stage)
    2976
    """
    num_layers = max(stage.num_layers, 1)
    block_bytes = num_layers * 2 * 4 * 4 / 3 + 2 * KEY_BYTES
    promised_bytes = num_layers * 8 * 4 / 3
    return max(int((payload_bytes_max - STAGED_FIELDS_BYTES - promised_bytes) / block_bytes), 0)


def told_s(config: KvstoreConfig) -> float:
    """How long what Redis is told of a session outlives its last use here."""
    expiry_s = config.expiry_s
    if config.objects_url is not None:
        expiry_s = max(expiry_s, config.objects_expiry_s)
    return expiry_s * (1 + 1 / NOTED_SHARE)


def open_disk(config: KvstoreConfig) -> Started:
    """The disk in the data folder, and what is on it.

    Raises:
        ConfigError: it cannot be made or opened there.
    """
    try:
        return start_disk(config.disk_path, config.disk_bytes_max)
    except (OSError, lmdb.Error) as error:
        raise ConfigError(f"SYMPHONY_DATA_DIR={str(config.data_dir)!r}: {error}") from None


async def open_adapters(runtime: Runtime, config: KvstoreConfig) -> Adapters:
    """The adapters in the data folder.

    Raises:
        ConfigError: they cannot be read there.
    """
    adapters = Adapters(runtime, config)
    try:
        await adapters.open()
    except OSError as error:
        raise ConfigError(f"SYMPHONY_DATA_DIR={str(config.data_dir)!r}: {error}") from None
    return adapters


def _resolve(future: asyncio.Future[bool], result: bool) -> None:
    if not future.done():  # nobody waits any more
        future.set_result(result)
