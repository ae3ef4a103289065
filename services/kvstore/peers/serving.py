"""The server's side of one connection: requests in, the most urgent one's pages out."""

import heapq
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from services.kvstore.peers.pace import Pace
from services.kvstore.peers.peer_limits import ServerLimits
from services.kvstore.peers.precedence import Precedence
from services.kvstore.peers.sources import Pages, PageSource
from services.kvstore.peers.stream import Broken, Stream, Views, after, as_views, send_all
from services.kvstore.peers.wire import (
    KEPT,
    REQUESTS_MAX,
    SLOWEST_BYTES_PER_S,
    VOID,
    Answer,
    Request,
    Status,
    WireError,
    pack_answer,
    read_request,
    value_bytes,
)
from services.kvstore.tiers.disk import DiskFailed
from shared.wire.urgency import Order, load_order

RUN_BYTES = 1024 * 1024  # sent by one call: what follows finds no code of ours in the caches
SNAPSHOT_BYTES = 4 * 1024 * 1024  # freed slots are not used again while a snapshot lasts
SNAPSHOT_S = 0.25


class ServerCounts:
    """What a server has done, over all connections.

    Attributes:
        num_accepted: connections, of strangers too.
        num_refused: connections from outside of the deployment, or that broke the rules.
        num_turned_away: for which there was no room.
        num_cut_off: that took nothing any more.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.num_accepted = 0
        self.num_refused = 0
        self.num_turned_away = 0
        self.num_cut_off = 0
        self.num_pages_sent = 0
        self.num_pages_void = 0
        self.num_pages_missing = 0
        self.num_pages_late = 0
        self.num_pages_unread = 0
        self.bytes_sent = 0

    def add(self, name: str, count: int = 1) -> None:
        """So many more of these."""
        with self._lock:
            setattr(self, name, getattr(self, name) + count)


_COUNTS = {
    Status.PAGE: "num_pages_sent",
    Status.JUDGED: "num_pages_sent",
    Status.MISSING: "num_pages_missing",
    Status.LATE: "num_pages_late",
    Status.UNREAD: "num_pages_unread",
}


@dataclass(slots=True)
class _Open:
    """A request that is not answered yet, from page `first` on."""

    request: Request
    until_s: float
    first: int = 0

    @property
    def num_left(self) -> int:
        return len(self.request.keys) - self.first


@dataclass(frozen=True, slots=True)
class _Run:
    """An answer and what follows it."""

    answer: Answer
    views: Views
    num_bytes: int = 0
    is_valid: Callable[[], bool] | None = None


class Serving:
    """Answers one peer that has proven itself, until the connection ends.

    Args:
        precedence: of the host's connections.
        stopping: set when the server ends.
        limits: a peer that asks for nothing for `idle_s`, or takes nothing for `stall_s`, is
            disconnected.
    """

    def __init__(
        self,
        stream: Stream,
        source: PageSource,
        pace: Pace,
        precedence: Precedence,
        counts: ServerCounts,
        stopping: threading.Event,
        limits: ServerLimits,
    ) -> None:
        self._stream = stream
        self._source = source
        self._pace = pace
        self._precedence = precedence
        self._kind: int | None = None  # of the most urgent request
        self._counts = counts
        self._stopping = stopping
        self._limits = limits
        self._num_bytes_max = SNAPSHOT_BYTES
        self._input = bytearray()
        self._open: list[tuple[Order, int, _Open]] = []  # a heap
        self._numbers: set[int] = set()
        self._num_taken = 0

    def run(self) -> None:
        """Raises:
        Broken: the connection has ended, or was left.
        WireError: the peer breaks the rules.
        """
        try:
            while not self._stopping.is_set():
                self._serve()
        finally:
            self._precedence.change(self._kind, None)

    def _serve(self) -> None:
        if not self._open and not self._stream.wait(self._limits.idle_s):
            raise Broken("idle")
        self._take()
        if self._kind is not None and not self._precedence.is_first(self._kind):
            self._precedence.wait(self._kind)
            self._take()
        if self._open:
            num_bytes = self._answer()
            if (pause_s := self._pace.spend(num_bytes)) > 0:
                self._stopping.wait(pause_s)

    def _take(self) -> None:
        """Every request that is there."""
        while data := self._stream.receive_some():
            self._input += data
            while (found := read_request(self._input)) is not None:
                request, num_bytes = found
                del self._input[:num_bytes]
                self._add(request)
            self._note_kind()

    def _note_kind(self) -> None:
        kind = self._open[0][0][0] if self._open else None
        self._precedence.change(self._kind, kind)
        self._kind = kind

    def _add(self, request: Request) -> None:
        if request.number in self._numbers or len(self._open) >= REQUESTS_MAX:
            raise WireError("more requests than were granted")
        self._num_taken += 1
        order = load_order(request.priority, request.layer, self._num_taken)
        until_s = time.monotonic() + request.left_ms / 1e3
        heapq.heappush(self._open, (order, self._num_taken, _Open(request, until_s)))
        self._numbers.add(request.number)

    def _answer(self) -> int:
        """From one snapshot; how many bytes were sent. What a slow peer has not taken soon is
        copied, a run at the most, so that the snapshot can end.
        """
        num_bytes = 0
        self._num_bytes_max = self._pace.most_at_once(SNAPSHOT_BYTES)
        until_s = time.monotonic() + SNAPSHOT_S
        left: Views = []
        try:
            with self._source.open() as pages:
                while not left and self._open and num_bytes < self._num_bytes_max:
                    run = self._next_run(pages)
                    left = self._begin(run)
                    num_bytes += run.num_bytes
                    if time.monotonic() > until_s:
                        break
                    if not left:
                        self._take()
                    if self._kind is not None and not self._precedence.is_first(self._kind):
                        break
        except DiskFailed:
            assert not left, "nothing is read after a run was begun"
            self._stream_all(self._begin(self._unread()))
        self._stream_all(left)
        return num_bytes

    def _next_run(self, pages: Pages) -> _Run:
        """The next pages of the most urgent request, as far as they go by one answer."""
        each = self._open[0][2]
        request = each.request
        if time.monotonic() > each.until_s:
            return self._run(Status.LATE, each.num_left)
        status, count, num_bytes, views = Status.MISSING, 0, 0, []
        for key in request.keys[each.first :]:
            found = pages.find(key, request.layer, request.page_bytes)
            kind = (
                Status.MISSING if found is None
                else Status.PAGE if found.is_valid is None
                else Status.JUDGED
            )  # fmt: skip
            if count and kind is not status:
                break
            status = kind
            count += 1
            if found is None:
                continue
            views += as_views(found.parts)
            num_bytes += value_bytes(request.page_bytes)
            if found.is_valid is not None:
                return self._run(status, 1, views, num_bytes, found.is_valid)
            if num_bytes >= min(RUN_BYTES, self._num_bytes_max):
                break
        return self._run(status, count, views, num_bytes)

    def _unread(self) -> _Run:
        """For what is left of the most urgent request."""
        return self._run(Status.UNREAD, self._open[0][2].num_left)

    def _run(
        self,
        status: Status,
        count: int,
        views: Views | None = None,
        num_bytes: int = 0,
        is_valid: Callable[[], bool] | None = None,
    ) -> _Run:
        """An answer for the next `count` pages of the most urgent request, which it counts as
        answered.
        """
        each = self._open[0][2]
        answer = Answer(each.request.number, each.first, count, status)
        each.first += count
        if not each.num_left:
            heapq.heappop(self._open)
            self._numbers.remove(each.request.number)
            self._note_kind()
        self._counts.add(_COUNTS[status], count)
        return _Run(answer, views or [], num_bytes, is_valid)

    def _begin(self, run: _Run) -> Views:
        """Send a run; a copy of what has not gone within a tick."""
        views = [memoryview(pack_answer(run.answer)), *run.views]
        left = after(views, self._stream.send(views))
        left = as_views([bytes(view) for view in left])  # each alone: TLS must see the same again
        self._counts.add("bytes_sent", run.num_bytes)
        if run.is_valid is None:
            return left
        is_valid = run.is_valid()
        self._counts.add("num_pages_void", not is_valid)
        return [*left, memoryview(KEPT if is_valid else VOID)]

    def _stream_all(self, left: Views) -> None:
        num_bytes = sum(map(len, left))
        until_s = time.monotonic() + self._limits.stall_s + num_bytes / SLOWEST_BYTES_PER_S
        try:
            send_all(self._stream, left, until_s)
        except Broken:
            if time.monotonic() > until_s:
                self._counts.add("num_cut_off")
                self._stream.drop()
            raise
