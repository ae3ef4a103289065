"""This host and the object store: who has what there, what comes from it and what goes to it.

While it is away, or slow, nobody else waits: what was asked of it fails or comes late, and who
waits for that computes.
"""

import asyncio
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from services.kvstore.core import (
    LINKS_MAX,
    FetchedPages,
    KvCore,
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
from services.kvstore.tiers.disk import Disk, DiskDamaged
from services.kvstore.tiers.objects.reading import ObjectReader
from services.kvstore.tiers.objects.store import Bucket, Listed, StoreFailed
from services.kvstore.tiers.objects.writing import ObjectWriter, OnSaved
from shared import messages as m
from shared.arena import Arena
from shared.blocks import BlockKey
from shared.clock import Clock
from shared.ids import HostId
from shared.locations import OBJECTS
from shared.owners import NOBODY, OwnerKey, owner_key

log = logging.getLogger(__name__)

ASKERS = 4  # listings at a time
ASKED_MAX = 64  # that wait
PLACES_MAX = 262_144  # blocks of which it is remembered where they are
SESSION_OBJECTS_MAX = 4096  # of one session, looked at
LISTED_AT_ONCE = 50  # objects that the event loop looks at: more would hold it up
STOP_LOOK_S = 0.5
RETRY_S, RETRY_MAX_S = 1.0, 60.0  # of the first listing
NS_PER_S = 1_000_000_000

OnFetched = Callable[[HostId, list[FetchedPages], int, bool], None]


class ObjectLink:
    """Args:
    core: that decides.
    on_fetched: called in the event loop: from where, what came, how long it took, ns.
    on_saved: called in the event loop with what became of a run, a block of it that the disk does
        not have, and how many bytes it has there.
    on_listed: called in the event loop when it is known what was there at the start.
    damaged: called in a thread when the KV database cannot be used.
    fail: called in any thread with what must not have happened.
    """

    def __init__(
        self,
        bucket: Bucket,
        host_id: HostId,
        core: KvCore,
        disk: Disk,
        arenas: Mapping[int, Arena],
        clock: Clock,
        on_fetched: OnFetched,
        on_saved: OnSaved,
        on_listed: Callable[[], None],
        damaged: Callable[[DiskDamaged], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._bucket = bucket
        self._host_id = host_id
        self._core = core
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._on_fetched = on_fetched
        self._on_listed = on_listed
        self._places: OrderedDict[BlockKey, Place] = OrderedDict()
        self._num_asked = 0
        self._is_closed = False
        self._askers = ThreadPoolExecutor(ASKERS, "kv-objects-ask")
        self._reader = ObjectReader(bucket, arenas, self._report_read, fail)
        self._writer = ObjectWriter(
            bucket, disk, damaged,
            lambda *saved: self._soon(partial(on_saved, *saved)), fail,
        )  # fmt: skip

    async def offer(
        self, stage: m.KvStage, keys: list[BlockKey], num_offered: int, patience_s: float
    ) -> RemotePrefix | None:
        """What the object store gives of what this host lacks, if it is more than `num_offered`
        blocks, which another host gives.
        """
        owner = owner_key(stage.tenant, stage.session_id)
        if owner == NOBODY:
            return None
        num_said = self._core.what_objects_may_give(
            owner, keys, stage.num_before, stage.page_bytes, stage.kv_at, num_offered,
            self._clock.now_ns(),
        )  # fmt: skip
        if not num_said:
            return None
        shape = (stage.num_layers, stage.page_bytes)
        find = partial(find_places, keys=keys, num_before=stage.num_before, shape=shape)
        offer = self._offer_of(find(self._core.objects.tier.runs_of(owner)), stage, keys)
        if offer is None or offer.num_blocks < num_said:
            runs = await self._ask(owner, stage.num_before, patience_s)
            offer = self._offer_of(find(runs), stage, keys) or offer
        return offer if offer is not None and offer.num_blocks > num_offered else None

    def fetch(self, reads: list[PageReads]) -> None:
        """Bring these pages."""
        self._reader.fetch(reads, self._places)

    def perform(self, effect: ObjectEffect) -> None:
        """Write, or delete."""
        self._writer.submit(effect)

    def settle(self, report: Callable[[bool], None]) -> None:
        """See `ObjectWriter.settle`."""
        self._writer.settle(report)

    async def list_all(self) -> None:
        """Tell the core what this host wrote in earlier lives; tried until it can be."""
        wait_s = RETRY_S
        while True:
            try:
                await self._loop.run_in_executor(self._askers, self._walk_all)
            except StoreFailed as error:
                log.warning("the object store is away", extra={"error": str(error)})
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, RETRY_MAX_S)
            else:
                break
        self._on_listed()

    async def close(self) -> None:
        """What is on its way comes to nothing."""
        self._is_closed = True
        self._askers.shutdown(wait=False, cancel_futures=True)
        await asyncio.gather(
            asyncio.to_thread(self._reader.stop), asyncio.to_thread(self._writer.stop)
        )

    def _offer_of(
        self, places: dict[BlockKey, Place], stage: m.KvStage, keys: list[BlockKey]
    ) -> RemotePrefix | None:
        offer = self._core.offer_of_objects(keys, stage.page_bytes, places)
        if offer is not None:
            for key, place in places.items():
                self._places[key] = place
                self._places.move_to_end(key)
            while len(self._places) > PLACES_MAX:
                self._places.popitem(last=False)
        return offer

    async def _ask(self, owner: OwnerKey, num_before: int, patience_s: float) -> list[Run]:
        """What is there of a session, whoever wrote it; nothing, if that is not told in time."""
        if self._num_asked >= ASKED_MAX:
            return []
        self._num_asked += 1
        asked = self._loop.run_in_executor(self._askers, self._walk, owner, num_before)
        asked.add_done_callback(self._on_answered)
        try:
            return await asyncio.wait_for(asyncio.shield(asked), patience_s)
        except (StoreFailed, TimeoutError) as error:
            log.info("the object store does not say what it has", extra={"why": str(error)})
            self._core.peers.on_failed(OBJECTS, self._clock.now_ns())
            return []

    def _on_answered(self, asked: "asyncio.Future[list[Run]]") -> None:
        self._num_asked -= 1
        if not asked.cancelled():
            asked.exception()  # looked at, if nobody waits any more

    def _walk(self, owner: OwnerKey, num_before: int) -> list[Run]:
        """In a thread: a session's runs, and of those that begin it."""
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

    def _walk_all(self) -> None:
        """In a thread, which waits for the event loop: that looks at a few at a time."""
        now_s = self._clock.wall_ns() // NS_PER_S
        for page in self._bucket.walk():
            found = [(run, item) for item in page if (run := run_of(item.name)) is not None]
            own = [(run, item) for run, item in found if run.host_id == self._host_id]
            for at in range(0, len(own), LISTED_AT_ONCE):
                told = threading.Event()
                self._soon(partial(self._on_some, own[at : at + LISTED_AT_ONCE], now_s, told))
                while not told.wait(STOP_LOOK_S):
                    if self._is_closed:
                        return
            if self._is_closed:
                return

    def _on_some(self, own: list[tuple[Run, Listed]], now_s: int, told: threading.Event) -> None:
        now_ns = self._clock.now_ns()
        for run, item in own:
            used_at_ns = now_ns - max(now_s - item.written_s, 0) * NS_PER_S
            self._core.objects.on_listed(run, item.num_bytes, used_at_ns)
        told.set()

    def _report_read(self, pages: list[FetchedPages], seconds: float, gone: set[Run]) -> None:
        self._soon(partial(self._on_read, pages, seconds, gone))

    def _on_read(self, pages: list[FetchedPages], seconds: float, gone: set[Run]) -> None:
        if gone:
            for key in [key for each in pages for key in each.reads.keys]:
                if (place := self._places.get(key)) is not None and place.run in gone:
                    del self._places[key]
        self._core.objects.on_gone(list(gone))
        self._on_fetched(OBJECTS, pages, int(seconds * NS_PER_S), True)

    def _soon(self, handler: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(handler)
