"""Moves KV between the host's arena and the pool, beside the forward pass.

One thread loads (demand before prefetch, layer 0 of everything before layer 1 of anything), one
writes behind. Readiness of an arena page is a word in the arena, looked at before a copy and again
after it: if it changed, the bytes are not the promised ones and the load failed.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from queue import Full, Queue
from typing import Protocol

from services.worker.core.effects import BlockWrite, PageLoad, StepPlan
from services.worker.engine.gate import PageGate
from shared.arena import Arena, Bytes, PageState, checksum

FETCH_TIMEOUT_NS = 2_000_000_000  # a promised page that has not come by then is recomputed
POLL_S = 50e-6
BATCH_PAGES = 64
ALIVE_POLL_S = 1.0
LOADS_MAX = 65_536  # pages that wait; at 128 KiB each more than 8 GiB, seconds of copying
STORES_MAX = 65_536  # pages that wait, of one step


class MoverGone(Exception):
    """A thread that moves pages died: the worker is to end, and says so by itself."""


class PageCopier(Protocol):
    """Copies single pages between the pool's device and the arena."""

    def load(self, arena: Arena, arena_page: int, pool_page: int) -> None:
        """Arena to pool; may return before the bytes are there, see `finish_loads`."""
        ...

    def finish_loads(self) -> None:
        """Wait until every `load` so far has its bytes in place."""
        ...

    def mark(self) -> object:
        """A point in the computation, after which a `store` may read what was computed."""
        ...

    def store(self, mark: object, pool_page: int, target: Bytes) -> None:
        """Pool to arena, after `mark`; returns when the bytes are there."""
        ...


class HostCopier:
    """The pool is in host memory: a page is copied at once.

    Args:
        pool: uint8 [num_pages, page_bytes].
    """

    def __init__(self, pool: Bytes) -> None:
        self._pool = pool

    def load(self, arena: Arena, arena_page: int, pool_page: int) -> None:
        self._pool[pool_page] = arena.pages[arena_page]

    def finish_loads(self) -> None:
        pass

    def mark(self) -> object:
        return None

    def store(self, mark: object, pool_page: int, target: Bytes) -> None:
        target[:] = self._pool[pool_page]


@dataclass(order=True, slots=True)
class _Load:
    order: tuple[bool, int, int]
    load: PageLoad = field(compare=False)
    arena: Arena = field(compare=False)
    deadline_ns: int = field(compare=False)


@dataclass(slots=True)
class StepWrites:
    """The writes of one step, stored layer by layer as the pass goes; `wait` for all of them.

    Attributes:
        checksums: [write][layer], filled in as pages are stored; empty for a write that is not
            done, because there was no room in the queue, or its lease has ended.
        epoch: connection to a kvstore that the arena's pages were leased on.
    """

    writes: list[BlockWrite]
    arena: Arena
    num_left: int
    checksums: list[list[int]]
    store_thread: threading.Thread
    epoch: int = 0
    done: threading.Event = field(default_factory=threading.Event)
    given_up: set[int] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, index: int) -> bool:
        """Whether a page of this write is still to be stored; if not, it counts as done."""
        if index in self.given_up:
            self._count()
            return False
        return True

    def give_up(self, index: int) -> None:
        """A page of this write is not stored: the write is not done, and this page is over."""
        self.given_up.add(index)
        self._count()

    def on_stored(self, index: int, layer: int, sum_of_page: int) -> None:
        """A page is in the arena."""
        self.checksums[index][layer] = sum_of_page
        self._count()

    def _count(self) -> None:
        with self._lock:
            self.num_left -= 1
            if self.num_left == 0:
                self.done.set()

    def wait(self) -> list[list[int]]:
        """The checksums, once every page is in the arena.

        Raises:
            MoverGone: nobody stores them any more.
        """
        while self.num_left and not self.done.wait(ALIVE_POLL_S):
            if not self.store_thread.is_alive():
                raise MoverGone("the thread that stores pages is gone")
        return [[] if index in self.given_up else sums for index, sums in enumerate(self.checksums)]


