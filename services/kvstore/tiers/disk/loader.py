"""Brings pages from disk into the arena, off the event loop.

Threads share what is to be read, in the order of `shared.wire.urgency` over all batches. What the
system has in memory is copied at once; the rest it begins to read, so many pages at a time as give
the disk's rate (`Concurrency`), and each is waited for in turn: what is begun comes before what
becomes more urgent meanwhile.

Results are reported in batches. A batch that finds no room is reported as failed at once: the event
loop never waits for a disk. Blocks whose loads fail are computed again.
"""

import heapq
import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from services.kvstore.core import Concurrency, LoadOutcome, PageReads, ReadPages
from services.kvstore.tiers.disk.disk_writer import OnDamage
from services.kvstore.tiers.disk.errors import DiskDamaged, DiskFailed
from services.kvstore.tiers.disk.ports import BlockReader, BlockStore
from services.kvstore.tiers.executors import Executor
from shared.arena import ArenaView, PageState
from shared.runtime.clock import Clock

log = logging.getLogger(__name__)

LoadResults: TypeAlias = list[tuple[PageReads, list[LoadOutcome]]]

NUM_THREADS = 2  # more would wait for each other: the device has many reads whatever they are
ORDERS_MAX = 16  # batches that wait; the core sends two
RUN_BYTES = 1024 * 1024  # from one snapshot of the index; less is not worth one
DEPTHS = (1, 2, 4, 8, 16, 32, 64)  # pages that the device reads at a time
DEPTH = 8  # to begin with
WAITED_SHARE = 0.9  # of a batch, at least, if it is to say how fast the device is


@dataclass(slots=True, eq=False)
class _Batch:
    """Attributes:
    results: outcomes are FAILED until they are known.
    num_left: pages without an outcome.
    num_bytes_waited: of those that were not in memory.
    begun_at_ns: when the first page was; None: none was.
    """

    results: LoadResults
    num_left: int
    num_bytes_waited: int = 0
    begun_at_ns: int | None = None


@dataclass(slots=True, eq=False)
class _Part:
    """Pages of one of a batch's reads; those from `next` on are not begun."""

    batch: _Batch
    reads: PageReads
    outcomes: list[LoadOutcome]
    next: int = 0


_Page: TypeAlias = tuple[_Part, int]


