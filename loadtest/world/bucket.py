"""An object store that is slow, away, forgets and damages; and each kvstore's side of it."""

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random

from loadtest.sim.timeline import MS, SECOND
from loadtest.world.peering import Page, PeerHost
from services.kvstore.core import (
    DropRuns,
    DropSession,
    FetchedPages,
    LoadOutcome,
    ObjectEffect,
    PageFacts,
    PageReads,
    Place,
    RemotePrefix,
    Run,
    SaveOutcome,
    SaveRun,
    earlier_owners,
    find_places,
    folder_of,
    run_of,
)
from shared.arena import PageState
from shared.blocks import BlockKey
from shared.locations import OBJECTS
from shared.owners import NO_OWNER, OwnerKey, owner_key
from shared.wire import messages as m

CALL_NS = 20 * MS  # a request, at most
TIMEOUT_NS = 300 * MS  # of one, while the store is away
SLOW_MIN_NS, SLOW_MAX_NS = SECOND, 20 * SECOND  # of one, while it is slow
LOCATE_NS = 30 * MS
LOCATE_MAX_NS = 300 * MS  # that a stage waits for a listing
RETRY_NS = SECOND
PLACES_MAX = 64

OnOffer = Callable[[RemotePrefix | None], None]


@dataclass
class Bucket:
    """Attributes:
    objects: pages of each, as they lie there, and its bytes.
    is_away: every request fails.
    is_slow: requests that begin now take long.
    slow_until_ns: by then all of those were answered.
    """

    objects: dict[str, list[Page]] = field(default_factory=dict)
    is_away: bool = False
    is_slow: bool = False
    slow_until_ns: int = 0

    def damage(self, random: Random, share: float) -> None:
        """Some objects lose their bytes."""
        for pages in self.objects.values():
            if random.random() < share:
                pages[:] = [page._replace(is_damaged=True) for page in pages]

    def lose(self, random: Random, share: float) -> None:
        """Some objects are gone."""
        for name in [name for name in self.objects if random.random() < share]:
            del self.objects[name]

    def runs(self, owner: OwnerKey | None = None) -> list[Run]:
        """Everybody's, or a session's."""
        folder = "" if owner is None else folder_of(owner)
        found = [run_of(name) for name in sorted(self.objects) if name.startswith(folder)]
        return [run for run in found if run is not None]


