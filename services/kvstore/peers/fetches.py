"""What a client of one peer is to fetch, has asked for, and has: bookkeeping, without a connection.

A page has one outcome, and its word is published at that moment. From then on nothing of it is
written: the core may have given it to another purpose.
"""

import heapq
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from services.kvstore.core import LoadOutcome, PageReads
from services.kvstore.peers.wire import (
    KEYS_MAX,
    LEFT_MS_MAX,
    NUMBER_MAX,
    PRIORITY_MAX,
    REQUESTS_MAX,
    Request,
    value_bytes,
)
from services.kvstore.tiers.values import ValueHeader, read_name, unpack_header
from shared.arena import ArenaView, PageState
from shared.wire.urgency import Order, load_order

REQUEST_SHARE = 4  # a request takes at most this part of the window, so that several are on the way


@dataclass(frozen=True, slots=True)
class PeerRead:
    """How pages of one layer came from a peer; the lists hold one entry a page.

    Attributes:
        raw_headers: of those that are READY, as `headers` gives them; looked at already.
    """

    reads: PageReads
    outcomes: list[LoadOutcome]
    raw_headers: list[bytes | None]

    @property
    def headers(self) -> list[ValueHeader | None]:
        """What the peer's store says of those that are READY: the block's parent, tokens, owner and
        number of layers, and the page's checksum. Most of that is the same in every layer.
        """
        return [None if raw is None else unpack_header(raw) for raw in self.raw_headers]

    @property
    def checksums(self) -> list[int | None]:
        """Of those that are READY, which takes a fraction of `headers`' time."""
        return [None if raw is None else read_name(raw).checksum for raw in self.raw_headers]


PeerReport: TypeAlias = Callable[[list[PeerRead], float], None]


@dataclass(slots=True, eq=False)
class Fetch:
    """An order: pages of some layers that are reported together.

    Attributes:
        until_s: what has not come by then has failed, `time.monotonic`.
        outcomes: one a page, None while it has none.
    """

    reads: list[PageReads]
    priority: int
    until_s: float
    number: int
    outcomes: list[list[LoadOutcome | None]] = field(init=False)
    headers: list[list[bytes | None]] = field(init=False)
    num_left: int = field(init=False)

    def __post_init__(self) -> None:
        self.outcomes = [[None] * len(reads.pages) for reads in self.reads]
        self.headers = [[None] * len(reads.pages) for reads in self.reads]
        self.num_left = sum(len(reads.pages) for reads in self.reads)

    def results(self) -> list[PeerRead]:
        """When nothing is left."""
        return [
            PeerRead(reads, [outcome for outcome in outcomes if outcome is not None], headers)
            for reads, outcomes, headers in zip(
                self.reads, self.outcomes, self.headers, strict=True
            )
        ]


@dataclass(slots=True, eq=False)
class Part:
    """Pages of one of an order's reads, by their place in it. Asked for in one request, its `next`
    is the one that the next answer is about.
    """

    fetch: Fetch
    reads: PageReads
    at: int  # of the read in the order
    places: Sequence[int]
    next: int = 0

    @property
    def num_left(self) -> int:
        return len(self.places) - self.next

    @property
    def key(self) -> bytes:
        """Of the next page's block."""
        return self.reads.keys[self.places[self.next]]

    @property
    def is_over(self) -> bool:
        """Whether the order has been reported: what still comes of it is thrown away."""
        return not self.fetch.num_left


