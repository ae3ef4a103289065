"""The object store as this host uses it: which blocks are there, fetching them, writing to it.

While the store is away or slow, nothing else waits: requests to it fail or come late, and turns
that wait for them compute instead.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from services.kvstore.core import (
    LINKS_MAX,
    Exchange,
    FetchedPages,
    ObjectEffect,
    PageReads,
    Place,
    RemotePrefix,
    Run,
    earlier_owners,
    find_places,
    folder_of,
    run_of,
)
from services.kvstore.tiers.disk import BlockStore, DiskDamaged
from services.kvstore.tiers.executors import Executors
from services.kvstore.tiers.objects.reading import ObjectReader
from services.kvstore.tiers.objects.store import Listed, ObjectStore, StoreFailed
from services.kvstore.tiers.objects.writing import ObjectWriter, OnSaved
from shared.arena import ArenaView
from shared.blocks import BlockKey
from shared.ids import HostId
from shared.locations import OBJECTS
from shared.owners import NO_OWNER, OwnerKey, owner_key
from shared.runtime.clock import Clock
from shared.wire import messages as m

log = logging.getLogger(__name__)

LISTERS = 4  # listings at a time
LISTINGS_WAITING_MAX = 64
READERS = 8  # requests at a time: each waits long for its first byte
PLACES_MAX = 262_144  # blocks whose place in the store is remembered
SESSION_OBJECTS_MAX = 4096  # of one session, looked at
LISTED_AT_ONCE = 50  # objects that the event loop looks at: more would hold it up
RETRY_S, RETRY_MAX_S = 1.0, 60.0  # of the first listing
NS_PER_S = 1_000_000_000

OnFetched = Callable[[HostId, list[FetchedPages], int, bool], None]


@dataclass(frozen=True, slots=True)
class ObjectEvents:
    """Handlers, all called in the event loop.

    Attributes:
        fetched: source, what came, how long it took, ns, and True.
        saved: what became of a run, a block of it that the disk does not have, and how many bytes
            it has in the store.
        listed: it is known what was there at the start.
        damaged: the KV database cannot be used.
    """

    fetched: OnFetched
    saved: OnSaved
    listed: Callable[[], None]
    damaged: Callable[[DiskDamaged], None]


class ObjectLink:
    """Args:
    exchange: decides.
    arenas: by page size in bytes.
    """

    def __init__(
        self,
        bucket: ObjectStore,
        exchange: Exchange,
        disk: BlockStore,
        arenas: Mapping[int, ArenaView],
        clock: Clock,
        executors: Executors,
        events: ObjectEvents,
    ) -> None:
        self._bucket = bucket
        self._exchange = exchange
        self._clock = clock
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._places: OrderedDict[BlockKey, Place] = OrderedDict()
        self._num_listing = 0
        self._is_closed = False
        self._listers = ThreadPoolExecutor(LISTERS, "kv-objects-list")
        self._reader = ObjectReader(
            bucket, arenas, executors("kv-objects-read", READERS), clock,
            partial(self._soon, self._on_read),
        )  # fmt: skip
        self._writer = ObjectWriter(
            bucket, disk, executors("kv-objects-write", 1),
            partial(self._soon, events.damaged), partial(self._soon, events.saved),
        )  # fmt: skip

    async def offer(
        self, stage: m.KvStage, keys: list[BlockKey], num_offered: int, patience_s: float
    ) -> RemotePrefix | None:
        """What the object store gives of what this host lacks, if it is more than `num_offered`
        blocks, which another host gives.
        """
        owner = owner_key(stage.tenant, stage.session_id)
        if owner == NO_OWNER:
            return None
        num_said = self._exchange.what_objects_may_give(
            owner, keys, stage.num_before, stage.page_bytes, stage.kv_at, num_offered,
            self._clock.now_ns(),
        )  # fmt: skip
        if not num_said:
            return None
        shape = (stage.num_layers, stage.page_bytes)
        find = partial(find_places, keys=keys, num_before=stage.num_before, shape=shape)
        offer = self._offer_of(find(self._exchange.runs_of(owner)), stage, keys)
        if offer is None or offer.num_blocks < num_said:
            runs = await self._list(owner, stage.num_before, patience_s)
            offer = self._offer_of(find(runs), stage, keys) or offer
        return offer if offer is not None and offer.num_blocks > num_offered else None

    def fetch(self, reads: list[PageReads]) -> None:
        """Load these pages into the arena."""
        self._reader.fetch(reads, self._places)

    def perform(self, effect: ObjectEffect) -> None:
        """Write, or delete."""
        self._writer.submit(effect)

    def settle(self, report: Callable[[bool], None]) -> None:
        """See `ObjectWriter.settle`."""
        self._writer.settle(report)

    async def list_all(self) -> None:
        """Report to the core what this host wrote in earlier lives; tried until it succeeds."""
        wait_s = RETRY_S
        while True:
            try:
                await self._list_own()
            except StoreFailed as error:
                log.warning("the object store is away", extra={"error": str(error)})
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, RETRY_MAX_S)
            else:
                break
        self._events.listed()

    async def close(self) -> None:
        """Abandon what is in flight."""
        self._is_closed = True
        self._listers.shutdown(wait=False, cancel_futures=True)
        await asyncio.gather(
            asyncio.to_thread(self._reader.stop), asyncio.to_thread(self._writer.stop)
        )

    def _offer_of(
        self, places: dict[BlockKey, Place], stage: m.KvStage, keys: list[BlockKey]
    ) -> RemotePrefix | None:
        offer = self._exchange.offer_of_objects(keys, stage.page_bytes, places)
        if offer is not None:
            for key, place in places.items():
                self._places[key] = place
                self._places.move_to_end(key)
            while len(self._places) > PLACES_MAX:
                self._places.popitem(last=False)
        return offer

    async def _list(self, owner: OwnerKey, num_before: int, patience_s: float) -> list[Run]:
        """Runs of a session, whichever host wrote them; none, if the answer takes too long."""
        if self._num_listing >= LISTINGS_WAITING_MAX:
            return []
        self._num_listing += 1
        listing = self._loop.run_in_executor(self._listers, self._walk, owner, num_before)
        listing.add_done_callback(self._on_listing_done)
        try:
            return await asyncio.wait_for(asyncio.shield(listing), patience_s)
        except (StoreFailed, TimeoutError) as error:
            log.info("the object store does not say what it has", extra={"why": str(error)})
            self._exchange.on_no_answer(OBJECTS, self._clock.now_ns())
            return []

    def _on_listing_done(self, listing: "asyncio.Future[list[Run]]") -> None:
        self._num_listing -= 1
        if not listing.cancelled():
            listing.exception()  # retrieved, in case `_list` timed out before

    def _walk(self, owner: OwnerKey, num_before: int) -> list[Run]:
        """In a thread: a session's runs, and those of sessions that begin it."""
        runs: list[Run] = []
        todo = {owner}
        for _ in range(LINKS_MAX):
            for each in todo:
                for page in self._bucket.walk(folder_of(each)):
                    if self._is_closed:
                        return []
                    runs += [run for item in page if (run := run_of(item.name)) is not None]
                    if len(runs) >= SESSION_OBJECTS_MAX:
                        return runs
            if not (todo := earlier_owners(runs, num_before)):
                break
        return runs

    async def _list_own(self) -> None:
        """Raises:
        StoreFailed: the listing broke off.
        """
        pages = self._bucket.walk()
        now_s = self._clock.wall_ns() // NS_PER_S
        while (
            own := await self._loop.run_in_executor(self._listers, self._next, pages)
        ) is not None:
            for at in range(0, len(own), LISTED_AT_ONCE):
                now_ns = self._clock.now_ns()
                for run, item in own[at : at + LISTED_AT_ONCE]:
                    used_at_ns = now_ns - max(now_s - item.written_s, 0) * NS_PER_S
                    self._exchange.on_object_listed(run, item.num_bytes, used_at_ns)
                await asyncio.sleep(0)

    def _next(self, pages: Iterator[list[Listed]]) -> list[tuple[Run, Listed]] | None:
        """In a thread: this host's runs of the next page; None at the end."""
        if (page := next(pages, None)) is None:
            return None
        found = [(run, item) for item in page if (run := run_of(item.name)) is not None]
        return [(run, item) for run, item in found if run.host_id == self._exchange.host_id]

    def _on_read(self, pages: list[FetchedPages], duration_ns: int, gone: set[Run]) -> None:
        if gone:
            for key in [key for each in pages for key in each.reads.keys]:
                if (place := self._places.get(key)) is not None and place.run in gone:
                    del self._places[key]
        self._exchange.on_objects_gone(gone)
        self._events.fetched(OBJECTS, pages, duration_ns, True)

    def _soon(self, handler: Callable[..., None], *args: object) -> None:
        self._loop.call_soon_threadsafe(handler, *args)
