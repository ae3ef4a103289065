"""Loading history: stages asked for, loads in flight, prefetches waiting for room."""

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from services.worker.core.effects import (
    CallBack,
    Effect,
    LoadPages,
    PageLoads,
    ReleaseTicket,
    TrimTicket,
)
from services.worker.core.kv.expecting import Expected, prefetched
from services.worker.core.kv.flights import Flight, Flights
from services.worker.core.kv.hints import Hint, HintName, Hints
from services.worker.core.kv.pages import NO_PAGE, NO_ROW, Block, PagePool, Pages
from services.worker.core.kv.staged import Staged
from shared.blocks import BlockKey
from shared.hints import HintShares
from shared.owners import OwnerKey
from shared.wire.urgency import DEMAND_PRIORITY, Order, load_order

NO_TICKET = 0
PREFETCH_LOADS_MAX = 128  # pages in flight for sessions that have not come yet


@dataclass(order=True, slots=True)
class _Prefetch:
    """What is left to load of an expected session.

    Attributes:
        order: of its next page, which is that of block `at` in `layer`.
        name: of the hint that it is for.
        owner: of blocks that are not there yet.
    """

    order: Order
    priority: int = field(compare=False)
    number: int = field(compare=False)
    layer: int = field(compare=False)
    at: int = field(compare=False)
    staged: Staged = field(compare=False)
    name: HintName = field(compare=False)
    owner: OwnerKey = field(compare=False)
    expires_at_ns: int = field(compare=False)


@dataclass(frozen=True, slots=True)
class _Coming:
    """Blocks of an expected session that are pinned in the arena until they are here."""

    name: HintName
    keys: list[BlockKey]
    expected: Expected
    num_staged: int


class PageGathering:
    """Pages to load, gathered by layer."""

    def __init__(self) -> None:
        # And by priority, epoch, and what was promised.
        self._by_layer: dict[tuple[int, int, int, int], PageLoads] = {}

    def add(
        self, priority: int, layer: int, staged: Staged, at: list[int], pool_pages: list[int]
    ) -> None:
        """Pages of blocks `at` of a stage in `layer`."""
        ready_at_ns = staged.ready_at_ns(layer)
        name = layer, priority, staged.epoch, ready_at_ns
        if (loads := self._by_layer.get(name)) is None:
            loads = PageLoads(priority, layer, [], [], [], staged.epoch, ready_at_ns)
            self._by_layer[name] = loads
        arena_pages, generations = staged.pages[layer], staged.generations[layer]
        loads.arena_pages.extend([arena_pages[index] for index in at])
        loads.generations.extend([generations[index] for index in at])
        loads.pool_pages.extend(pool_pages)

    def add_blocks(
        self, priority: int, staged: Staged, at: int, pool_pages: list[list[int]]
    ) -> None:
        """Every page of the blocks of a stage from block `at` on.

        Args:
            pool_pages: of each block, in each layer.
        """
        blocks = slice(at, at + len(pool_pages))
        for layer, pages in enumerate(zip(*pool_pages, strict=True)):
            ready_at_ns = staged.ready_at_ns(layer)
            self._by_layer[layer, priority, staged.epoch, ready_at_ns] = PageLoads(
                priority,
                layer,
                staged.pages[layer][blocks],
                staged.generations[layer][blocks],
                list(pages),
                staged.epoch,
                ready_at_ns,
            )

    def effects(self) -> list[Effect]:
        """Start them, low layers first."""
        if not self._by_layer:
            return []
        return [LoadPages([self._by_layer[name] for name in sorted(self._by_layer)])]


