"""Pages from the object store into the arena: ranges of objects, many at a time, each page checked
before its word says that it is there.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import numpy as np

from services.kvstore.core import FetchedPages, LoadOutcome, PageFacts, PageReads, Place, Run
from services.kvstore.tiers.executors import Executor
from services.kvstore.tiers.objects.packed import Indexes
from services.kvstore.tiers.objects.store import NoObject, ObjectStore, StoreFailed
from services.kvstore.tiers.packing import unpack
from services.kvstore.tiers.values import HEADER_BYTES, BadValue, unpack_header
from shared.arena import ArenaView, PageState, checksum
from shared.blocks import BlockKey
from shared.runtime.clock import Clock

log = logging.getLogger(__name__)

THREADS = 8  # requests at a time: each waits long for its first byte
STOP_S = 5.0  # for requests that are under way
RANGE_BYTES_MAX = 8 * 1024 * 1024  # of one request


@dataclass(slots=True)
class _Batch:
    """What is reported together."""

    reads: list[PageReads]
    outcomes: list[list[LoadOutcome]]
    facts: list[list[PageFacts | None]]
    begun_at_ns: int
    num_left: int = 0
    gone: set[Run] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Range:
    """Pages that lie behind each other in an object: of `reads[of]` those at `first` to `end`."""

    of: int
    first: int
    end: int
    place: Place


OnRead = Callable[[list[FetchedPages], int, set[Run]], None]


class ObjectReader:
    """Args:
    arenas: by page size in bytes.
    executor: this reader's own.
    report: called in the executor, or by `fetch`, with what came of a batch, how long it took
        beyond the ones before it, ns, and runs that turned out not to be there.
    """

    def __init__(
        self,
        bucket: ObjectStore,
        arenas: Mapping[int, ArenaView],
        executor: Executor,
        clock: Clock,
        report: OnRead,
    ) -> None:
        self._bucket = bucket
        self._arenas = arenas
        self._executor = executor
        self._clock = clock
        self._report = report
        self._is_stopped = False
        self._ended_at_ns = clock.now_ns()  # guarded by the executor's lock, as batches' counts are
        self._indexes = Indexes(executor.lock)

    def fetch(self, reads: list[PageReads], places: Mapping[BlockKey, Place]) -> None:
        """Load these pages; those of blocks whose place is not known fail."""
        batch = _Batch(
            reads,
            [[LoadOutcome.FAILED] * len(each.pages) for each in reads],
            [[None] * len(each.pages) for each in reads],
            self._clock.now_ns(),
        )
        ranges = [found for of in range(len(reads)) for found in self._cut(batch, of, places)]
        if self._is_stopped:
            for each in ranges:
                for index in range(each.first, each.end):
                    self._publish(reads[each.of], index, LoadOutcome.FAILED)
            ranges = []
        batch.num_left = len(ranges)
        if not ranges:
            self._end(batch)
        for each in ranges:
            self._executor.submit(partial(self._run, batch, each))

    def stop(self) -> None:
        """Abandon what has not begun, and what does not come soon."""
        self._is_stopped = True
        self._executor.stop(STOP_S)

    def _cut(self, batch: _Batch, of: int, places: Mapping[BlockKey, Place]) -> list[_Range]:
        reads = batch.reads[of]
        num_max = max(RANGE_BYTES_MAX // (HEADER_BYTES + reads.page_bytes), 1)
        ranges: list[_Range] = []
        for index, key in enumerate(reads.keys):
            if (place := places.get(key)) is None:
                self._publish(reads, index, LoadOutcome.FAILED)
                continue
            before = ranges[-1] if ranges else None
            if (
                before is not None
                and before.end == index
                and before.place.run == place.run
                and before.place.at + index - before.first == place.at
                and index - before.first < num_max
            ):
                ranges[-1] = _Range(of, before.first, index + 1, before.place)
            else:
                ranges.append(_Range(of, index, index + 1, place))
        return ranges

    def _run(self, batch: _Batch, each: _Range) -> None:
        if self._is_stopped:
            return
        self._read(batch, each)
        with self._executor.lock:
            batch.num_left -= 1
            is_last = not batch.num_left
        if is_last:
            self._end(batch)

    def _end(self, batch: _Batch) -> None:
        now_ns = self._clock.now_ns()
        with self._executor.lock:
            duration_ns = now_ns - max(batch.begun_at_ns, self._ended_at_ns)
            self._ended_at_ns = now_ns
        pages = [
            FetchedPages(reads, outcomes, facts)
            for reads, outcomes, facts in zip(batch.reads, batch.outcomes, batch.facts, strict=True)
        ]
        self._report(pages, duration_ns, batch.gone)

    def _read(self, batch: _Batch, each: _Range) -> None:
        reads, run = batch.reads[each.of], each.place.run
        value_bytes = HEADER_BYTES + reads.page_bytes
        values: list[memoryview] = []
        missed = LoadOutcome.CORRUPT  # if it is shorter than its name says
        try:
            values = self._values(run, run.place(reads.layer, each.place.at), each.end - each.first)
        except BadValue as error:
            log.warning("an object is damaged", extra={"object": run.name, "error": str(error)})
        except NoObject:
            missed = LoadOutcome.MISSING
            batch.gone.add(run)
            self._indexes.forget([run])
        except StoreFailed as error:
            log.warning("reading the object store failed", extra={"error": str(error)})
            missed = LoadOutcome.FAILED
        if self._is_stopped:  # the arena may be gone
            return
        for index in range(each.first, each.end):
            value = values[index - each.first] if values else memoryview(b"")
            outcome, facts = missed, None
            if len(value) == value_bytes:
                outcome, facts = self._take(reads, index, value)
            batch.outcomes[each.of][index] = outcome
            batch.facts[each.of][index] = facts
            self._publish(reads, index, outcome)

    def _values(self, run: Run, first: int, num: int) -> list[memoryview]:
        """Values that lie behind each other in an object; those that are not whole are too short.

        Raises:
            BadValue, NoObject, StoreFailed: see `Indexes.get`, `Bucket.get`.
        """
        values = self._values_once(run, first, num)
        if run.is_packed and not all(values):  # its name may have been written again since
            self._indexes.forget([run])
            values = self._values_once(run, first, num)
        return values

    def _values_once(self, run: Run, first: int, num: int) -> list[memoryview]:
        value_bytes = HEADER_BYTES + run.page_bytes
        if run.is_packed:
            read = partial(self._bucket.get, run.name)
            at = self._indexes.get(run, read)[first : first + num + 1]
        else:
            at = [each * value_bytes for each in range(first, first + num + 1)]
        data = self._bucket.get(run.name, at[0], at[-1] - at[0])
        values = [data[begin - at[0] : end - at[0]] for begin, end in pairwise(at)]
        return [_unpacked(value, value_bytes) for value in values] if run.is_packed else values

    def _take(
        self, reads: PageReads, index: int, value: memoryview
    ) -> tuple[LoadOutcome, PageFacts | None]:
        """Copy a page to where it goes, if it is the right one."""
        try:
            header = unpack_header(value[:HEADER_BYTES])
        except BadValue:
            return LoadOutcome.CORRUPT, None
        page = value[HEADER_BYTES:]
        if (header.key, header.layer, header.page_bytes) != (
            reads.keys[index],
            reads.layer,
            reads.page_bytes,
        ):
            return LoadOutcome.CORRUPT, None
        if checksum(page) != header.checksum:
            return LoadOutcome.CORRUPT, None
        arena = self._arenas[reads.page_bytes]
        np.copyto(arena.pages[reads.pages[index]], np.frombuffer(page, np.uint8))
        facts = PageFacts(
            header.parent, list(header.tokens), header.num_layers, header.checksum, header.owner
        )
        return LoadOutcome.READY, facts

    def _publish(self, reads: PageReads, index: int, outcome: LoadOutcome) -> None:
        state = PageState.READY if outcome is LoadOutcome.READY else PageState.BAD
        arena = self._arenas[reads.page_bytes]
        arena.set_word(reads.pages[index], reads.generations[index], state)


def _unpacked(value: memoryview, num_bytes: int) -> memoryview:
    """Nothing, if it is not so many bytes packed."""
    try:
        return unpack(value, num_bytes).data
    except BadValue:
        return memoryview(b"")