class KvMover:
    """Owns the two threads. `on_loaded(good, bad, num_bytes, duration_ns)` is called from the
    loading thread with pool pages, or by `submit_loads` with those that cannot be loaded.

    Args:
        loads_max: loads that may wait; of more, those of prefetches fail first, then those of high
            layers.
        stores_max: stores that may wait; a write that has no room for one is not done.
    """

    def __init__(
        self,
        copier: PageCopier,
        gate: PageGate,
        on_loaded: Callable[[list[int], list[int], int, int], None],
        loads_max: int = LOADS_MAX,
        stores_max: int = STORES_MAX,
    ) -> None:
        self.gate = gate
        self._copier = copier
        self._on_loaded = on_loaded
        self._arena: Arena | None = None
        self._epoch = 0
        self._storing = threading.Lock()  # held while a page is stored
        self._loads: list[_Load] = []  # a heap
        self._has_loads = threading.Condition()
        self._is_closed = False
        self._loads_max = loads_max
        self._outgoing: Queue[tuple[StepWrites, int, int, object] | None] = Queue(stores_max)
        self._num_submitted = 0
        self._threads = [
            threading.Thread(target=self._load_loop, name="kv-load", daemon=True),
            threading.Thread(target=self._store_loop, name="kv-store", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def attach(self, arena: Arena, epoch: int) -> None:
        """Use this arena, of connection `epoch`, from now on; loads under way keep the old."""
        with self._storing:
            self._arena = arena
            self._epoch = epoch

    def detach(self) -> None:
        """Store nothing any more: the leases of this connection are about to end, and with the next
        one the kvstore gives their pages to others, who trust what they write there.

        Returns when the page that is being stored is there, so not for an event loop.
        """
        with self._storing:
            self._arena = None

    def submit_loads(self, loads: list[PageLoad], *, is_prefetch: bool) -> None:
        """Start loads; their pages count as loading from now on. Those that were promised on
        another connection fail at once, and so does what there is no room for.
        """
        self.gate.set_loading([load.pool_page for load in loads])
        deadline_ns = time.monotonic_ns() + FETCH_TIMEOUT_NS
        batch = []
        stale = []
        for load in loads:
            if self._arena is None or load.epoch != self._epoch:
                stale.append(load.pool_page)
                continue
            self._num_submitted += 1
            order = (is_prefetch, load.layer, self._num_submitted)
            batch.append(_Load(order, load, self._arena, deadline_ns))
        if batch:
            stale += self._enqueue(batch)
        if stale:
            self.gate.settle([], stale)
            self._on_loaded([], stale, 0, 0)

    def _enqueue(self, batch: list[_Load]) -> list[int]:
        """Pool pages of the loads that found no room, or made room."""
        with self._has_loads:
            for item in batch:
                heappush(self._loads, item)
            left_out: list[_Load] = []
            if len(self._loads) > self._loads_max:
                self._loads.sort()
                left_out = self._loads[self._loads_max :]
                del self._loads[self._loads_max :]
            self._has_loads.notify()
        return [item.load.pool_page for item in left_out]

    def begin_writes(self, plan: StepPlan, num_layers: int) -> StepWrites | None:
        """Prepare a plan's writes; `store` their pages as layers are computed.

        None when there are none, or when their leases ended with the connection they came from:
        other blocks may be in those pages by now.
        """
        arena, epoch = self._arena, self._epoch
        if not plan.writes or arena is None or epoch != plan.epoch:
            return None
        sums = [[0] * num_layers for _ in plan.writes]
        num_left = len(plan.writes) * num_layers
        return StepWrites(plan.writes, arena, num_left, sums, self._threads[1], epoch)

    def check(self) -> None:
        """See that both threads are there.

        Raises:
            MoverGone: one is not.
        """
        for thread in self._threads:
            if not thread.is_alive():
                raise MoverGone(f"the thread {thread.name} is gone")

    def store(self, step: StepWrites, index: int, layer: int) -> None:
        """Copy one layer's page of write `index` behind what was computed up to now. Never waits
        for room.
        """
        if not step.begin(index):
            return
        try:
            self._outgoing.put_nowait((step, index, layer, self._copier.mark()))
        except Full:
            step.give_up(index)

    def close(self) -> None:
        """Stop both threads."""
        with self._has_loads:
            self._is_closed = True
            self._has_loads.notify()
        while self._threads[1].is_alive():
            try:
                self._outgoing.put(None, timeout=ALIVE_POLL_S)
                break
            except Full:  # if it lives it makes room
                continue
        for thread in self._threads:
            thread.join()

    def _load_loop(self) -> None:
        while True:
            with self._has_loads:
                while not self._loads and not self._is_closed:
                    self._has_loads.wait()
                if self._is_closed:
                    return
                num_urgent = min(BATCH_PAGES, len(self._loads))
                urgent = [heappop(self._loads) for _ in range(num_urgent)]
            if left := self._load_ready(urgent):
                self._wait_on(left)

    def _wait_on(self, left: list[_Load]) -> None:
        """What is not ready yet keeps its place."""
        unloaded = self._enqueue(left)
        if unloaded:
            self.gate.settle([], unloaded)
            self._on_loaded([], unloaded, 0, 0)

    def _load_ready(self, urgent: list[_Load]) -> list[_Load]:
        """Copy what is ready among these loads; returns what is not."""
        started_ns = time.monotonic_ns()
        copied: list[_Load] = []
        good: list[int] = []
        bad: list[int] = []
        left: list[_Load] = []
        for item in urgent:
            load = item.load
            state = item.arena.promise(load.arena_page, load.generation)
            if state is PageState.READY:
                self._copier.load(item.arena, load.arena_page, load.pool_page)
                copied.append(item)
            elif state is PageState.FILLING and started_ns < item.deadline_ns:
                left.append(item)
            else:
                bad.append(load.pool_page)
        self._copier.finish_loads()
        for item in copied:
            load = item.load
            state = item.arena.promise(load.arena_page, load.generation)
            (good if state is PageState.READY else bad).append(load.pool_page)
        if good or bad:
            self.gate.settle(good, bad)
            num_bytes = sum(item.arena.page_bytes for item in copied)
            self._on_loaded(good, bad, num_bytes, time.monotonic_ns() - started_ns)
        else:
            time.sleep(POLL_S)
        return left

    def _store_loop(self) -> None:
        while (item := self._outgoing.get()) is not None:
            with self._storing:
                self._store_page(*item)

    def _store_page(self, step: StepWrites, index: int, layer: int, mark: object) -> None:
        if self._arena is not step.arena or self._epoch != step.epoch:
            step.give_up(index)
            return
        write = step.writes[index]
        target = step.arena.pages[write.arena_pages[layer]]
        self._copier.store(mark, write.pool_pages[layer], target)
        step.on_stored(index, layer, checksum(target))