@dataclass(slots=True)
class Stager:
    """Loads from the arena into the pool, and the tickets that pin their sources.

    Attributes:
        is_paused: no prefetch load is begun, so that turns that are here find pages; until the next
            step is planned.
        num_failures: pages that did not come, since the start.
    """

    pool: PagePool
    is_paused: bool = False
    num_failures: int = 0
    flights: Flights = field(init=False)
    _tickets: dict[int, int] = field(default_factory=dict)  # ticket -> reasons to keep it
    hints: Hints = field(init=False)
    _expected: dict[int, _Coming] = field(default_factory=dict)  # by ticket
    _prefetches: list[_Prefetch] = field(default_factory=list)  # a heap
    _order: "count[int]" = field(default_factory=count)
    _next_expiry_ns: int = 0  # none of the prefetches expires before

    def __post_init__(self) -> None:
        self.hints = Hints(HintShares.of_pages(self.pool.num_pages))
        self.flights = Flights(self.pool.num_pages, self.pool.num_layers)

    @property
    def num_loading(self) -> int:
        return len(self.flights)

    @property
    def next_expiry_ns(self) -> int | None:
        """When to look whether a prefetch has expired."""
        return self._next_expiry_ns if self._prefetches else None

    @property
    def num_demanded(self) -> int:
        """Loading pages that turns wait for."""
        return len(self.flights) - self.flights.num_prefetching

    def num_loading_of(self, block: Block) -> int:
        """Loading pages of a block."""
        return sum(page in self.flights for page in self.pool.pages_of(block))

    def loading_pages(self, blocks: list[Block]) -> list[list[int]]:
        """Loading pages of `blocks`, for each layer."""
        return self.flights.of(self._table_of(blocks))

    def arrivals(self, blocks: list[Block], page_ns: float, now_ns: int) -> list[int]:
        """For each layer, when the last page of `blocks` will probably be here; 0 where none is on
        its way.

        Args:
            page_ns: of a load from the arena.
        """
        return self.flights.arrivals(self._table_of(blocks), page_ns, now_ns)

    def _table_of(self, blocks: list[Block]) -> Pages:
        return self.pool.table[[block.row for block in blocks if block.loading]]

    def holds(self, ticket: int) -> bool:
        """Whether what the kvstore answered under this ticket is still pinned."""
        return ticket in self._tickets

    def hold(self, ticket: int, num: int = 1) -> None:
        """Keep a ticket until as many `let_go`."""
        self._tickets[ticket] = self._tickets.get(ticket, 0) + num

    def let_go(self, ticket: int, num: int = 1) -> list[Effect]:
        """So many reasons less to keep the ticket."""
        if ticket not in self._tickets:
            return []
        self._tickets[ticket] -= num
        if self._tickets[ticket]:
            return []
        del self._tickets[ticket]
        if (coming := self._expected.pop(ticket, None)) is not None:
            return [ReleaseTicket(ticket), *self._end_expected(coming)]
        return [ReleaseTicket(ticket)]

    def load(self, filled: list[tuple[Block, list[int]]], staged: Staged, at: int) -> list[Effect]:
        """Load the pages that acquired blocks were just given.

        Args:
            filled: each block with the layers that it had lacked; they are those of the stage from
                block `at` on, in order.
        """
        ready_at_ns = list(map(staged.ready_at_ns, range(self.pool.num_layers)))
        num_pages = self._begin(filled, staged.ticket, ready_at_ns)
        tables: list[list[int]] = self.pool.table[[block.row for block, _ in filled]].tolist()
        loads = PageGathering()
        if num_pages == len(filled) * self.pool.num_layers:  # all of them are new, as most often
            loads.add_blocks(DEMAND_PRIORITY, staged, at, tables)
        else:
            for index, ((_, layers), pages) in enumerate(zip(filled, tables, strict=True), at):
                for layer in layers:
                    loads.add(DEMAND_PRIORITY, layer, staged, [index], [pages[layer]])
        if num_pages:
            self.hold(staged.ticket, num_pages)
        return loads.effects()

    def make(self, filled: list[tuple[Block, list[int]]]) -> None:
        """The caller makes the bytes of the pages that acquired blocks were just given: each block
        with the layers that it had lacked."""
        self._begin(filled, NO_TICKET, [0] * self.pool.num_layers)

    def _begin(
        self, filled: list[tuple[Block, list[int]]], ticket: int, ready_at_ns: list[int]
    ) -> int:
        """So many pages are loading from now on, and a turn waits for them."""
        num_layers, num_pages = self.pool.num_layers, 0
        table = self.pool.table[[block.row for block, _ in filled]]
        for at, (block, layers) in enumerate(filled):
            block.loading += len(layers)
            num_pages += len(layers)
            if len(layers) < num_layers:
                table[at, np.setdiff1d(np.arange(num_layers), layers)] = NO_PAGE
        flights = [Flight(block, ticket) for block, _ in filled]
        self.flights.begin(flights, table, ready_at_ns)
        return num_pages

    def on_loaded(self, pages: list[int], *, is_good: bool) -> list[Effect]:
        """Loads ended. After a bad one the block is lost: it is dropped once it is not in use."""
        if not pages:
            return []
        flights = self.flights.end(pages)
        for flight in flights:
            flight.block.loading -= 1
        if not is_good:
            self.num_failures += len(pages)
            for flight in flights:
                flight.block.lost = True
        return self._settle(flights)

    def on_called_back(self, pages: list[int]) -> list[Effect]:
        """Nothing comes into these pages."""
        flights = self.flights.end(pages)
        for page, flight in zip(pages, flights, strict=True):
            block = flight.block
            block.loading -= 1
            if block.refs:  # a turn came for it meanwhile, and relies on that page
                block.lost = True
            else:
                self.pool.remove_page(block, page)
        return self._settle(flights)

    def _settle(self, flights: list[Flight]) -> list[Effect]:
        """Blocks of which nothing is loading any more are idle, if they are not in use."""
        idle: dict[int, list[Block]] = {}
        last = {flight.block: flight.ticket for flight in flights if not flight.block.loading}
        for block, ticket in last.items():
            block.is_late = False
            if block.refs == 0:
                idle.setdefault(ticket, []).append(block)
        for ticket, blocks in idle.items():
            coming = self._expected.get(ticket)
            self.pool.rest(blocks, self.hints.expires_at_ns(coming.name) if coming else 0)
        effects: list[Effect] = []
        for ticket, num in Counter([flight.ticket for flight in flights]).items():
            effects += self.let_go(ticket, num)
        return effects

    def call_back(self, num_pages: int, now_ns: int, effects: list[Effect]) -> bool:
        """A turn that is here lacks so many pages: whether prefetches may give them, those into
        which nothing has come yet. No other is begun until that is known.

        Args:
            effects: what is to be done is added here.
        """
        if num_pages <= 0 or self.flights.num_prefetching < num_pages:
            return False
        pages = self.flights.call_back(num_pages, now_ns)
        if pages is None:
            return False
        self.is_paused = True
        if pages:
            effects.append(CallBack(pages))
        return True

    def expect(
        self,
        staged: Staged,
        name: HintName,
        owner: OwnerKey,
        expected: Expected,
        now_ns: int,
        *,
        is_indivisible: bool = False,
    ) -> list[Effect]:
        """Prefetch an expected session's staged blocks, and spare what is here: of as many of the
        first as there is room for among its tenant's hints.

        Args:
            owner: of blocks that are not here yet.
            is_indivisible: all of them, or none.
        """
        effects = self._drop_prefetches(lambda prefetch: prefetch.name == name)
        room = self.hints.room(name, expected.tenant, now_ns) // self.pool.num_layers
        if not room or (is_indivisible and room < staged.num_blocks):
            outcome = prefetched(expected, staged.num_blocks, 0, name[1])
            return [*effects, ReleaseTicket(staged.ticket), *outcome]
        num_staged = staged.num_blocks
        if room < num_staged:
            effects.append(TrimTicket(staged.ticket, room))
        staged = staged.head(room)
        expires_at_ns, priority = expected.expires_at_ns, expected.priority
        num_pages = staged.num_blocks * self.pool.num_layers
        self.hints.add(name, Hint(expected.tenant, staged.keys, num_pages, expires_at_ns))
        self._expected[staged.ticket] = _Coming(name, staged.keys, expected, num_staged)
        self._spare(name, staged.keys)
        if not self._prefetches or expires_at_ns < self._next_expiry_ns:
            self._next_expiry_ns = expires_at_ns
        number = next(self._order)
        order = load_order(priority, 0, number)
        prefetch = _Prefetch(order, priority, number, 0, 0, staged, name, owner, expires_at_ns)
        heapq.heappush(self._prefetches, prefetch)
        self.hold(staged.ticket)
        return effects

    def on_arrived(self, owner: OwnerKey) -> None:
        """A session's turn is here: what it needs will be its own, and the rest is anybody's."""
        for hint in self.hints.take_all(owner):
            self.pool.rest([self.pool.blocks[key] for key in hint.keys if key in self.pool.blocks])

    def forget(self, owner: OwnerKey) -> list[Effect]:
        """A session is expected no more: what is here for it is anybody's, and what is not yet is
        not prefetched."""
        self.on_arrived(owner)
        return self._drop_prefetches(lambda each: owner in (each.name[0], each.owner))

    def pump(self, now_ns: int) -> list[Effect]:
        """Start the prefetch loads for which there is spare room."""
        self.pool.on_time(now_ns)
        effects = self._expire(now_ns)
        if self.is_paused:
            return effects
        loads = PageGathering()
        while self._prefetches and self.flights.num_prefetching < PREFETCH_LOADS_MAX:
            prefetch = self._prefetches[0]
            if not self._load_run(prefetch, loads, now_ns):
                break  # running turns come first; the prefetch waits for room or its expiry
            if prefetch.at == prefetch.staged.num_blocks:
                effects += self._end_layer(prefetch)
        return effects + loads.effects()

    def _load_run(self, prefetch: _Prefetch, loads: PageGathering, now_ns: int) -> bool:
        """Begin to load the next pages of a prefetch in its layer; False if there is no room."""
        pool, layer, staged, first = self.pool, prefetch.layer, prefetch.staged, prefetch.at
        run = self._next_run(prefetch, now_ns)
        rows = [NO_ROW if block is None else block.row for block in run]
        is_here: list[bool] = (pool.table[rows, layer] != NO_PAGE).tolist()
        lacking = [
            index
            for index, (block, here) in enumerate(zip(run, is_here, strict=True), first)
            if block is None or not (here or block.lost)
        ]
        pages = pool.take_idle(now_ns, len(lacking), layer)
        has_room = len(pages) == len(lacking)
        prefetch.at = first + len(run) if has_room else lacking[len(pages)]
        at = lacking[: len(pages)]
        keys = [staged.keys[index] for index in at]  # making room may have taken a last page
        blocks = [pool.blocks.get(key) or pool.enter(key, prefetch.owner) for key in keys]
        pool.add_pages(blocks, layer, pages)
        for block in blocks:
            block.loading += 1
        if pages:
            flights = [Flight(block, staged.ticket) for block in blocks]
            self.flights.begin_prefetch(flights, layer, pages, staged.ready_at_ns(layer))
            self.hold(staged.ticket, len(pages))
            loads.add(prefetch.priority, layer, staged, at, pages)
        return has_room

    def _next_run(self, prefetch: _Prefetch, now_ns: int) -> list[Block | None]:
        """The next blocks of a prefetch, None for what is not there. No page of them that counts is
        taken to make room for the others; a block of which that may be is alone."""
        at, pool = prefetch.at, self.pool
        num_most = PREFETCH_LOADS_MAX - self.flights.num_prefetching
        keys = prefetch.staged.keys[at : at + num_most]
        run = list(map(pool.blocks.get, keys))
        return run[: max(pool.num_spared(run, now_ns), 1)]

    def _end_layer(self, prefetch: _Prefetch) -> list[Effect]:
        """The first prefetch goes on with the layer above, behind what others lack below that."""
        if prefetch.layer + 1 == self.pool.num_layers:
            heapq.heappop(self._prefetches)
            return self.let_go(prefetch.staged.ticket)
        prefetch.layer, prefetch.at = prefetch.layer + 1, 0
        prefetch.order = load_order(prefetch.priority, prefetch.layer, prefetch.number)
        heapq.heapreplace(self._prefetches, prefetch)
        return []

    def _spare(self, name: HintName, keys: list[BlockKey]) -> int:
        """Make one group of what is here of an expected session: how many blocks that is."""
        here = [self.pool.blocks[key] for key in keys if key in self.pool.blocks]
        self.pool.rest(here, self.hints.expires_at_ns(name))
        return len(here)

    def _end_expected(self, coming: _Coming) -> list[Effect]:
        """Nothing more of it comes."""
        num_here = self._spare(coming.name, coming.keys)
        return prefetched(coming.expected, coming.num_staged, num_here, coming.name[1])

    def _expire(self, now_ns: int) -> list[Effect]:
        """Let go of the prefetches for sessions that did not come in time."""
        if not self._prefetches or now_ns < self._next_expiry_ns:
            return []
        return self._drop_prefetches(lambda prefetch: prefetch.expires_at_ns <= now_ns)

    def _drop_prefetches(self, is_over: Callable[[_Prefetch], bool]) -> list[Effect]:
        effects: list[Effect] = []
        kept: list[_Prefetch] = []
        for prefetch in self._prefetches:
            if is_over(prefetch):
                effects += self.let_go(prefetch.staged.ticket)
            else:
                kept.append(prefetch)
        self._prefetches = kept
        heapq.heapify(self._prefetches)
        self._next_expiry_ns = min(
            (prefetch.expires_at_ns for prefetch in self._prefetches), default=0
        )
        return effects