class Fetches:
    """Orders that are not finished; one thread's.

    Args:
        arenas: by page size in bytes.
        report: called with an order's results when all its pages have one.
        window_bytes: asked for and not here, at most, unless it is one page.

    The time that an order took is that of moving bytes: what passes without a connection, or until
    a dead one is known to be dead, is no speed of the link.

    Attributes:
        asked: what was asked for on this connection, by the request's number.
        first_until_s: the earliest end of an order.
    """

    def __init__(
        self, arenas: Mapping[int, ArenaView], report: PeerReport, window_bytes: int
    ) -> None:
        self._arenas = arenas
        self._report = report
        self._window_bytes = window_bytes
        self._fetches: set[Fetch] = set()
        self._wanted: list[tuple[Order, int, Part]] = []  # a heap
        self._num_wanted = 0
        self._number = 0
        self._asked_bytes = 0
        self._busy_since_s = 0.0
        self._moved_at_s = 0.0  # a page came last
        self.asked: dict[int, Part] = {}
        self.first_until_s = float("inf")

    def __len__(self) -> int:
        return len(self._fetches)

    def add(self, fetch: Fetch) -> None:
        """Begin an order. One without pages is finished at once."""
        if not self._fetches:
            self._busy_since_s = self._moved_at_s = time.perf_counter()
        self._fetches.add(fetch)
        self.first_until_s = min(self.first_until_s, fetch.until_s)
        for at, reads in enumerate(fetch.reads):
            if reads.pages:
                self._want(Part(fetch, reads, at, range(len(reads.pages))))
        if not fetch.num_left:
            self._finish(fetch)

    def next_request(self, now_s: float) -> Request | None:
        """The most urgent pages that were not requested, if the window has room for them; they
        count as requested.
        """
        while self._wanted and self._wanted[0][2].is_over:
            heapq.heappop(self._wanted)
        if not self._wanted or len(self.asked) >= REQUESTS_MAX:
            return None
        part = self._wanted[0][2]
        each_bytes = value_bytes(part.reads.page_bytes)
        count = min(
            max(self._window_bytes // REQUEST_SHARE // each_bytes, 1), KEYS_MAX, len(part.places)
        )
        if self._asked_bytes and self._asked_bytes + count * each_bytes > self._window_bytes:
            return None
        places, rest = part.places[:count], part.places[count:]
        if rest:
            part.places = rest
        else:
            heapq.heappop(self._wanted)
        self._number = self._number % NUMBER_MAX + 1
        self.asked[self._number] = Part(part.fetch, part.reads, part.at, places)
        self._asked_bytes += count * each_bytes
        left_ms = int((part.fetch.until_s - now_s) * 1e3)
        return Request(
            self._number,
            part.reads.layer,
            part.reads.page_bytes,
            max(-PRIORITY_MAX, min(part.fetch.priority, PRIORITY_MAX)),
            max(0, min(left_ms, LEFT_MS_MAX)),
            [part.reads.keys[place] for place in places],
        )

    def memories(self, part: Part, count: int) -> list[memoryview]:
        """Of the part's next pages."""
        pages = self._arenas[part.reads.page_bytes].pages
        places = part.places[part.next : part.next + count]
        return [memoryview(pages[part.reads.pages[place]]) for place in places]

    def settle(self, number: int, outcome: LoadOutcome, raw_header: bytes | None = None) -> None:
        """The next page of request `number` has this outcome."""
        self._moved_at_s = time.perf_counter()
        part = self.asked[number]
        place = part.places[part.next]
        part.next += 1
        self._asked_bytes -= value_bytes(part.reads.page_bytes)
        if not part.num_left:
            del self.asked[number]
        if not part.is_over:
            self._publish(part.fetch, part.at, place, outcome, raw_header)
            if part.is_over:
                self._finish(part.fetch)

    def ask_again(self) -> int:
        """The connection is gone: what was asked for and has not come is to be asked for again; how
        many pages that are.
        """
        num_pages = 0
        for part in self.asked.values():
            if not part.is_over:
                num_pages += part.num_left
                self._want(Part(part.fetch, part.reads, part.at, part.places[part.next :]))
        self.asked.clear()
        self._asked_bytes = 0
        return num_pages

    def on_connected(self) -> None:
        """From now on bytes may move again."""
        now_s = time.perf_counter()
        self._busy_since_s += now_s - self._moved_at_s
        self._moved_at_s = now_s

    def fail_late(self, now_s: float) -> int:
        """Orders whose time is over have failed, as far as their pages have not come; how many."""
        late = [fetch for fetch in self._fetches if fetch.until_s <= now_s]
        for fetch in sorted(late, key=lambda fetch: fetch.number):
            self._fail(fetch)
        return len(late)

    def fail_all(self) -> None:
        """Every order has failed, as far as its pages have not come."""
        for fetch in sorted(self._fetches, key=lambda fetch: fetch.number):
            self._fail(fetch)

    def _want(self, part: Part) -> None:
        self._num_wanted += 1
        order = load_order(part.fetch.priority, part.reads.layer, part.fetch.number)
        heapq.heappush(self._wanted, (order, self._num_wanted, part))

    def _fail(self, fetch: Fetch) -> None:
        for at, outcomes in enumerate(fetch.outcomes):
            for place, outcome in enumerate(outcomes):
                if outcome is None:
                    self._publish(fetch, at, place, LoadOutcome.FAILED, None)
        self._finish(fetch)

    def _publish(
        self, fetch: Fetch, at: int, place: int, outcome: LoadOutcome, raw_header: bytes | None
    ) -> None:
        reads = fetch.reads[at]
        state = PageState.READY if outcome is LoadOutcome.READY else PageState.BAD
        arena = self._arenas[reads.page_bytes]
        arena.set_word(reads.pages[place], reads.generations[place], state)
        fetch.outcomes[at][place] = outcome
        fetch.headers[at][place] = raw_header
        fetch.num_left -= 1

    def _finish(self, fetch: Fetch) -> None:
        self._fetches.remove(fetch)
        self.first_until_s = min((each.until_s for each in self._fetches), default=float("inf"))
        now_s = time.perf_counter()
        took_s = now_s - self._busy_since_s
        self._busy_since_s = self._moved_at_s = now_s
        self._report(fetch.results(), took_s)
