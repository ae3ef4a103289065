"""Performs the core's effects in the tiers, and reports the results back to the core."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import ParamSpec

from services.kvstore.core import (
    DeleteBlocks,
    DoMore,
    DropRuns,
    DropSession,
    Effect,
    FetchedPages,
    GrowArena,
    KvCore,
    ReadPages,
    ResetDisk,
    Run,
    SaveOutcome,
    SaveRun,
    SetWords,
    TouchBlocks,
    WriteBlocks,
)
from services.kvstore.index.redis_index import RedisIndex
from services.kvstore.peers.peering import PeerEvents, Peering
from services.kvstore.ports import Ports
from services.kvstore.tiers.disk import DiskDamaged
from services.kvstore.tiers.disk.disk_writer import DiskWriter, WriteResults
from services.kvstore.tiers.disk.loader import NUM_THREADS, Loader, LoadResults
from services.kvstore.tiers.objects.link import ObjectEvents, ObjectLink
from shared.blocks import BlockKey
from shared.ids import HostId
from shared.locations import OBJECTS, objects_of
from shared.runtime.metrics import histogram
from shared.service import Runtime

log = logging.getLogger(__name__)

P = ParamSpec("P")

NS_PER_S = 1_000_000_000
LOAD_SECONDS = histogram("kv_load_seconds", "Time to copy one batch of pages from disk")
SETTLE_TIMEOUT_S = 5.0


class Performer:
    """Everything but the executors' work runs on the event loop, and every call of the core is a
    plain call there, so the core is never re-entered.

    Args:
        redis_ttl_s: how long what Redis holds of a session outlives its last use here.

    Attributes:
        index: where sessions' KV is, in Redis.
        peering: other hosts.
        objects: the object store; None: there is none.
    """

    def __init__(self, runtime: Runtime, core: KvCore, ports: Ports, redis_ttl_s: float) -> None:
        self._runtime = runtime
        self._clock = runtime.clock
        self._core = core
        self._ports = ports
        self._redis_ttl_s = redis_ttl_s
        self._loop = asyncio.get_running_loop()
        self._arenas = ports.memory.by_page_bytes
        self._is_closed = False
        self._tasks: list[asyncio.Task[None]] = []
        ports.memory.on_grown = self._from_thread(core.on_arena_grown)
        damaged = self._from_thread(self._on_damaged)
        self._loader = Loader(
            ports.disk, self._arenas, ports.executors("kv-loader", NUM_THREADS), self._clock,
            self._from_thread(self._on_loaded), damaged,
        )  # fmt: skip
        self._writer = DiskWriter(
            ports.disk, self._arenas, ports.executors("kv-writer", 1), self._clock,
            self._from_thread(self._on_written), damaged,
        )  # fmt: skip
        self.peering = Peering(
            ports.peers, core.exchange, ports.disk, self._arenas, runtime.bus, self._clock,
            PeerEvents(self._on_fetched, damaged),
        )  # fmt: skip
        self.objects: ObjectLink | None = None
        if ports.objects is not None:
            self.objects = ObjectLink(
                ports.objects, core.exchange, ports.disk, self._arenas, self._clock,
                ports.executors,
                ObjectEvents(
                    self._on_fetched, self._on_saved, self._on_objects_listed, self._on_damaged
                ),
            )  # fmt: skip
        self.index = self._new_index(core.exchange.host_id)
        self._objects_index: RedisIndex | None = None

    def start(self) -> None:
        """Begin what runs beside the calls."""
        self._tasks.append(self._runtime.spawn(self.index.run(), "kv-index"))
        if self.objects is not None:
            self._tasks.append(self._runtime.spawn(self.objects.list_all(), "kv-objects"))

    async def close(self) -> None:
        """Write what waits to be written, and end."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.perform(self._core.on_stop())
        stops = [asyncio.to_thread(each.stop) for each in (self._loader, self._writer)]
        objects = [] if self.objects is None else [self.objects.close()]
        await asyncio.gather(*stops, self.peering.close(), *objects)  # no write waits for a peer
        await asyncio.sleep(0)  # the executors' last reports arrive
        for index in (self._objects_index, self.index):
            if index is not None:
                await index.close()

    def perform(self, effects: Sequence[Effect]) -> None:
        """Do these in order, or have them done."""
        for effect in effects:
            match effect:
                case SetWords(page_bytes, pages, generations, state):
                    self._arenas[page_bytes].set_words(pages, generations, state)
                case ReadPages(_, None):
                    self._loader.submit(effect)
                case ReadPages(reads, host_id) if host_id == OBJECTS and self.objects is not None:
                    self.objects.fetch(reads)
                case ReadPages(reads, host_id) if host_id is not None:
                    self.peering.fetch(host_id, reads)
                case SaveRun() | DropRuns() | DropSession() if self.objects is not None:
                    self.objects.perform(effect)
                case GrowArena(page_bytes, num_pages):
                    self._ports.memory.grow(page_bytes, num_pages)
                case DoMore():
                    self._loop.call_soon(self._do_more)
                case WriteBlocks() | DeleteBlocks() | TouchBlocks() | ResetDisk():
                    self._writer.submit(effect)
        self.index.look()
        if self._objects_index is not None:
            self._objects_index.look()

    def tick(self) -> None:
        """Now and then."""
        self.perform(self._core.on_tick(self._clock.now_ns()))
        self._writer.tick()

    async def settle(self) -> bool:
        """Whether every tier has deleted all that it was to delete, so that no restart brings it
        back.
        """
        settled = [self._settled(self._writer.settle)]
        if self.objects is not None:
            settled.append(self._settled(self.objects.settle))
        return all(await asyncio.gather(*settled))

    async def _settled(self, settle: Callable[[Callable[[bool], None]], None]) -> bool:
        settled: asyncio.Future[bool] = self._loop.create_future()
        settle(self._from_thread(partial(_resolve, settled)))
        try:
            return await asyncio.wait_for(settled, SETTLE_TIMEOUT_S)
        except TimeoutError:
            return False

    def _do_more(self) -> None:
        if not self._is_closed:
            self.perform(self._core.on_do_more(self._clock.now_ns()))

    def _on_loaded(self, results: LoadResults, duration_ns: int) -> None:
        LOAD_SECONDS.observe(duration_ns / NS_PER_S)
        self.perform(self._core.on_loaded(results, duration_ns, self._clock.now_ns()))

    def _on_written(self, results: WriteResults) -> None:
        self.perform(self._core.on_written(results, self._clock.now_ns()))

    def _on_fetched(
        self, host_id: HostId, pages: list[FetchedPages], duration_ns: int, is_current: bool
    ) -> None:
        now_ns = self._clock.now_ns()
        self.perform(
            self._core.on_fetched(host_id, pages, duration_ns, now_ns, is_current=is_current)
        )

    def _on_saved(
        self, run: Run, outcome: SaveOutcome, missing: BlockKey | None, stored_bytes: int | None
    ) -> None:
        now_ns = self._clock.now_ns()
        self.perform(self._core.on_saved(run, outcome, missing, now_ns, stored_bytes))

    def _on_objects_listed(self) -> None:
        """From now on Redis is sent what this host has in the object store."""
        self.perform(self._core.on_objects_listed(self._clock.now_ns()))
        self._objects_index = index = RedisIndex(
            self._ports.redis, objects_of(self._core.exchange.host_id), self._redis_ttl_s,
            self._core.object_locations, self._clock,
        )  # fmt: skip
        self._tasks.append(self._runtime.spawn(index.keep_in_step(), "kv-objects-index"))

    def _on_damaged(self, error: DiskDamaged) -> None:
        effects = self._core.on_disk_damaged(error.life, self._clock.now_ns())
        if effects:
            log.error("the KV database is damaged and is reset", extra={"error": str(error)})
        self.perform(effects)

    def _new_index(self, host_id: HostId) -> RedisIndex:
        return RedisIndex(
            self._ports.redis, host_id, self._redis_ttl_s, self._core.locations, self._clock
        )

    def _from_thread(self, handler: Callable[P, None]) -> Callable[P, None]:
        """`handler`, to be called in the event loop: may be called in any thread."""

        def hand_over(*args: P.args, **kwargs: P.kwargs) -> None:
            self._loop.call_soon_threadsafe(lambda: handler(*args, **kwargs))

        return hand_over


def _resolve(future: asyncio.Future[bool], result: bool) -> None:
    if not future.done():  # it timed out
        future.set_result(result)
