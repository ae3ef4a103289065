"""What a client of one peer is to fetch and has: bookkeeping that its connections share.

A page has one outcome, and its word is published at that moment. From then on nothing of it is
written: the core may have given it to another purpose. So a page that a connection has asked for
is that connection's (`requests.py`): it alone gives it an outcome, or gives it back.
"""

import heapq
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from services.kvstore.core import Concurrency, LoadOutcome, PageReads
from services.kvstore.peers.wire import value_bytes
from services.kvstore.tiers.values import ValueHeader, read_name, unpack_header
from shared.arena import ArenaView, PageState
from shared.wire.messages import ADVISORY_PRIORITY
from shared.wire.urgency import DEMAND_PRIORITY, Order, load_order

_PRIORITIES = (DEMAND_PRIORITY, ADVISORY_PRIORITY + 1, ADVISORY_PRIORITY)  # by kind of urgency


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
        is_ended: its time is over: what has no outcome fails.
    """

    reads: list[PageReads]
    until_s: float
    number: int
    outcomes: list[list[LoadOutcome | None]] = field(init=False)
    headers: list[list[bytes | None]] = field(init=False)
    num_left: int = field(init=False)
    is_ended: bool = False

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

    @property
    def num_bytes(self) -> int:
        """That came."""
        return sum(
            outcomes.count(LoadOutcome.READY) * reads.page_bytes
            for reads, outcomes in zip(self.reads, self.outcomes, strict=True)
        )


@dataclass(slots=True, eq=False)
class Part:
    """Pages of one of an order's reads, by their place in it. Asked for in one request, its `next`
    is the one that the next answer is about.

    Attributes:
        is_over: its pages have failed: what still comes of it is thrown away.
    """

    fetch: Fetch
    reads: PageReads
    at: int  # of the read in the order
    places: Sequence[int]
    next: int = 0
    is_over: bool = False

    @property
    def num_left(self) -> int:
        return len(self.places) - self.next

    @property
    def priority(self) -> int:
        """One of its kind of urgency."""
        return _PRIORITIES[self.reads.kind]

    @property
    def each_bytes(self) -> int:
        """Of a page on the wire."""
        return value_bytes(self.reads.page_bytes)

    @property
    def key(self) -> bytes:
        """Of the next page's block."""
        return self.reads.keys[self.places[self.next]]


class Fetches:
    """Orders that are not finished. Everything is called with `changed` held, but for reading an
    attribute.

    Args:
        arenas: by page size in bytes.
        report: called with an order's results when all its pages have one; calls nothing here.
        connections: how many there are to be.

    The time that an order took is that of moving bytes: what passes without a connection, or until
    dead ones are known to be dead, is no speed of the link.

    Attributes:
        changed: notified when more may be asked for.
        open_bytes: of pages without an outcome, on the wire.
        first_until_s: the earliest end of an order that has not ended.
        num_ended: orders whose time was over, ever.
    """

    def __init__(
        self, arenas: Mapping[int, ArenaView], report: PeerReport, connections: Concurrency
    ) -> None:
        self.changed = threading.Condition()
        self.arenas = arenas
        self.connections = connections
        self.open_bytes = 0
        self.first_until_s = float("inf")
        self.num_ended = 0
        self._report = report
        self._fetches: set[Fetch] = set()
        self._wanted: list[tuple[Order, int, Part]] = []  # a heap
        self._num_wanted = 0
        self._num_connected = 0
        self._busy_since_s = 0.0
        self._moved_at_s = 0.0  # a page came last

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
                part = Part(fetch, reads, at, range(len(reads.pages)))
                self.open_bytes += part.num_left * part.each_bytes
                self.want(part)
        if not fetch.num_left:
            self._finish(fetch)

    @property
    def next_wanted(self) -> Part | None:
        """The most urgent pages that no connection has asked for."""
        while self._wanted and self._wanted[0][2].is_over:
            heapq.heappop(self._wanted)
        return self._wanted[0][2] if self._wanted else None

    def take(self, count: int) -> Part:
        """So many of the most urgent pages, at most as many as that part has; the caller's now."""
        part = self._wanted[0][2]
        places, rest = part.places[:count], part.places[count:]
        if rest:
            part.places = rest
        else:
            heapq.heappop(self._wanted)
        return Part(part.fetch, part.reads, part.at, places)

    def want(self, part: Part) -> None:
        """What is left of it is to be asked for; it fails if its order's time is over."""
        if part.fetch.is_ended:
            self.fail(part)
            return
        self._num_wanted += 1
        part = Part(part.fetch, part.reads, part.at, part.places[part.next :])
        order = load_order(part.priority, part.reads.layer, part.fetch.number)
        heapq.heappush(self._wanted, (order, self._num_wanted, part))
        self.changed.notify_all()

    def publish(
        self, part: Part, place: int, outcome: LoadOutcome, raw_header: bytes | None = None
    ) -> None:
        """A page of the part has this outcome."""
        fetch = part.fetch
        state = PageState.READY if outcome is LoadOutcome.READY else PageState.BAD
        arena = self.arenas[part.reads.page_bytes]
        arena.set_word(part.reads.pages[place], part.reads.generations[place], state)
        fetch.outcomes[part.at][place] = outcome
        fetch.headers[part.at][place] = raw_header
        fetch.num_left -= 1
        self.open_bytes -= part.each_bytes
        if not fetch.num_left:
            self._finish(fetch)

    def fail(self, part: Part) -> None:
        """What is left of it."""
        part.is_over = True
        for place in part.places[part.next :]:
            self.publish(part, place, LoadOutcome.FAILED)

    def on_moved(self) -> None:
        """A page came."""
        self._moved_at_s = time.perf_counter()

    def on_connected(self) -> None:
        """A connection more: bytes may move again."""
        if not self._num_connected:
            now_s = time.perf_counter()
            self._busy_since_s += now_s - self._moved_at_s
            self._moved_at_s = now_s
        self._num_connected += 1

    def on_disconnected(self) -> None:
        """A connection less."""
        self._num_connected -= 1

    def end_late(self, now_s: float) -> int:
        """Orders whose time is over fail, as far as their pages have not come: what was not asked
        for at once, the rest when their connections look; how many.
        """
        if now_s < self.first_until_s:
            return 0
        late = [each for each in self._fetches if each.until_s <= now_s and not each.is_ended]
        for fetch in late:
            fetch.is_ended = True
        left = [each.until_s for each in self._fetches if not each.is_ended]
        self.first_until_s = min(left, default=float("inf"))
        self.num_ended += len(late)
        wanted = [part for _, _, part in self._wanted if part.fetch.is_ended and not part.is_over]
        for part in sorted(wanted, key=lambda part: part.fetch.number):
            self.fail(part)
        return len(late)

    def _finish(self, fetch: Fetch) -> None:
        self._fetches.remove(fetch)
        left = [each.until_s for each in self._fetches if not each.is_ended]
        self.first_until_s = min(left, default=float("inf"))
        now_s = time.perf_counter()
        took_s = now_s - self._busy_since_s
        self._busy_since_s = self._moved_at_s = now_s
        if self._fetches:
            self.connections.on_done(fetch.num_bytes, int(took_s * 1e9))
            self.changed.notify_all()  # there may be more connections now
        self._report(fetch.results(), took_s)
