"""Moves KV between the host's arena and the pool, beside the forward pass.

One thread loads, in the order of `shared.urgency`; one stores what earlier steps have computed.
Readiness of an arena page is a word in the arena, looked at before a copy and again after it: if it
changed, the bytes are not the promised ones and the load failed.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import Full, Queue
from typing import Protocol, TypeAlias

from services.worker.core.effects import BlockWrite, PageLoads
from services.worker.device.gate import PageGate
from services.worker.device.load_queue import LoadQueue, LoadRun
from shared.arena import Arena, Bytes, checksum
from shared.urgency import load_order

FETCH_TIMEOUT_NS = 2_000_000_000  # a promised page that has not come by then is recomputed
POLL_S = 100e-6  # between two looks at what has still to come
LOADS_MAX = 65_536  # pages that wait; at 128 KiB each more than 8 GiB, seconds of copying
STORES_MAX = 1_024  # orders to store that wait
CLOSE_POLL_S = 1.0


class MoverGone(Exception):
    """A thread that moves pages died: the worker is to end, and says so by itself."""


class PageCopier(Protocol):
    """Copies pages between the pool's device and the arena."""

    def load(self, arena: Arena, arena_pages: list[int], pool_pages: list[int]) -> None:
        """Arena to pool; returns when the bytes are there."""
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

    def load(self, arena: Arena, arena_pages: list[int], pool_pages: list[int]) -> None:
        for source, target in zip(arena_pages, pool_pages, strict=True):
            self._pool[target] = arena.pages[source]

    def mark(self) -> object:
        return None

    def store(self, mark: object, pool_page: int, target: Bytes) -> None:
        target[:] = self._pool[pool_page]


@dataclass(frozen=True, slots=True)
class Loaded:
    """Loads into these pool pages ended, those that were copied after `duration_ns`."""

    good: list[int]
    bad: list[int]
    num_bytes: int = 0
    duration_ns: int = 0


@dataclass(frozen=True, slots=True)
class Stored:
    """Writes are over: by number, the checksum of each layer's page; empty where a page could not
    be stored."""

    checksums: dict[int, list[int]]


Moved: TypeAlias = Loaded | Stored


@dataclass(frozen=True, slots=True)
class _Order:
    """Blocks to store, once what `mark` stands behind is computed."""

    writes: list[BlockWrite]
    arena: Arena
    epoch: int
    mark: object


class KvMover:
    """Owns the two threads. `on_moved` is called from them, and by `submit_loads` and
    `submit_stores` with what cannot be moved.

    Args:
        loads_max: loads that may wait; of more, the least urgent fail.
        stores_max: orders to store that may wait; one more is not carried out.
    """

    def __init__(
        self,
        copier: PageCopier,
        gate: PageGate,
        on_moved: Callable[[Moved], None],
        loads_max: int = LOADS_MAX,
        stores_max: int = STORES_MAX,
    ) -> None:
        self.gate = gate
        self._copier = copier
        self._on_moved = on_moved
        self._arena: Arena | None = None
        self._epoch = 0
        self._storing = threading.Lock()  # held while a page is stored
        self._loads = LoadQueue(loads_max)  # guarded by the condition
        self._has_loads = threading.Condition()
        self._is_closed = False
        self._orders: Queue[_Order | None] = Queue(stores_max)
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

    def submit_loads(self, loads: list[PageLoads]) -> None:
        """Start loads; their pages count as loading from now on. Those that were promised on
        another connection fail at once, and so does what there is no room for.
        """
        deadline_ns = time.monotonic_ns() + FETCH_TIMEOUT_NS
        unloaded: list[int] = []
        for each in loads:
            self.gate.set_loading(each.pool_pages)
            if self._arena is None or each.epoch != self._epoch:
                unloaded += each.pool_pages
                continue
            self._num_submitted += 1
            order = load_order(each.priority, each.layer, self._num_submitted)
            with self._has_loads:
                unloaded += self._loads.push(LoadRun(order, each, self._arena, deadline_ns))
                self._has_loads.notify()
        if unloaded:
            self._settle(Loaded([], unloaded))

    def submit_stores(self, writes: list[BlockWrite], epoch: int) -> None:
        """Copy blocks to the arena behind what was computed up to now; each is told to be over,
        stored or not. Never waits for room.
        """
        arena = self._arena
        if arena is not None and epoch == self._epoch:
            with suppress(Full):
                self._orders.put_nowait(_Order(writes, arena, epoch, self._copier.mark()))
                return
        self._on_moved(Stored({write.number: [] for write in writes}))

    def check(self) -> None:
        """See that both threads are there.

        Raises:
            MoverGone: one is not.
        """
        for thread in self._threads:
            if not thread.is_alive():
                raise MoverGone(f"the thread {thread.name} is gone")

    def close(self) -> None:
        """Stop both threads."""
        with self._has_loads:
            self._is_closed = True
            self._has_loads.notify()
        while self._threads[1].is_alive():
            try:
                self._orders.put(None, timeout=CLOSE_POLL_S)
                break
            except Full:  # if it lives it makes room
                continue
        for thread in self._threads:
            thread.join()

    def _load_loop(self) -> None:
        looked_at_ns = 0
        while True:
            with self._has_loads:
                while not (self._is_closed or len(self._loads)):
                    self._has_loads.wait()
                if self._is_closed:
                    return
                run, failed = self._loads.pop(), []
                now_ns = time.monotonic_ns()
                if run is None or now_ns - looked_at_ns >= POLL_S * 1e9:
                    failed = self._loads.look(now_ns)
                    looked_at_ns = now_ns
                run = run or self._loads.pop()
                if run is None and not failed:
                    self._has_loads.wait(POLL_S)
            if failed:
                self._settle(Loaded([], failed))
            if run is not None:
                self._load(run)

    def _load(self, run: LoadRun) -> None:
        """Copy what is ready of a run; what is to come is put off."""
        started_ns = time.monotonic_ns()
        ready, filling, bad = run.states()
        if filling:
            with self._has_loads:
                self._loads.put_off(run.part(filling))
        failed = [run.loads.pool_pages[at] for at in bad]
        good: list[int] = []
        if ready:
            copied = run.part(ready)
            pool_pages = copied.loads.pool_pages
            self._copier.load(run.arena, copied.loads.arena_pages, pool_pages)
            still_ready = copied.states()[0]  # or else the bytes are not the promised ones
            good = [pool_pages[at] for at in still_ready]
            failed += sorted({*pool_pages} - {*good})
        if good or failed:
            num_bytes = len(ready) * run.arena.page_bytes
            duration_ns = time.monotonic_ns() - started_ns
            self._settle(Loaded(good, failed, num_bytes, duration_ns))

    def _settle(self, loaded: Loaded) -> None:
        self.gate.settle(loaded.good, loaded.bad)
        self._on_moved(loaded)

    def _store_loop(self) -> None:
        while (order := self._orders.get()) is not None:
            stored = {write.number: self._store(write, order) for write in order.writes}
            self._on_moved(Stored(stored))

    def _store(self, write: BlockWrite, order: _Order) -> list[int]:
        """Copy a block; returns its pages' checksums, or nothing if its lease ended meanwhile."""
        sums: list[int] = []
        for pool_page, arena_page in zip(write.pool_pages, write.arena_pages, strict=True):
            with self._storing:
                if self._arena is not order.arena or self._epoch != order.epoch:
                    return []
                target = order.arena.pages[arena_page]
                self._copier.store(order.mark, pool_page, target)
                sums.append(checksum(target))
        return sums
