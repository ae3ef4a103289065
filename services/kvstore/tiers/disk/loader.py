"""Brings pages from disk into the arena, off the event loop.

Threads share one batch at a time, run of pages by run, in the order that the core has given; the
next batch is begun when nothing of the one before waits. Each thread first takes of its run what
the system has in memory, and starts reading all the rest before it waits for the first of that: so
the device has many reads at a time.

Results are reported in batches. A batch that finds no room is reported as failed at once: the event
loop never waits for a disk. Blocks whose loads fail are computed again.
"""

import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from services.kvstore.core import LoadOutcome, PageReads, ReadPages
from services.kvstore.tiers.disk.disk_writer import OnDamage
from services.kvstore.tiers.disk.errors import DiskDamaged, DiskFailed
from services.kvstore.tiers.disk.ports import BlockReader, BlockStore
from services.kvstore.tiers.executors import Executor
from shared.arena import ArenaView, PageState
from shared.runtime.clock import Clock

log = logging.getLogger(__name__)

LoadResults: TypeAlias = list[tuple[PageReads, list[LoadOutcome]]]

NUM_THREADS = 2  # each has many reads with the device; more would wait for each other
ORDERS_MAX = 16  # batches that wait; the core sends two
RUN_BYTES_MIN = 128 * 1024  # less is not worth a snapshot of its own
RUN_BYTES_MAX = 1024 * 1024


@dataclass(slots=True, eq=False)
class _Batch:
    """Attributes:
    results: outcomes are FAILED until they are known.
    num_left: runs that have not ended.
    begun_at_ns: when the first run was; None: none was.
    has_failed: nothing more of it is read.
    """

    results: LoadResults
    num_left: int = 0
    begun_at_ns: int | None = None
    has_failed: bool = False


@dataclass(slots=True, eq=False)
class _Run:
    """Consecutive pages of a batch that have no outcome yet: number of the reads in the batch, and
    of the page in those.
    """

    batch: _Batch
    pages: deque[tuple[int, int]] = field(default_factory=deque)


class Loader:
    """Copies pages from disk into the arena and publishes each page's word as soon as it is there.

    Args:
        arenas: by page size in bytes.
        executor: this loader's own.
        report: called with a batch's results and how long it took, ns, without the time for which
            the one before it was not done: in the executor, or by `submit`.
        damaged: called in the executor, before the results, when the database cannot be used.
        orders_max: batches that may wait.
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
        self._disk = disk
        self._arenas = arenas
        self._executor = executor
        self._clock = clock
        self._report = report
        self._damaged = damaged
        self._orders_max = orders_max
        # Guarded by the executor's lock, as batches' counts are:
        self._num_waiting = 0  # batches that are not begun
        self._ended_at_ns = clock.now_ns()  # the last batch that did

    def submit(self, order: ReadPages) -> None:
        """Load these pages. Without room for the order they fail."""
        batch = _Batch([(reads, [LoadOutcome.FAILED] * len(reads.pages)) for reads in order.reads])
        runs = _runs_of(batch, self._executor.num_threads)
        batch.num_left = len(runs)
        with self._executor.lock:
            has_room = self._num_waiting < self._orders_max
            self._num_waiting += has_room
        if not has_room:
            for run in runs:
                self._give_up(run)
            self._report(batch.results, 0)
            return
        for run in runs:
            self._executor.submit(partial(self._do, run))

    def stop(self) -> None:
        """Finish what was submitted, then end."""
        self._executor.stop()

    def _do(self, run: _Run) -> None:
        self._begin(run.batch)
        self._load(run)
        self._end(run.batch)

    def _begin(self, batch: _Batch) -> None:
        with self._executor.lock:
            if batch.begun_at_ns is None:
                batch.begun_at_ns = self._clock.now_ns()
                self._num_waiting -= 1

    def _end(self, batch: _Batch) -> None:
        """A run did; with the last one, the batch."""
        with self._executor.lock:
            batch.num_left -= 1
            if batch.num_left:
                return
            assert batch.begun_at_ns is not None, "it was begun"
            now_ns = self._clock.now_ns()
            duration_ns = now_ns - max(batch.begun_at_ns, self._ended_at_ns)
            self._ended_at_ns = now_ns
        self._report(batch.results, duration_ns)

    def _load(self, run: _Run) -> None:
        if run.batch.has_failed:
            self._give_up(run)
            return
        try:
            with self._disk.read() as reader:
                for may_wait in (False, True):
                    for _ in range(len(run.pages)):
                        self._copy_next(reader, run, may_wait)
        except DiskFailed as error:  # what was not begun of this batch will not come
            with self._executor.lock:
                is_first = not run.batch.has_failed
                run.batch.has_failed = True
            if is_first:
                log.warning("reading the KV database failed", extra={"error": str(error)})
                if isinstance(error, DiskDamaged):
                    self._damaged(error)
            self._give_up(run)

    def _copy_next(self, reader: BlockReader, run: _Run, may_wait: bool) -> None:
        """The run's next page, which is published at once; or it becomes the last."""
        at, number = run.pages[0]
        reads, outcomes = run.batch.results[at]
        arena = self._arenas[reads.page_bytes]
        page = reads.pages[number]
        key, out = reads.keys[number], arena.pages[page]
        outcome = reader.copy(key, reads.layer, out, may_wait=may_wait)
        run.pages.popleft()
        if outcome is None:
            run.pages.append((at, number))
            return
        state = PageState.READY if outcome is LoadOutcome.READY else PageState.BAD
        arena.set_word(page, reads.generations[number], state)
        outcomes[number] = outcome

    def _give_up(self, run: _Run) -> None:
        """What is left of it fails."""
        for at, number in run.pages:
            reads, _ = run.batch.results[at]
            arena = self._arenas[reads.page_bytes]
            arena.set_word(reads.pages[number], reads.generations[number], PageState.BAD)
        run.pages.clear()


def _runs_of(batch: _Batch, num_threads: int) -> list[_Run]:
    """All its pages, in order; at least one run."""
    num_bytes = sum(len(reads.pages) * reads.page_bytes for reads, _ in batch.results)
    run_bytes = _run_bytes(num_bytes, num_threads)
    runs = [_Run(batch)]
    left_bytes = run_bytes
    for at, (reads, _) in enumerate(batch.results):
        for number in range(len(reads.pages)):
            if left_bytes <= 0:
                runs.append(_Run(batch))
                left_bytes = run_bytes
            runs[-1].pages.append((at, number))
            left_bytes -= reads.page_bytes
    return runs


def _run_bytes(num_bytes: int, num_threads: int) -> int:
    """So that every thread has two of a batch, unless they would be too small or too large.

    >>> _run_bytes(8 * 1024**2, 4) // 1024, _run_bytes(1024, 4) // 1024
    (1024, 128)
    """
    return min(max(num_bytes // (2 * num_threads), RUN_BYTES_MIN), RUN_BYTES_MAX)