class Loader:
    """Copies pages from disk into the arena and publishes each page's word as soon as it is there.

    Args:
        arenas: by page size in bytes.
        executor: this loader's own.
        report: called with a batch's results and how long it took, ns, without the time for which
            the one before it was not done: in the executor, or by `submit`.
        damaged: called in the executor, before the results, when the database cannot be used.
        orders_max: batches that may wait.

    Attributes:
        depth: pages that the device is given at a time.
    """

    def __init__(
        self,
        disk: BlockStore,
        arenas: Mapping[int, ArenaView],
        executor: Executor,
        clock: Clock,
        report: Callable[[LoadResults, int], None],
        damaged: OnDamage,
        orders_max: int = ORDERS_MAX,
    ) -> None:
        self.depth = Concurrency(DEPTHS, DEPTH)
        self._disk = disk
        self._arenas = arenas
        self._executor = executor
        self._clock = clock
        self._report = report
        self._damaged = damaged
        self._orders_max = orders_max
        # Guarded by the executor's lock, as batches and parts are:
        self._wanted: list[tuple[tuple[int, int, int], _Part]] = []  # a heap: no page is begun
        self._begun: deque[_Page] = deque()  # the device reads them, and no thread waits for them
        self._num_begun = 0  # those, and those that a thread waits for
        self._num_running = 0  # threads, and those that are submitted
        self._num_parts = 0
        self._num_waiting = 0  # batches that are not begun
        self._num_open = 0  # batches
        self._ended_at_ns = clock.now_ns()  # the last batch that did

    def submit(self, order: ReadPages) -> None:
        """Load these pages. Without room for the order they fail."""
        batch = _Batch(
            [(reads, [LoadOutcome.FAILED] * len(reads.pages)) for reads in order.reads],
            sum(len(reads.pages) for reads in order.reads),
        )
        parts = [_Part(batch, *each) for each in batch.results if each[1]]
        with self._executor.lock:
            if has_room := self._num_waiting < self._orders_max and batch.num_left > 0:
                self._num_waiting += 1
                self._num_open += 1
                for part in parts:
                    self._num_parts += 1
                    order_of = part.reads.kind, part.reads.layer, self._num_parts
                    heapq.heappush(self._wanted, (order_of, part))
        if not has_room:
            for reads in order.reads:
                arena = self._arenas[reads.page_bytes]
                arena.set_words(reads.pages, reads.generations, PageState.BAD)
            self._report(batch.results, 0)
        self._start()

    def stop(self) -> None:
        """Finish what was submitted, then end."""
        self._executor.stop()

    def _start(self) -> None:
        """As many threads as there are, while there is something to do."""
        with self._executor.lock:
            num_new = self._executor.num_threads - self._num_running if self._is_next else 0
            self._num_running += num_new
        for _ in range(num_new):
            self._executor.submit(self._work)

    def _work(self) -> None:
        """In a thread: until nothing is left for it."""
        while self._goes_on():
            try:
                with self._disk.read() as reader:
                    self._copy_run(reader)
            except DiskFailed as error:
                self._give_up(error)

    @property
    def _is_next(self) -> bool:
        """Whether a thread has something to do."""
        return bool(self._begun or (self._wanted and self._num_begun < self.depth.level))

    def _goes_on(self) -> bool:
        with self._executor.lock:
            self._num_running -= not self._is_next
            return self._is_next

    def _copy_run(self, reader: BlockReader) -> None:
        num_bytes = 0
        while num_bytes < RUN_BYTES and (found := self._take()) is not None:
            (part, number), may_wait = found
            reads = part.reads
            out = self._arenas[reads.page_bytes].pages[reads.pages[number]]
            outcome = None
            try:
                outcome = reader.copy(reads.keys[number], reads.layer, out, may_wait=may_wait)
            finally:
                if outcome is None:
                    with self._executor.lock:
                        self._begun.append((part, number))
                        part.batch.num_bytes_waited += reads.page_bytes
            if outcome is not None:
                self._publish([(part, number)], outcome)
                num_bytes += reads.page_bytes

    def _take(self) -> tuple[_Page, bool] | None:
        """The next page to begin, if the device may have one more; or to wait for. None: neither.

        Returns:
            The page, and whether to wait for it.
        """
        with self._executor.lock:
            if not self._is_next:
                return None
            if not self._wanted or self._num_begun >= self.depth.level:
                return self._begun.popleft(), True
            part = self._wanted[0][1]
            page = part, part.next
            part.next += 1
            if part.next == len(part.outcomes):
                heapq.heappop(self._wanted)
            self._num_begun += 1
            self._begin(part.batch)
            return page, False

    def _begin(self, batch: _Batch) -> None:
        if batch.begun_at_ns is None:
            batch.begun_at_ns = self._clock.now_ns()
            self._num_waiting -= 1

    def _publish(self, pages: list[_Page], outcome: LoadOutcome) -> None:
        """Begun pages of one batch have this outcome; with the last ones, it is reported."""
        state = PageState.READY if outcome is LoadOutcome.READY else PageState.BAD
        for part, number in pages:
            reads = part.reads
            arena = self._arenas[reads.page_bytes]
            arena.set_word(reads.pages[number], reads.generations[number], state)
            part.outcomes[number] = outcome
        batch = pages[0][0].batch
        with self._executor.lock:
            self._num_begun -= len(pages)
            batch.num_left -= len(pages)
            if batch.num_left:
                return
            duration_ns = self._end(batch)
        self._report(batch.results, duration_ns)

    def _end(self, batch: _Batch) -> int:
        """How long it took, ns."""
        assert batch.begun_at_ns is not None, "it was begun"
        now_ns = self._clock.now_ns()
        duration_ns = now_ns - max(batch.begun_at_ns, self._ended_at_ns)
        self._ended_at_ns = now_ns
        self._num_open -= 1
        num_bytes = sum(len(reads.pages) * reads.page_bytes for reads, _ in batch.results)
        if self._num_open and batch.num_bytes_waited >= WAITED_SHARE * num_bytes:
            self.depth.on_done(num_bytes, duration_ns)
        return duration_ns

    def _give_up(self, error: DiskFailed) -> None:
        """What is left of the batch whose turn it is will not come; the next one is tried."""
        with self._executor.lock:
            if not self._begun and not self._wanted:
                return
            batch = (self._begun[-1] if self._begun else self._wanted[0][1:])[0].batch
            self._begin(batch)
            begun = [page for page in self._begun if page[0].batch is batch]
            self._begun = deque(page for page in self._begun if page[0].batch is not batch)
            parts = [part for _, part in self._wanted if part.batch is batch]
            self._wanted = [each for each in self._wanted if each[1].batch is not batch]
            heapq.heapify(self._wanted)
            for part in parts:
                rest = range(part.next, len(part.outcomes))
                begun += [(part, number) for number in rest]
                self._num_begun += len(rest)
        log.warning("reading the KV database failed", extra={"error": str(error)})
        if isinstance(error, DiskDamaged):
            self._damaged(error)
        self._publish(begun, LoadOutcome.FAILED)
