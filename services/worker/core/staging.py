"""History on its way up: stages asked for, loads in flight, prefetches waiting for room."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from services.worker.core.effects import Effect, LoadPages, PageLoad, ReleaseTicket
from services.worker.core.pages import NO_PAGE, CachedBlock, PagePool
from services.worker.core.staged import Staged
from shared.blocks import BlockKey
from shared.owners import OwnerKey

PREFETCH_LOADS_MAX = 128  # pages in flight for sessions that have not come yet


@dataclass(slots=True)
class _Flight:
    block: CachedBlock
    layer: int
    ticket: int
    is_prefetch: bool


@dataclass(frozen=True, slots=True)
class _Expectation:
    keys: list[BlockKey]
    expires_at_ns: int


@dataclass(order=True, slots=True)
class _Wish:
    """A page of an expected session: lowest layer of all sessions first, then priority."""

    order: tuple[int, int, int]
    block_index: int = field(compare=False)
    staged: Staged = field(compare=False)
    owner: OwnerKey = field(compare=False)
    expires_at_ns: int = field(compare=False)


@dataclass(slots=True)
class Stager:
    """Loads from the arena into the pool, and the tickets that pin their sources."""

    pool: PagePool
    _flights: dict[int, _Flight] = field(default_factory=dict)
    _tickets: dict[int, int] = field(default_factory=dict)  # ticket -> reasons to keep it
    _expected: dict[int, _Expectation] = field(default_factory=dict)  # by ticket
    _wishes: list[_Wish] = field(default_factory=list)
    _num_prefetching: int = 0
    _order: "count[int]" = field(default_factory=count)
    _next_expiry_ns: int = 0  # no wish expires before

    @property
    def num_loading(self) -> int:
        return len(self._flights)

    @property
    def next_expiry_ns(self) -> int | None:
        """When to look whether a wish has expired."""
        return self._next_expiry_ns if self._wishes else None

    def is_loading(self, pages: list[int]) -> bool:
        """Whether bytes are on their way into any of these pool pages."""
        return bool(self._flights) and any(page in self._flights for page in pages)

    def loading_pages(self, blocks: list[CachedBlock]) -> list[list[int]]:
        """Pages of `blocks` that bytes are on their way into, for each layer."""
        loading = [block for block in blocks if block.loading]
        return [
            [block.pages[layer] for block in loading if block.pages[layer] in self._flights]
            for layer in range(self.pool.num_layers)
        ]

    def hold(self, ticket: int) -> None:
        """Keep a ticket until as many `let_go`."""
        self._tickets[ticket] = self._tickets.get(ticket, 0) + 1

    def let_go(self, ticket: int) -> list[Effect]:
        """One reason less to keep the ticket."""
        if ticket not in self._tickets:
            return []
        self._tickets[ticket] -= 1
        if self._tickets[ticket]:
            return []
        del self._tickets[ticket]
        if (expectation := self._expected.pop(ticket, None)) is not None:
            self._spare(expectation)
        return [ReleaseTicket(ticket)]

    def load(
        self, block: CachedBlock, layer: int, page: int, staged: Staged, index: int
    ) -> PageLoad:
        """Enter the load of one page of the staged block `index` into pool page `page`."""
        return self._start(block, layer, page, staged, index, is_prefetch=False)

    def on_loaded(self, page: int, *, is_good: bool) -> list[Effect]:
        """A load ended. After a bad one the block is lost: it drops out once nobody runs on it."""
        flight = self._flights.pop(page)
        block = flight.block
        block.loading -= 1
        if flight.is_prefetch:
            self._num_prefetching -= 1
        if not is_good:
            block.lost = True
        if block.loading == 0 and block.refs == 0:
            expectation = self._expected.get(flight.ticket)
            self.pool.rest([block], expectation.expires_at_ns if expectation else 0)
        return self.let_go(flight.ticket)

    def expect(self, staged: Staged, owner: OwnerKey, priority: int, expires_at_ns: int) -> None:
        """Wish for every page of an expected session's staged blocks, and spare what is here."""
        expectation = _Expectation(staged.keys, expires_at_ns)
        self._expected[staged.ticket] = expectation
        self._spare(expectation)
        if not self._wishes or expires_at_ns < self._next_expiry_ns:
            self._next_expiry_ns = expires_at_ns
        for layer in range(self.pool.num_layers):
            for index in range(staged.num_blocks):
                order = (layer, -priority, next(self._order))
                heapq.heappush(self._wishes, _Wish(order, index, staged, owner, expires_at_ns))
                self.hold(staged.ticket)

    def forget(self, owner: OwnerKey) -> list[Effect]:
        """A session is expected no more."""
        return self._let_wishes_go(lambda wish: wish.owner == owner)

    def pump(self, now_ns: int) -> list[Effect]:
        """Start the prefetch loads for which there is room that nobody needs."""
        effects = self._expire(now_ns)
        loads: list[PageLoad] = []
        while self._wishes and self._num_prefetching < PREFETCH_LOADS_MAX:
            wish = self._wishes[0]
            layer = wish.order[0]
            key = wish.staged.keys[wish.block_index]
            block = self.pool.blocks.get(key)
            is_moot = block is not None and (block.lost or block.pages[layer] != NO_PAGE)
            if not is_moot:
                page = self.pool.allocate_for_prefetch(now_ns)
                if page is None:
                    break  # running turns come first; the wish waits for room or its expiry
                block = self.pool.blocks.get(key)  # making room may have taken its last page
                if block is None:
                    block = self._new_block(key, wish.owner)
                self.pool.withdraw(block)
                loads.append(
                    self._start(block, layer, page, wish.staged, wish.block_index, is_prefetch=True)
                )
            heapq.heappop(self._wishes)
            effects += self.let_go(wish.staged.ticket)
        if loads:
            effects.append(LoadPages(loads, is_prefetch=True))
        return effects

    def _spare(self, expectation: _Expectation) -> None:
        """Make one group of what is here of an expected session."""
        keys = expectation.keys
        here = [self.pool.blocks[key] for key in keys if key in self.pool.blocks]
        self.pool.rest(here, expectation.expires_at_ns)

    def _expire(self, now_ns: int) -> list[Effect]:
        """Let go of the wishes for sessions that did not come in time."""
        if not self._wishes or now_ns < self._next_expiry_ns:
            return []
        return self._let_wishes_go(lambda wish: wish.expires_at_ns <= now_ns)

    def _let_wishes_go(self, is_over: Callable[[_Wish], bool]) -> list[Effect]:
        effects: list[Effect] = []
        kept: list[_Wish] = []
        for wish in self._wishes:
            if is_over(wish):
                effects += self.let_go(wish.staged.ticket)
            else:
                kept.append(wish)
        self._wishes = kept
        heapq.heapify(self._wishes)
        self._next_expiry_ns = min((wish.expires_at_ns for wish in self._wishes), default=0)
        return effects

    def _new_block(self, key: BlockKey, owner: OwnerKey) -> CachedBlock:
        block = CachedBlock(key, [NO_PAGE] * self.pool.num_layers, backed=True, owner=owner)
        self.pool.add(block)
        return block

    def _start(
        self,
        block: CachedBlock,
        layer: int,
        page: int,
        staged: Staged,
        index: int,
        *,
        is_prefetch: bool,
    ) -> PageLoad:
        self.pool.add_page(block, layer, page)
        block.loading += 1
        self._flights[page] = _Flight(block, layer, staged.ticket, is_prefetch)
        self._num_prefetching += is_prefetch
        self.hold(staged.ticket)
        return PageLoad(
            layer,
            staged.pages[layer][index],
            staged.generations[layer][index],
            page,
            staged.epoch,
        )