class BucketSide:
    """One kvstore's side, for one life of it; as `services/kvstore/tiers/objects` does it.

    Args:
        on_listed: called once the objects that existed at the start are listed.
    """

    def __init__(self, kvstore: PeerHost, bucket: Bucket, on_listed: Callable[[], None]) -> None:
        self._kvstore = kvstore
        self._bucket = bucket
        self._on_listed = on_listed
        self._places: OrderedDict[BlockKey, Place] = OrderedDict()
        self._orders: deque[ObjectEffect] = deque()
        self._list_all()

    def offer(
        self, message: m.KvStage, keys: list[BlockKey], of_peer: RemotePrefix | None, then: OnOffer
    ) -> None:
        """What the store gives, if it is more than another host does."""
        kvstore, core = self._kvstore, self._kvstore.core
        owner = owner_key(message.tenant, message.session_id)
        num_offered = 0 if of_peer is None else of_peer.num_blocks
        num_said = 0
        if owner != NO_OWNER:
            num_said = core.what_objects_may_give(
                owner, keys, message.num_before, message.page_bytes, message.kv_at, num_offered,
                kvstore.now_ns,
            )  # fmt: skip
        if not num_said:
            then(of_peer)
            return
        own = self._offer_of(core.objects.tier.runs_of(owner), message, keys)
        if own is not None and own.num_blocks >= num_said:
            then(own)
            return

        is_late = self._bucket.is_slow

        def on_answer() -> None:
            found = own
            if self._bucket.is_away or is_late:
                core.peers.on_failed(OBJECTS, kvstore.now_ns)
            else:
                runs = self._bucket.runs(owner)
                for earlier in earlier_owners(runs, message.num_before):
                    runs += self._bucket.runs(earlier)
                found = self._offer_of(runs, message, keys) or own
            is_more = found is not None and found.num_blocks > num_offered
            then(found if is_more else of_peer)

        locate_ns = kvstore.deployment.random.randrange(LOCATE_NS) + 1
        kvstore.later(LOCATE_MAX_NS if is_late else locate_ns, on_answer)

    def fetch(self, reads: list[PageReads]) -> None:
        """Pages, in their time; batches do not wait for each other."""
        duration_ns = self._duration_ns()
        self._kvstore.later(duration_ns, partial(self._end_fetch, reads, duration_ns))

    def perform(self, effect: ObjectEffect) -> None:
        """One after the other."""
        self._orders.append(effect)
        if len(self._orders) == 1:
            self._begin()

    def _list_all(self) -> None:
        kvstore = self._kvstore

        def on_answer() -> None:
            if self._bucket.is_away:
                kvstore.later(RETRY_NS, self._list_all)
                return
            for run in self._bucket.runs():
                if run.host_id == kvstore.host_id:
                    num_bytes = run.num_pages * run.page_bytes
                    kvstore.core.objects.on_listed(run, num_bytes, kvstore.now_ns)
            self._on_listed()

        kvstore.later(self._duration_ns(), on_answer)

    def _offer_of(
        self, runs: list[Run], message: m.KvStage, keys: list[BlockKey]
    ) -> RemotePrefix | None:
        shape = (message.num_layers, message.page_bytes)
        places = find_places(runs, keys, message.num_before, shape)
        offer = self._kvstore.core.offer_of_objects(keys, message.page_bytes, places)
        if offer is not None:
            self._places.update(places)
            while len(self._places) > PLACES_MAX:
                self._places.popitem(last=False)
        return offer

    def _duration_ns(self) -> int:
        bucket, deployment = self._bucket, self._kvstore.deployment
        if bucket.is_slow and not bucket.is_away:
            duration_ns = deployment.random.randrange(SLOW_MIN_NS, SLOW_MAX_NS)
            bucket.slow_until_ns = max(
                bucket.slow_until_ns, deployment.timeline.now_ns + duration_ns
            )
            return duration_ns
        most_ns = TIMEOUT_NS if bucket.is_away else CALL_NS
        return deployment.random.randrange(most_ns) + 1

    def _end_fetch(self, reads: list[PageReads], duration_ns: int) -> None:
        gone: set[Run] = set()
        pages = [self._take(each, gone) for each in reads]
        self._kvstore.core.objects.on_gone(sorted(gone, key=lambda run: run.name))
        for key in [key for key, place in self._places.items() if place.run in gone]:
            del self._places[key]
        self._kvstore.on_fetched(OBJECTS, pages, duration_ns)

    def _take(self, reads: PageReads, gone: set[Run]) -> FetchedPages:
        outcomes: list[LoadOutcome] = []
        told: list[PageFacts | None] = []
        arena = self._kvstore.arena
        for key, page, generation in zip(reads.keys, reads.pages, reads.generations, strict=True):
            outcome, found = self._take_page(key, reads.layer, gone)
            if found is not None:
                arena.put(page, found.content)
            state = PageState.BAD if found is None else PageState.READY
            arena.set_word(page, generation, state)
            outcomes.append(outcome)
            told.append(None if found is None else self._kvstore.tell_of(found))
        return FetchedPages(reads, outcomes, told)

    def _take_page(
        self, key: BlockKey, layer: int, gone: set[Run]
    ) -> tuple[LoadOutcome, Page | None]:
        place = self._places.get(key)
        if self._bucket.is_away or place is None:
            return LoadOutcome.FAILED, None
        stored = self._bucket.objects.get(place.run.name)
        if stored is None:
            gone.add(place.run)
            return LoadOutcome.MISSING, None
        page = stored[place.run.place(layer, place.at)]
        return (LoadOutcome.CORRUPT, None) if page.is_damaged else (LoadOutcome.READY, page)

    def _begin(self) -> None:
        """A run is read from the disk first; then it is on its way for a while."""
        order = self._orders[0]
        read: list[Page] | BlockKey = self._read(order) if isinstance(order, SaveRun) else []
        self._kvstore.later(self._duration_ns(), partial(self._end, order, read))

    def _end(self, order: ObjectEffect, read: list[Page] | BlockKey) -> None:
        self._orders.popleft()
        outcome: SaveOutcome | None = None
        match order:
            case SaveRun(run, _) if not isinstance(read, list):
                outcome = SaveOutcome.MISSING
            case SaveRun(run, _) if self._bucket.is_away:
                outcome = SaveOutcome.FAILED
            case SaveRun(run, _) if isinstance(read, list):
                self._bucket.objects[run.name] = read
                outcome = SaveOutcome.SAVED
            case DropRuns(runs) if not self._bucket.is_away:
                for run in runs:
                    self._bucket.objects.pop(run.name, None)
            case DropSession(owner) if not self._bucket.is_away:
                for run in self._bucket.runs(owner):
                    del self._bucket.objects[run.name]
        if self._orders:
            self._begin()
        if outcome is not None and isinstance(order, SaveRun):
            missing = None if isinstance(read, list) else read
            self._kvstore.on_saved(order.run, outcome, missing)

    def _read(self, order: SaveRun) -> list[Page] | BlockKey:
        """Pages as they lie in the object, or a block that the disk does not have."""
        pages: list[Page] = []
        for layer in range(order.run.num_layers):
            for key in order.keys:
                if (page := self._kvstore.page_of(key, layer)) is None:
                    return key
                pages.append(page)
        return pages
