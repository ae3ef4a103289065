"""Copies computed blocks from the pool to the host's arena, beside the forward pass.

Blocks are copied in runs, several of them at once where the device copies beside the host.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate, chain, pairwise
from queue import Empty, Full, Queue

from kernels.page_sums.select import page_sums
from services.worker.core.effects import BlockWrite
from services.worker.device.copying.copies import CopyFailed, PageCopier, Store
from shared.arena import Arena
from shared.blocks import BLOCK_TOKENS

log = logging.getLogger(__name__)

STORES_MAX = 1_024  # orders to store that wait
RUN_BYTES = 32 * 1024 * 1024  # of blocks that are stored by one call, unless one is larger
RUNS_IN_FLIGHT = 4  # that a device has under way: enough to keep its link busy
CLOSE_POLL_S = 1.0

Checksums = dict[int, list[int]]


@dataclass(slots=True)
class _Order:
    """Blocks to store.

    Attributes:
        checksums: of those that are over; reported when all are.
    """

    writes: list[BlockWrite]
    arena: Arena
    epoch: int
    checksums: Checksums = field(default_factory=dict)

    def runs(self) -> "Iterator[_Run]":
        """Parts of it that are stored by one call each. A partial block is alone."""
        first, num_bytes = 0, 0
        for at, write in enumerate(self.writes):
            is_alone = write.is_partial or self.writes[first].is_partial
            block_bytes = len(write.arena_pages) * self.arena.page_bytes
            if at > first and (is_alone or num_bytes + block_bytes > RUN_BYTES):
                yield _Run(self, self.writes[first:at])
                first, num_bytes = at, 0
            num_bytes += block_bytes
        yield _Run(self, self.writes[first:])


@dataclass(frozen=True, slots=True)
class _Run:
    """Blocks that are stored by one call."""

    order: _Order
    writes: list[BlockWrite]

    @property
    def arena_pages(self) -> list[int]:
        return list(chain.from_iterable(write.arena_pages for write in self.writes))

    @property
    def pool_pages(self) -> list[int]:
        return list(chain.from_iterable(write.pool_pages for write in self.writes))


@dataclass(frozen=True, slots=True)
class _Storing:
    """A run whose copy was started."""

    run: _Run
    store: Store


class Storer:
    """Owns a thread. `on_stored` is called from it, and by `submit` with what cannot be stored: by
    `BlockWrite.number`, the checksum of each layer's page; empty: it is not stored.

    Args:
        orders_max: that may wait; one more is not carried out.
        token_rows: see `KvMover`.
    """

    def __init__(
        self,
        copier: PageCopier,
        on_stored: Callable[[Checksums], None],
        orders_max: int,
        token_rows: int,
    ) -> None:
        self._copier = copier
        self._on_stored = on_stored
        self._token_rows = token_rows
        self._arena: Arena | None = None
        self._epoch = 0
        self._num_in_flight = 0
        self._changed = threading.Condition()  # guards the three
        self._orders: Queue[_Order | None] = Queue(orders_max)
        self.thread = threading.Thread(target=self._run, name="kv-store", daemon=True)
        self.thread.start()

    def attach(self, arena: Arena, epoch: int) -> None:
        """Store into this arena, of connection `epoch`, from now on."""
        with self._changed:
            self._arena, self._epoch = arena, epoch

    def detach(self) -> None:
        """Store nothing any more; returns when nothing is being stored."""
        with self._changed:
            self._arena = None
            self._changed.wait_for(lambda: not self._num_in_flight)

    def submit(self, writes: list[BlockWrite], epoch: int) -> None:
        """Store blocks, which steps that have landed computed; never waits for room."""
        arena = self._arena
        if arena is not None and epoch == self._epoch:
            with suppress(Full):
                self._orders.put_nowait(_Order(writes, arena, epoch))
                return
        self._on_stored({write.number: [] for write in writes})

    def close(self) -> None:
        """Stop the thread, behind what it stores now."""
        while self.thread.is_alive():
            try:
                self._orders.put(None, timeout=CLOSE_POLL_S)
                break
            except Full:  # if it lives it makes room
                continue
        self.thread.join()

    def _run(self) -> None:
        runs: deque[_Run] = deque()
        in_flight: deque[_Storing] = deque()
        is_open = True
        try:
            while is_open or runs or in_flight:
                if is_open and not runs:
                    is_open = self._take_order(runs, must_wait=not in_flight)
                if runs and (storing := self._start(runs.popleft())) is not None:
                    in_flight.append(storing)
                must_wait = not runs or len(in_flight) >= RUNS_IN_FLIGHT
                while in_flight and (must_wait or in_flight[0].store.is_over()):
                    self._finish(in_flight.popleft())
                    must_wait = False
        finally:
            with self._changed:
                self._num_in_flight = 0
                self._changed.notify_all()

    def _take_order(self, runs: deque[_Run], *, must_wait: bool) -> bool:
        """Add the runs of the next order, if there is one; False: there will be none."""
        try:
            order = self._orders.get(block=must_wait)
        except Empty:
            return True
        if order is not None:
            runs += order.runs()
        return order is not None

    def _start(self, run: _Run) -> _Storing | None:
        """Start to copy a run; None if its leases ended meanwhile or it fails at once: then it is
        over."""
        order, first = run.order, run.writes[0]
        with self._changed:
            is_leased = self._arena is order.arena and self._epoch == order.epoch
            self._num_in_flight += is_leased
        if not is_leased:
            self._end(run, [[] for _ in run.writes])
            return None
        num_tokens = len(first.tokens) if first.is_partial else BLOCK_TOKENS
        try:
            store = self._copier.store(run.pool_pages, order.arena, run.arena_pages, num_tokens)
        except CopyFailed:
            self._fail(run)
            return None
        return _Storing(run, store)

    def _finish(self, storing: _Storing) -> None:
        """Wait for a run, which is over then."""
        run = storing.run
        try:
            storing.store.wait()
            sums = self._checksums(storing)
        except CopyFailed:
            self._fail(run)
            return
        self._leave()
        ends = accumulate(len(write.arena_pages) for write in run.writes)
        self._end(run, [sums[begin:end] for begin, end in pairwise(chain([0], ends))])

    def _checksums(self, storing: _Storing) -> list[int]:
        write, arena = storing.run.writes[0], storing.run.order.arena
        if not (write.is_partial and self._token_rows):
            return storing.store.checksums()
        for page in write.arena_pages:  # else KV of others, deleted ones among them, stays on disk
            rows = arena.pages[page].reshape(self._token_rows, BLOCK_TOKENS, -1)
            rows[:, len(write.tokens) :] = 0
        return page_sums(arena.pages, write.arena_pages)

    def _fail(self, run: _Run) -> None:
        """A run could not be copied: each of its blocks is tried alone, since one may be the
        reason."""
        self._leave()
        if len(run.writes) == 1:
            log.exception("a block could not be copied from the device")
            self._end(run, [[]])
            return
        for write in run.writes:
            if (storing := self._start(_Run(run.order, [write]))) is not None:
                self._finish(storing)

    def _end(self, run: _Run, sums: list[list[int]]) -> None:
        """A run is over. An order is reported when all of it is: a commit follows each report."""
        order = run.order
        for write, of_write in zip(run.writes, sums, strict=True):
            order.checksums[write.number] = of_write
        if len(order.checksums) == len(order.writes):
            self._on_stored(order.checksums)

    def _leave(self) -> None:
        """A run is not in flight any more."""
        with self._changed:
            self._num_in_flight -= 1
            self._changed.notify_all()
