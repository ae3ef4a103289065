"""Loads that wait: in what order they are copied, and which are still to come to the arena.

Pages that wait for their bytes stand beside the queue, not in it: a session on a slow disk keeps
no turn waiting whose pages are there.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush

import numpy as np

from services.worker.core.effects import PageLoads
from shared.arena import Arena, PageState
from shared.wire.urgency import DEMAND_PRIORITY, Order

# A page that is later than was promised by so much, while no other came, does not come any more.
OVERDUE_NS = 2_000_000_000
RUN_PAGES = 64  # copied at once: a more urgent load waits for no more


@dataclass(order=True, slots=True)
class LoadRun:
    """Pages of one layer to copy.

    Attributes:
        deadline_ns: what has not come by then fails.
    """

    order: Order
    loads: PageLoads = field(compare=False)
    arena: Arena = field(compare=False)
    deadline_ns: int = field(compare=False)

    def __len__(self) -> int:
        return len(self.loads.pool_pages)

    def part(self, at: Sequence[int]) -> "LoadRun":
        """Its pages at these places."""
        old = self.loads
        arena_pages, generations, pool_pages = (
            [each[place] for place in at]
            for each in (old.arena_pages, old.generations, old.pool_pages)
        )
        loads = replace(
            old, arena_pages=arena_pages, generations=generations, pool_pages=pool_pages
        )
        return replace(self, loads=loads)

    def states(self) -> list[list[int]]:
        """Which of its pages are there, are still to come, and will not come: places in it."""
        found = self.arena.promises(self.loads.arena_pages, self.loads.generations)
        kinds = (PageState.READY, PageState.FILLING, PageState.BAD)
        return [np.flatnonzero(found == kind).tolist() for kind in kinds]


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
        if len(run) > RUN_PAGES:
            heappush(self._runs, run.part(range(RUN_PAGES, len(run))))
            run = run.part(range(RUN_PAGES))
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
        if any(ready for ready, _, _ in states):
            self._patient_until_ns = now_ns + OVERDUE_NS
        for run, found in zip(waiting, states, strict=True):
            ready, filling, bad = found
            if now_ns >= max(run.deadline_ns, self._patient_until_ns):
                filling, bad = [], sorted(filling + bad)
            if ready:
                heappush(self._runs, run.part(ready))
            if filling:
                self._unready.append(run.part(filling) if ready or bad else run)
            failed += [run.loads.pool_pages[at] for at in bad]
        self._num_pages -= len(failed)
        return failed

    def take_out(self, pool_pages: Set[int]) -> list[int]:
        """Leave these pages of prefetches out; returns those that were waiting."""
        taken: list[int] = []
        for runs in (self._runs, self._unready):
            kept: list[LoadRun] = []
            for run in runs:
                if run.loads.priority >= DEMAND_PRIORITY:
                    kept.append(run)
                    continue
                pages = run.loads.pool_pages
                stay = [at for at, page in enumerate(pages) if page not in pool_pages]
                if len(stay) == len(pages):
                    kept.append(run)
                    continue
                taken += [page for page in pages if page in pool_pages]
                if stay:
                    kept.append(run.part(stay))
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
            runs.append(least.part(range(num_kept)))
        heapify(self._runs)
        left_out = least.loads.pool_pages[num_kept:]
        self._num_pages -= len(left_out)
        return left_out
