"""Loads that wait: in what order they are copied, and which are still to come to the arena.

Pages that wait for their bytes stand beside the queue, not in it: a session on a slow disk keeps
no turn waiting whose pages are there.
"""

from collections.abc import Set
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush

import numpy as np

from services.worker.core.effects import PageLoads
from shared.arena import Arena, Pages, PageState, Words
from shared.wire.urgency import DEMAND_PRIORITY, Order

# A page that is later than was promised by so much, while no other came, does not come any more.
OVERDUE_NS = 2_000_000_000
_STATES = tuple(map(int, (PageState.READY, PageState.FILLING, PageState.BAD)))
RUN_BYTES = 32 * 1024 * 1024  # copied at once: a more urgent load waits for no more,
RUN_PAGES = 64  # or for so many pages, if those are more


@dataclass(order=True, slots=True)
class LoadRun:
    """Pages of one layer to copy, in arrays of one length.

    Attributes:
        deadline_ns: what has not come by then fails.
    """

    order: Order
    priority: int = field(compare=False)
    arena_pages: Pages = field(compare=False)
    generations: Words = field(compare=False)
    pool_pages: Pages = field(compare=False)
    arena: Arena = field(compare=False)
    deadline_ns: int = field(compare=False)

    @classmethod
    def of(cls, loads: PageLoads, order: Order, arena: Arena, deadline_ns: int) -> "LoadRun":
        """All of these loads."""
        return cls(
            order,
            loads.priority,
            np.array(loads.arena_pages, np.int64),
            np.array(loads.generations, np.uint64),
            np.array(loads.pool_pages, np.int64),
            arena,
            deadline_ns,
        )

    def __len__(self) -> int:
        return len(self.pool_pages)

    def part(self, at: Pages | slice) -> "LoadRun":
        """Its pages at these places."""
        return replace(
            self,
            arena_pages=self.arena_pages[at],
            generations=self.generations[at],
            pool_pages=self.pool_pages[at],
        )

    def states(self) -> list[Pages]:
        """Which of its pages are there, are still to come, and will not come: places in it."""
        found = self.arena.promises(self.arena_pages, self.generations)
        return [np.flatnonzero(found == kind) for kind in _STATES]


class LoadQueue:
    """Not thread-safe.

    Args:
        pages_max: that may wait; of more, the least urgent are left out.
    """

    def __init__(self, pages_max: int) -> None:
        self._pages_max = pages_max
        self._num_pages = 0
        self._runs: list[LoadRun] = []  # a heap
        self._unready: list[LoadRun] = []
        self._patient_until_ns = 0

    def __len__(self) -> int:
        """Pages that wait."""
        return self._num_pages

    def push(self, run: LoadRun) -> list[int]:
        """Enter a run; returns the pool pages of what there is no room for."""
        heappush(self._runs, run)
        self._num_pages += len(run)
        left_out: list[int] = []
        while self._num_pages > self._pages_max:
            left_out += self._leave_out(self._num_pages - self._pages_max)
        return left_out

    def pop(self) -> LoadRun | None:
        """The most urgent pages to be looked at, so many at most as are copied at once."""
        if not self._runs:
            return None
        run = heappop(self._runs)
        num_most = max(RUN_BYTES // run.arena.page_bytes, RUN_PAGES)
        if len(run) > num_most:
            heappush(self._runs, run.part(slice(num_most, None)))
            run = run.part(slice(num_most))
        self._num_pages -= len(run)
        return run

    def put_off(self, run: LoadRun) -> None:
        """These pages' bytes have still to come."""
        self._unready.append(run)
        self._num_pages += len(run)

    def look(self, now_ns: int) -> list[int]:
        """Queue what has come meanwhile; returns the pool pages of what will not come. While pages
        come, whosever they are, those that are overdue may only be behind them."""
        waiting, self._unready = self._unready, []
        failed: list[int] = []
        states = [run.states() for run in waiting]
        if any(len(ready) for ready, _, _ in states):
            self._patient_until_ns = now_ns + OVERDUE_NS
        for run, found in zip(waiting, states, strict=True):
            ready, filling, bad = found
            if now_ns >= max(run.deadline_ns, self._patient_until_ns):
                filling, bad = filling[:0], np.sort(np.concatenate([filling, bad]))
            if len(ready):
                heappush(self._runs, run.part(ready))
            if len(filling):
                self._unready.append(run.part(filling) if len(filling) < len(run) else run)
            failed += run.pool_pages[bad].tolist()
        self._num_pages -= len(failed)
        return failed

    def take_out(self, pool_pages: Set[int]) -> list[int]:
        """Leave these pages of prefetches out; returns those that were waiting."""
        taken: list[int] = []
        wanted = np.array(list(pool_pages), np.int64)
        for runs in (self._runs, self._unready):
            kept: list[LoadRun] = []
            for run in runs:
                if run.priority >= DEMAND_PRIORITY:
                    kept.append(run)
                    continue
                is_taken = np.isin(run.pool_pages, wanted)
                taken += run.pool_pages[is_taken].tolist()
                if not is_taken.all():
                    kept.append(run.part(np.flatnonzero(~is_taken)) if is_taken.any() else run)
            runs[:] = kept
        heapify(self._runs)
        self._num_pages -= len(taken)
        return taken

    def _leave_out(self, num_pages: int) -> list[int]:
        """Take out the least urgent run, or so many of its pages."""
        least = max([*self._runs, *self._unready])
        runs = self._runs if any(run is least for run in self._runs) else self._unready
        runs[:] = [run for run in runs if run is not least]
        num_kept = max(len(least) - num_pages, 0)
        if num_kept:
            runs.append(least.part(slice(num_kept)))
        heapify(self._runs)
        left_out: list[int] = least.pool_pages[num_kept:].tolist()
        self._num_pages -= len(left_out)
        return left_out
