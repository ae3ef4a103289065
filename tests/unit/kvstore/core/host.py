"""A core with its effects held back, so that a test decides when the threads answer."""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

from services.kvstore.core import (
    Commit,
    DiskWrite,
    DoMore,
    Effect,
    KvCore,
    Limits,
    LoadOutcome,
    NewBlock,
    Open,
    PageReads,
    Pinned,
    ReadPages,
    Release,
    Renew,
    SetWords,
    Stage,
    WriteBlocks,
    WriteOutcome,
)
from services.kvstore.core.base.arrived import PageFacts
from services.kvstore.core.base.events import RemotePrefix
from services.kvstore.core.integrity import check_integrity
from services.kvstore.core.tiers.arena_block import NO_PAGE, ArenaBlock
from services.kvstore.core.tiers.idle_blocks import worth_of
from services.kvstore.core.tiers.workers import Lease
from services.kvstore.core.writing.arrivals import FetchedPages
from shared.arena import PageState
from shared.blocks import BlockKey, child_key, root_key
from shared.eviction import RECENT_NS, EvictionName, ReturnModel, bin_of, layer_share
from shared.ids import HostId, SessionId, TenantId, WorkerId
from shared.locations import OBJECTS
from shared.owners import NO_OWNER, OwnerKey, owner_key

LAYERS = 2
PAGE_BYTES = 100
NUM_PAGES = 12
BLOCK_BYTES = LAYERS * PAGE_BYTES
TICKET_NS = 2000
WORKERS = [WorkerId("w1"), WorkerId("w2")]
PEERS = [HostId("h1"), HostId("h2")]


class PageRead(NamedTuple):
    """One page of a run that the loader was given."""

    block_id: int
    key: BlockKey
    layer: int
    page: int
    generation: int


def each_page(batch: list[PageReads]) -> list[PageRead]:
    """A batch, page by page."""
    return [
        PageRead(block_id, key, reads.layer, page, generation)
        for reads in batch
        for block_id, key, page, generation in zip(
            reads.block_ids, reads.keys, reads.pages, reads.generations, strict=True
        )
    ]


def pages_that_go(
    blocks: Iterable[ArenaBlock],
    num_pages: int,
    is_stored: Callable[[BlockKey], bool],
    policy: EvictionName = "predicted",
    now_ns: int = 0,
    returns: ReturnModel | None = None,
    has_copy: Callable[[BlockKey], bool] = lambda key: True,
    number_of: Callable[[ArenaBlock], int] = lambda block: 0,
    *,
    is_trusted: bool = True,
) -> list[int]:
    """Slow and obvious: which pages of these idle blocks make room for so many, in order."""
    returns = returns or ReturnModel()

    def place(block: ArenaBlock, layer: int) -> tuple[float, ...]:
        used_at_ns, deepest = block.used_at_ns, (-block.depth, block.block_id)
        if policy == "lru":
            return used_at_ns, *deepest, layer
        if block.goes_whole:
            layer = 0
        if policy == "predicted":
            worth = 1.0 if has_copy(block.key) else worth_of(block)
            rate = returns.index(block.return_kind, bin_of(now_ns - used_at_ns)) * worth
            rate *= is_trusted
            worth = rate * layer_share(layer)
            return worth, used_at_ns, number_of(block), -layer, *deepest
        if used_at_ns + RECENT_NS <= now_ns:
            return 0, used_at_ns, -layer, *deepest
        return 1, -layer, used_at_ns, *deepest

    pages = sorted(
        (place(block, layer), page, block)
        for block in blocks
        for layer, page in enumerate(block.pages)
        if page != NO_PAGE
    )
    gone: dict[int, None] = {}
    for _, page, block in pages:
        if len(gone) >= num_pages:
            break
        if page not in gone:
            alone = not block.goes_whole and is_stored(block.key)
            gone |= dict.fromkeys([page] if alone else [p for p in block.pages if p != NO_PAGE])
    return list(gone)


def hinted_session(tenant: TenantId, sequence: int) -> tuple[TenantId, OwnerKey]:
    """As whose hint a sequence is staged."""
    return tenant, owner_key(tenant, SessionId(f"s{sequence}"))


