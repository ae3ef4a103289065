"""Moves KV between the host's arena and the pool, beside the forward pass.

One thread loads, in the order of `shared.wire.urgency`; one stores what earlier steps computed
(`storing`).
Readiness of an arena page is a word in the arena, looked at before a copy is started and again when
it is over: if it changed, the bytes are not the promised ones and the load failed.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from services.worker.core.effects import BlockWrite, PageLoads
from services.worker.device.copying.copies import Copy, CopyFailed, PageCopier
from services.worker.device.copying.gate import PageGate
from services.worker.device.copying.load_queue import OVERDUE_NS, LoadQueue, LoadRun
from services.worker.device.copying.storing import STORES_MAX, Checksums, Storer
from shared.arena import Arena
from shared.wire.urgency import load_order

log = logging.getLogger(__name__)

POLL_S = 100e-6  # between two looks at what has still to come
LOADS_MAX = 65_536  # pages that wait; at 128 KiB each more than 8 GiB, seconds of copying
# Runs of loads that a device has under way. Passes are launched behind those, without the host: so
# many that a pass is ahead of its loads by what a busy host may take to start the next one.
COPIES_MAX = 8


class MoverGone(Exception):
    """A thread that moves pages died: the worker is to end, and says so by itself."""


class ArenaReader(Protocol):
    """Reads the arena as well."""

    def attach(self, arena: Arena, epoch: int) -> None:
        """This one, of connection `epoch`, from now on."""
        ...

    def detach(self) -> None:
        """None for the time being."""
        ...


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

    checksums: Checksums


@dataclass(frozen=True, slots=True)
class CalledBack:
    """Nothing is copied into these pool pages."""

    pages: list[int]


Moved: TypeAlias = Loaded | Stored | CalledBack


@dataclass(frozen=True, slots=True)
class _Copying:
    """A run whose copy was started."""

    run: LoadRun
    copy: Copy
    started_ns: int


class KvMover:
    """Owns the two threads. `on_moved` is called from them, and by `submit_loads` and
    `submit_stores` with what cannot be moved.

    Args:
        loads_max: loads that may wait; of more, the least urgent fail.
        stores_max: orders to store that may wait; one more is not carried out.
        reader: reads the arena as well, while there is one.
        token_rows: runs of tokens, of equal bytes each, that a page below consists of; 0: what
            stands behind a block's tokens does not come along when it is stored.
    """

    def __init__(
        self,
        copier: PageCopier,
        gate: PageGate,
        on_moved: Callable[[Moved], None],
        loads_max: int = LOADS_MAX,
        stores_max: int = STORES_MAX,
        reader: ArenaReader | None = None,
        token_rows: int = 1,
    ) -> None:
        self.gate = gate
        self._reader = reader
        self._copier = copier
        self._on_moved = on_moved
        self._arena: Arena | None = None
        self._epoch = 0
        self._loads = LoadQueue(loads_max)  # guarded by the condition
        self._has_loads = threading.Condition()
        self._copying: deque[_Copying] = deque()  # of the loading thread
        self._ended_ns = 0  # the last of them
        self._is_closed = False
        self._num_submitted = 0
        self._loading = threading.Thread(target=self._load_loop, name="kv-load", daemon=True)
        self._loading.start()
        self._storer = Storer(copier, self._on_stored, stores_max, token_rows)

    def prepare(self, arena: Arena) -> None:
        """Get ready for copies from and to this arena; not for an event loop."""
        self._copier.attach(arena)

    def attach(self, arena: Arena, epoch: int) -> None:
        """Use this arena, of connection `epoch`, from now on; loads under way keep the old."""
        self._arena, self._epoch = arena, epoch
        self._storer.attach(arena, epoch)
        if self._reader is not None:
            self._reader.attach(arena, epoch)

    def detach(self) -> None:
        """Store nothing any more: the leases of this connection are about to end, and with the next
        one the kvstore gives their pages to others, who trust what they write there.

        Returns when the blocks that are being stored are there, so not for an event loop.
        """
        self._arena = None
        self._storer.detach()
        if self._reader is not None:
            self._reader.detach()

    def submit_loads(self, loads: list[PageLoads]) -> None:
        """Start loads; their pages count as loading from now on. Those that were promised on
        another connection fail at once, and so does what there is no room for.
        """
        now_ns = time.monotonic_ns()
        unloaded: list[int] = []
        for each in loads:
            self.gate.set_loading(each.pool_pages)
            if self._arena is None or each.epoch != self._epoch:
                unloaded += each.pool_pages
                continue
            self._num_submitted += 1
            order = load_order(each.priority, each.layer, self._num_submitted)
            deadline_ns = max(now_ns, each.ready_at_ns) + OVERDUE_NS
            with self._has_loads:
                unloaded += self._loads.push(LoadRun.of(each, order, self._arena, deadline_ns))
                self._has_loads.notify()
        if unloaded:
            self._settle(Loaded([], unloaded))

    def call_back(self, pool_pages: list[int]) -> None:
        """Do not load into these pages. Those whose copy was started end as loads do."""
        with self._has_loads:
            taken = self._loads.take_out(set(pool_pages))
        if taken:
            self.gate.settle([], taken)
            self._on_moved(CalledBack(taken))

    def submit_stores(self, writes: list[BlockWrite], epoch: int) -> None:
        """Copy blocks to the arena, which steps that have landed computed; the end of each is
        reported, stored or not. Never waits for room.
        """
        self._storer.submit(writes, epoch)

    def check(self) -> None:
        """See that both threads are there.

        Raises:
            MoverGone: one is not.
        """
        for thread in (self._loading, self._storer.thread):
            if not thread.is_alive():
                raise MoverGone(f"the thread {thread.name} is gone")

    def close(self) -> None:
        """Stop both threads, and let go of the arenas."""
        with self._has_loads:
            self._is_closed = True
            self._has_loads.notify()
        self._storer.close()
        self._loading.join()
        self._copier.close()

    def _load_loop(self) -> None:
        looked_at_ns = 0
        while True:
            with self._has_loads:
                while not (self._is_closed or len(self._loads) or self._copying):
                    self._has_loads.wait()
                if self._is_closed:
                    return
                run, failed = self._loads.pop(), []
                now_ns = time.monotonic_ns()
                if run is None or now_ns - looked_at_ns >= POLL_S * 1e9:
                    failed = self._loads.look(now_ns)
                    looked_at_ns = now_ns
                run = run or self._loads.pop()
                if run is None and not failed and not self._copying:
                    self._has_loads.wait(POLL_S)
            if failed:
                self._settle(Loaded([], failed))
            if run is not None:
                self._start(run)
            must_wait = run is None or len(self._copying) >= COPIES_MAX
            while self._copying and (must_wait or self._copying[0].copy.is_over()):
                self._finish(self._copying.popleft())
                must_wait = False

    def _start(self, run: LoadRun) -> None:
        """Copy what is ready of a run; what is to come is put off."""
        started_ns = time.monotonic_ns()
        ready, filling, bad = run.states()
        if len(filling):
            with self._has_loads:
                self._loads.put_off(run.part(filling))
        if len(bad):
            self._settle(Loaded([], run.pool_pages[bad].tolist()))
        if len(ready):
            part = run.part(ready) if len(ready) < len(run) else run
            copy = self._copier.load(part.arena, part.arena_pages, part.pool_pages)
            self.gate.set_copying(part.pool_pages, copy)
            self._copying.append(_Copying(part, copy, started_ns))

    def _finish(self, copying: _Copying) -> None:
        """See that the bytes are there, and that they are the promised ones."""
        run = copying.run
        try:
            copying.copy.wait()
        except CopyFailed:
            log.exception("pages could not be copied to the device")
            self._settle(Loaded([], run.pool_pages.tolist()))
            return
        ready, filling, bad = run.states()
        good = run.pool_pages[ready].tolist()
        lost = run.pool_pages[np.union1d(filling, bad)].tolist() if len(good) < len(run) else []
        now_ns = time.monotonic_ns()  # copies stand one behind another: each counts from the last
        duration_ns, self._ended_ns = now_ns - max(copying.started_ns, self._ended_ns), now_ns
        num_bytes = len(run) * run.arena.page_bytes
        self._settle(Loaded(good, lost, num_bytes, duration_ns))

    def _settle(self, loaded: Loaded) -> None:
        self.gate.settle(loaded.good, loaded.bad)
        self._on_moved(loaded)

    def _on_stored(self, checksums: Checksums) -> None:
        self._on_moved(Stored(checksums))