class Host:
    """Performs a core's effects on a model of the arena's words.

    Attributes:
        words: generation and state of each page.
        effects: everything the core asked for, in order.
        loads: batches with the loader.
        fetches: batches with other hosts, in the order in which those were asked.
        writes: blocks with the writer.
        failed: page and generation of loads that failed, or were given up.
    """

    def __init__(
        self,
        num_pages: int = NUM_PAGES,
        disk_bytes_max: int = 10**9,
        eviction: EvictionName = "predicted",
        write_wait_ns: int = 0,
        limits: Limits | None = None,
    ) -> None:
        self.eviction = eviction
        self.core = KvCore(
            limits
            or Limits(
                disk_bytes_max=disk_bytes_max,
                expiry_ns=1000,
                noted_ns=100,
                ticket_ns=TICKET_NS,
                load_bytes_max=3 * PAGE_BYTES,
                eviction=eviction,
                write_wait_ns=write_wait_ns,
                copy_rest_ns=0,
                drops_max=2,
                lease_share=len(WORKERS),  # these tests fill arenas of a few pages
            )
        )
        self.core.on_arena(PAGE_BYTES, num_pages)
        self.arena = self.core.arenas[PAGE_BYTES]
        self.now_ns = 0
        self.words = [(0, PageState.FREE)] * num_pages
        self.effects: list[Effect] = []
        self.loads: deque[list[PageReads]] = deque()
        self.fetches: dict[HostId, deque[list[PageReads]]] = {
            place: deque() for place in [*PEERS, OBJECTS]
        }
        self.writes: deque[DiskWrite] = deque()
        self.failed: set[tuple[int, int]] = set()
        self.incarnations: defaultdict[WorkerId, str] = defaultdict(str)
        self.opened: list[tuple[WorkerId, str]] = []
        self.leased_at_ns: dict[int, int] = {}

    @property
    def loading(self) -> Any:
        """What the core loads, and from where."""
        return self.core._loads

    @property
    def writing(self) -> Any:
        """What the core has written to disk meanwhile."""
        return self.core._writes

    def grow(self, num_pages: int) -> None:
        """More pages of the arena can be used."""
        self.words += [(0, PageState.FREE)] * num_pages
        self.core.on_arena_grown(PAGE_BYTES, self.arena.num_pages + num_pages)

    def perform(self, effects: list[Effect]) -> None:
        self.effects += effects
        for effect in effects:
            match effect:
                case SetWords(_, pages, generations, state):
                    for page, generation in zip(pages, generations, strict=True):
                        old, _ = self.words[page]
                        assert generation > old if state is PageState.FILLING else generation == old
                        self.words[page] = (generation, state)
                case ReadPages(reads, peer):
                    (self.loads if peer is None else self.fetches[peer]).append(reads)
                case WriteBlocks(writes):
                    self.writes += writes
                case DoMore():
                    self.perform(self.core.on_do_more(self.now_ns))

    def open(self, worker: WorkerId = WORKERS[0]) -> None:
        """As a new incarnation each time."""
        self.incarnations[worker] = f"i{len(self.opened)}"
        self.opened.append((worker, self.incarnations[worker]))
        self.open_as(worker, self.incarnations[worker])

    def open_as(self, worker: WorkerId, incarnation: str) -> None:
        """A message of this incarnation arrives, perhaps late, perhaps again."""
        event = Open(worker, incarnation, "f", LAYERS, PAGE_BYTES)
        self.perform(self.core.on_open(event, self.now_ns))

    def lease(self, num_pages: int, worker: WorkerId = WORKERS[0], number: int = 1) -> list[int]:
        pages, effects = self.core.on_lease(
            worker, self.incarnations[worker], PAGE_BYTES, num_pages, number, self.now_ns
        )
        self.perform(effects)
        self.leased_at_ns |= dict.fromkeys(pages, self.now_ns)
        return pages

    def commit(
        self,
        names: list[tuple[int, int]],
        pages: list[int],
        worker: WorkerId = WORKERS[0],
        owner: OwnerKey = NO_OWNER,
        seq: int = 0,
        last_lease: int = 1,
        expiry_s: int = 0,
    ) -> None:
        """Blocks (sequence, index) in these pages, in order."""
        blocks = [
            NewBlock(
                key=key_of(*name),
                parent=key_of(name[0], name[1] - 1),
                tokens=[name[0]],
                pages=pages[LAYERS * at : LAYERS * (at + 1)],
                checksums=[0] * LAYERS,
                owner=owner,
                expiry_s=expiry_s,
            )
            for at, name in enumerate(names)
        ]
        event = Commit(worker, self.incarnations[worker], "f", PAGE_BYTES, blocks, seq, last_lease)
        _, effects = self.core.on_commit(event, self.now_ns)
        self.perform(effects)

    def leased(self, worker: WorkerId) -> dict[int, Lease]:
        """Pages leased to it."""
        found = self.core.workers.find(worker)
        assert found is not None
        return found.leased.get(PAGE_BYTES, {})

    def is_young_lease(self, worker: WorkerId, page: int) -> bool:
        """Whether its worker may not know of it yet."""
        lease = self.leased(worker).get(page)
        at_ns = self.leased_at_ns.get(page, 0) if lease is None else lease.held_at_ns
        return self.now_ns - at_ns < TICKET_NS

    def retired(self, worker: WorkerId) -> list[str]:
        """Incarnations of it that are over."""
        return [name for owner, name in self.opened if owner == worker][:-1]

    def lose(self, worker: WorkerId) -> None:
        """The worker's process ends."""
        incarnation = self.incarnations[worker]
        self.perform(self.core.on_worker_gone(worker, incarnation, self.now_ns))

    def store(
        self, names: list[tuple[int, int]], owner: OwnerKey = NO_OWNER, expiry_s: int = 0
    ) -> None:
        """Commit blocks and write them to disk."""
        self.commit(names, self.lease(LAYERS * len(names)), owner=owner, expiry_s=expiry_s)
        while self.writes:
            self.finish_write()

    def stage(
        self,
        sequence: int,
        num_blocks: int,
        priority: int = 0,
        worker: WorkerId = WORKERS[0],
        blocks_max: int = NUM_PAGES,
        hinted_by: str | None = None,
        offer: RemotePrefix | None = None,
        first: int = 0,
    ) -> Pinned:
        keys = [key_of(sequence, index) for index in range(first, first + num_blocks)]
        event = Stage(
            worker,
            self.incarnations[worker],
            LAYERS,
            PAGE_BYTES,
            keys,
            priority,
            blocks_max,
            None if hinted_by is None else hinted_session(TenantId(hinted_by), sequence),
            offer,
            "f",
            first,
        )
        staged, effects = self.core.on_stage(event, self.now_ns)
        self.perform(effects)
        return staged

    def release(
        self,
        ticket: int = 0,
        pages: list[int] | None = None,
        worker: WorkerId = WORKERS[0],
        last_lease: int = 1,
        num_kept: int = 0,
    ) -> None:
        incarnation = self.incarnations[worker]
        event = Release(
            worker,
            incarnation,
            ticket,
            PAGE_BYTES,
            pages or [],
            last_lease=last_lease,
            num_kept=num_kept,
        )
        self.perform(self.core.on_release(event, self.now_ns))

    def renew(
        self,
        tickets: list[int],
        leased: list[int],
        worker: WorkerId = WORKERS[0],
        last_lease: int = 1,
        used: list[BlockKey] | None = None,
    ) -> list[BlockKey]:
        """Blocks that are gone since the renewal before."""
        incarnation = self.incarnations[worker]
        event = Renew(worker, incarnation, tickets, PAGE_BYTES, leased, last_lease, used or [])
        gone, effects = self.core.on_renew(event, self.now_ns)
        self.perform(effects)
        return gone

    def pass_time(self, duration_ns: int) -> None:
        self.now_ns += duration_ns
        self.perform(self.core.on_tick(self.now_ns))

    def finish_load(
        self, outcome: LoadOutcome = LoadOutcome.READY, duration_ns: int = 0
    ) -> list[PageRead]:
        """The loader's oldest batch ends, its first page so, the others well."""
        batch = self.loads.popleft()
        outcomes = [[LoadOutcome.READY] * len(reads.pages) for reads in batch]
        outcomes[0][0] = outcome
        for load, each in zip(each_page(batch), chain.from_iterable(outcomes), strict=True):
            assert self.words[load.page] == (load.generation, PageState.FILLING) or (
                load.block_id in self.arena.holding
            ), "a page in flight was given away"
            state = PageState.READY if each is LoadOutcome.READY else PageState.BAD
            self.words[load.page] = (load.generation, state)
            if each is LoadOutcome.FAILED:
                self.failed.add((load.page, load.generation))
        results = list(zip(batch, outcomes, strict=True))
        self.perform(self.core.on_loaded(results, duration_ns, self.now_ns))
        return each_page(batch)

    def finish_fetch(
        self,
        peer: HostId = PEERS[0],
        outcome: LoadOutcome = LoadOutcome.READY,
        owner: OwnerKey = NO_OWNER,
        change: Callable[[PageFacts], PageFacts | None] = lambda facts: facts,
        duration_ns: int = 0,
        is_current: bool = True,
    ) -> list[PageRead]:
        """The oldest batch that a peer was asked for ends, its first page so, the others well.

        Args:
            change: what the peer reports of each page, from the truth.
        """
        batch = self.fetches[peer].popleft()
        if outcome is LoadOutcome.FAILED:
            self.failed |= {
                (block.pages[layer], block.generations[layer])
                for block in self.arena.holding.values()
                if block.source.host_id == peer
                for layer in block.queued
            }
        outcomes = [[LoadOutcome.READY] * len(reads.pages) for reads in batch]
        outcomes[0][0] = outcome
        for load, each in zip(each_page(batch), chain.from_iterable(outcomes), strict=True):
            state = PageState.READY if each is LoadOutcome.READY else PageState.BAD
            self.words[load.page] = (load.generation, state)
            if each is LoadOutcome.FAILED:
                self.failed.add((load.page, load.generation))
        pages = [
            FetchedPages(reads, each, [change(self._truth(key, owner)) for key in reads.keys])
            for reads, each in zip(batch, outcomes, strict=True)
        ]
        self.perform(
            self.core.on_fetched(peer, pages, duration_ns, self.now_ns, is_current=is_current)
        )
        return each_page(batch)

    def finish_fetches(self, owner: OwnerKey = NO_OWNER) -> None:
        """All that peers were asked for comes."""
        for peer, batches in self.fetches.items():
            while batches:
                self.finish_fetch(peer, owner=owner)

    def _truth(self, key: BlockKey, owner: OwnerKey) -> PageFacts:
        """Of a block that was made by `owner`."""
        sequence, index = name_of(key)
        return PageFacts(key_of(sequence, index - 1), [sequence], LAYERS, 0, owner)

    def finish_write(self, outcome: WriteOutcome = WriteOutcome.STORED) -> None:
        """The writer's oldest block ends so."""
        write = self.writes.popleft()
        self.perform(self.core.on_written([(write.block_id, outcome, BLOCK_BYTES)], self.now_ns))

    def delete(self, names: list[tuple[int, int]], owner: OwnerKey = NO_OWNER) -> int:
        keys = [key_of(*name) for name in names]
        num_blocks, effects = self.core.on_delete(owner, keys, self.now_ns)
        self.perform(effects)
        return num_blocks

    def tell(self) -> dict[OwnerKey, int]:
        """Redis takes all that is to be sent: leading blocks, by session."""
        sent: dict[OwnerKey, int] = {}
        while (update := self.core.locations.take()) is not None:
            sent |= update.sessions
            self.core.locations.on_sent()
        return sent

    def evict_all(self) -> None:
        """Drive everything that may go out of the arena."""
        self.release(pages=self.lease(NUM_PAGES))

    def check_pages_conserved(self) -> None:
        """Every page is in exactly one place, and its word says so."""
        check_integrity(self.core)
        for page in self.arena.free_pages:
            assert self.words[page][1] is PageState.FREE
        for block in self.arena.holding.values():
            for page, generation in zip(block.pages, block.generations, strict=True):
                assert page == NO_PAGE or self.words[page][0] == generation
        for key, block in self.arena.blocks.items():
            assert block.is_alive and block.key == key and block.block_id in self.arena.holding


_NAMES: dict[BlockKey, tuple[int, int]] = {}


def name_of(key: BlockKey) -> tuple[int, int]:
    """Inverse of `key_of`, of those that it was asked for."""
    return _NAMES[key]


@cache
def key_of(sequence: int, index: int) -> BlockKey:
    """Key of a block by its place; index -1 is the root."""
    key = root_key("f", str(sequence))
    for _ in range(index + 1):
        key = child_key(key, [sequence])
    _NAMES[key] = sequence, index
    return key
