"""A GPU by its latency profile: passes and copies take their time, and nothing is in its pages.

It does what `loadtest.sim.services.device` does without content, in runs of pages instead of single
ones.
A pass goes through its layers evenly, and waits at one for history that is still on its way.
"""

from collections import deque
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from typing import Protocol

from loadtest.cluster.arena import ClusterArena
from loadtest.cluster.links import Link
from loadtest.cluster.measured import STEP_HOST_NS, STORING_SHARE
from loadtest.cluster.plant import Plant
from loadtest.sim.timeline import MS, SECOND, Action
from services.worker.core.effects import BlockWrite, PageLoads
from services.worker.core.step import Sampled, StepPlan, StepResult
from services.worker.core.turns.turn import Turn
from shared.arena import PageState
from shared.wire.urgency import Order, load_order

FETCH_TIMEOUT_NS = 2 * SECOND  # a page that is overdue by so much does not come any more
SAID = Sampled(1)  # what the model says, always
COPY_BYTES_MAX = 8 << 20  # what a more urgent copy may have to wait for


class Owner(Protocol):
    """The worker that a device is in."""

    @property
    def now_ns(self) -> int:
        """Its monotonic clock."""

    def later(self, delay_ns: int, action: Action) -> None:
        """Do it in `delay_ns`, in this life."""

    def on_runs_loaded(self, good: list[int], bad: list[int]) -> None:
        """Loads into these pool pages ended."""

    def on_called_back(self, pages: list[int]) -> None:
        """Nothing is loaded into these pool pages."""

    def on_stored(self, checksums: dict[int, list[int]]) -> None:
        """Writes are over."""

    def on_step(self, result: StepResult) -> None:
        """The first step that was given ended."""


@dataclass(slots=True, eq=False)
class _Run:
    """Pages on their way into the pool, of one layer.

    Attributes:
        pages: pool page -> where it comes from, and under which generation.
        num_filling: of them, are not in the arena yet.
    """

    pages: dict[int, tuple[int, int]]
    order: Order
    arena: ClusterArena
    num_filling: int = 0
    is_copying: bool = False


@dataclass(slots=True, eq=False)
class _Step:
    """A step that runs, or waits for the one before it.

    Attributes:
        awaited: pool pages that it waits for: rows that do, and their layer.
        come_at_ns: by layer, when the last page came that it waited for.
        void: rows whose turn's row failed in the step before.
    """

    plan: StepPlan
    awaited: dict[int, tuple[int, list[int]]] = field(default_factory=dict)
    come_at_ns: dict[int, int] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)
    void: set[int] = field(default_factory=set)
    started_at_ns: int = 0
    compute_ns: int = 0
    is_given_up: bool = False


class CostDevice:
    """Attributes:
    page_ns: what a page's copy takes.
    """

    def __init__(self, owner: Owner, plant: Plant) -> None:
        self._owner = owner
        self._plant = plant
        self._h2d, self._d2h = Link(plant.pcie_bytes_per_s), Link(plant.pcie_bytes_per_s)
        self._unpack_ns = 0.0  # for pages that came, before the next step
        self._arena: ClusterArena | None = None
        self._epoch = 0
        self._steps: deque[_Step] = deque()
        self._runs: dict[int, _Run] = {}  # by pool page
        self._ready: list[tuple[Order, int, _Run]] = []
        self._num_asked = 0
        self._is_copying = False
        self._missing: set[int] = set()  # pool pages whose latest load failed

    @property
    def page_ns(self) -> int:
        return round(self._plant.page_bytes * SECOND / self._plant.pcie_bytes_per_s)

    @property
    def is_busy(self) -> bool:
        return bool(self._steps)

    def attach(self, arena: ClusterArena, epoch: int) -> None:
        """Use this arena from now on."""
        self._arena = arena
        self._epoch = epoch

    def detach(self) -> None:
        """Store nothing any more."""
        self._arena = None

    def check_stored(self, writes: list[BlockWrite]) -> None:
        """Nothing is in pages here."""

    # Loads.

    def load(self, runs: list[PageLoads]) -> None:
        """Start these; each page ends with `Owner.on_runs_loaded`."""
        pages_max = max(COPY_BYTES_MAX // self._plant.page_bytes, 1)
        for run in runs:
            self._missing.difference_update(run.pool_pages)
            arena = self._arena
            if arena is None or run.epoch != self._epoch:
                self._owner.later(0, partial(self._end, list(run.pool_pages), []))
                continue
            sources = list(zip(run.arena_pages, run.generations, strict=True))
            for first in range(0, len(sources), pages_max):
                part = slice(first, first + pages_max)
                pages = dict(zip(run.pool_pages[part], sources[part], strict=True))
                self._begin_run(run, pages, arena)

    def _begin_run(
        self, run: PageLoads, pages: dict[int, tuple[int, int]], arena: ClusterArena
    ) -> None:
        self._num_asked += 1
        new = _Run(pages, load_order(run.priority, run.layer, self._num_asked), arena)
        self._runs.update(dict.fromkeys(pages, new))
        come = partial(self._on_come, new)
        words = arena.words
        for page, generation in pages.values():
            if words[page] == (generation, PageState.FILLING):
                new.num_filling += 1
                arena.watch(page, come)
        if new.num_filling:
            overdue_ns = max(run.ready_at_ns - self._owner.now_ns, 0) + FETCH_TIMEOUT_NS
            self._owner.later(overdue_ns, partial(self._on_overdue, new))
        else:
            self._on_ready(new)

    def _on_come(self, run: _Run) -> None:
        run.num_filling -= 1
        if not run.num_filling:
            self._on_ready(run)

    def _on_overdue(self, run: _Run) -> None:
        if run.num_filling > 0:
            run.num_filling = -1  # a page that comes now comes too late
            self._on_ready(run)

    def _on_ready(self, run: _Run) -> None:
        self._num_asked += 1
        heappush(self._ready, (run.order, self._num_asked, run))
        if not self._is_copying:
            self._copy_next()

    def _copy_next(self) -> None:
        """The most urgent run that is in the arena."""
        self._is_copying = bool(self._ready)
        if not self._ready:
            return
        run = heappop(self._ready)[2]
        run.is_copying = True
        now_ns = self._owner.now_ns
        done_at_ns = self._h2d.take(len(run.pages) * self._plant.page_bytes, now_ns)
        self._owner.later(done_at_ns - now_ns, partial(self._on_copied, run))

    def _on_copied(self, run: _Run) -> None:
        words = run.arena.words
        good: list[int] = []
        bad: list[int] = []
        for pool_page, (page, generation) in run.pages.items():
            is_good = words[page] == (generation, PageState.READY)
            (good if is_good else bad).append(pool_page)
            del self._runs[pool_page]
        self._unpack_ns += len(good) * self._plant.unpack_page_ns
        self._copy_next()
        self._end(bad, good)

    def _end(self, bad: list[int], good: list[int]) -> None:
        self._missing.update(bad)
        step = self._steps[0] if self._steps else None
        if step is not None and step.awaited:
            now_ns = self._owner.now_ns
            for page in good:
                if (waits := step.awaited.pop(page, None)) is not None:
                    step.come_at_ns[waits[0]] = now_ns
            for page in bad:
                if (waits := step.awaited.pop(page, None)) is not None:
                    step.failed.update(waits[1])
            if not step.awaited:
                self._on_history(step)
        self._owner.on_runs_loaded(good, bad)

    def call_back(self, pages: list[int]) -> None:
        """Load nothing into these pages, but for those whose copy was started."""
        taken = []
        for page in pages:
            run = self._runs.get(page)
            if run is None or run.is_copying:
                continue
            assert not any(page in step.awaited for step in self._steps), "a step waits for it"
            del run.pages[page]
            del self._runs[page]
            taken.append(page)
        if taken:
            self._owner.later(0, partial(self._owner.on_called_back, taken))

    # Stores.

    def store(self, writes: list[BlockWrite], epoch: int) -> None:
        """Copy these blocks down together."""
        now_ns, layers = self._owner.now_ns, self._plant.num_layers
        is_there = self._arena is not None and epoch == self._epoch
        sums = [1] * layers if is_there else []
        num_bytes = len(writes) * layers * self._plant.page_bytes
        done_at_ns = self._d2h.take(num_bytes, now_ns) if is_there else now_ns
        stored = {write.number: sums for write in writes}
        self._owner.later(done_at_ns - now_ns, partial(self._owner.on_stored, stored))

    # Steps.

    def start(self, plan: StepPlan, turns: list[Turn]) -> None:
        """Run a step after those that were given before; it ends with `Owner.on_step`."""
        self._steps.append(_Step(plan))
        if len(self._steps) == 1:
            self._begin(set())

    def _begin(self, void_slots: set[int]) -> None:
        step = self._steps[0]
        plan = step.plan
        step.started_at_ns = self._owner.now_ns
        if void_slots:
            slots: list[int] = plan.slots.tolist()
            step.void = {row for row in plan.following.tolist() if slots[row] in void_slots}
        for row, layers in plan.awaited.items():
            self._await(step, row, layers)
        num_decodes = plan.num_decodes
        num_prefill = plan.num_tokens - num_decodes
        context = sum(plan.context_lens.tolist())
        compute_ms = self._plant.profile.step_ms(num_prefill, num_decodes, context)
        if self._d2h.free_at_ns > step.started_at_ns:
            compute_ms *= 1 + STORING_SHARE
        host_ns = STEP_HOST_NS * self._plant.grain
        step.compute_ns = round(compute_ms * MS + host_ns + self._unpack_ns)
        self._unpack_ns = 0.0
        if not step.awaited:
            self._owner.later(step.compute_ns, partial(self._finish, step))
            return
        for row, patience_ns in plan.patience_ns.items():
            self._owner.later(step.compute_ns + patience_ns, partial(self._give_up, step, row))

    def _await(self, step: _Step, row: int, layers: list[list[int]]) -> None:
        for layer, pages in enumerate(layers):
            for page in pages:
                if page in self._runs:
                    step.awaited.setdefault(page, (layer, []))[1].append(row)
                elif page in self._missing:
                    step.failed.add(row)

    def _give_up(self, step: _Step, row: int) -> None:
        """A row's history has kept the pass waiting for long enough."""
        if not self._steps or self._steps[0] is not step or not step.awaited:
            return
        for page, (_, rows) in list(step.awaited.items()):
            if row in rows:
                step.failed.add(row)
                rows.remove(row)
                if not rows:
                    del step.awaited[page]
        if not step.awaited:
            self._on_history(step)

    def _on_history(self, step: _Step) -> None:
        """All of it has come, or is not waited for: the pass goes through the layers behind."""
        num_layers = self._plant.num_layers
        at_ns, done = step.started_at_ns, 0
        for layer in sorted(step.come_at_ns):
            at_ns += step.compute_ns * layer // num_layers - step.compute_ns * done // num_layers
            at_ns, done = max(at_ns, step.come_at_ns[layer]), layer
        at_ns += step.compute_ns - step.compute_ns * done // num_layers
        now_ns = self._owner.now_ns
        self._owner.later(max(at_ns - now_ns, 0), partial(self._finish, step))

    def _finish(self, step: _Step) -> None:
        plan = step.plan
        assert self._steps[0] is step
        self._steps.popleft()
        now_ns = self._owner.now_ns
        sampled: list[Sampled | None] = [None if each is None else SAID for each in plan.sampling]
        result = StepResult(sampled, step.failed)
        for row in step.failed:
            sampled[row] = None
        result.started_at_ns = step.started_at_ns
        result.duration_ns = now_ns - step.started_at_ns
        result.stall_ns = [0] * self._plant.num_layers
        result.stall_ns[0] = max(result.duration_ns - step.compute_ns, 0)
        slots: list[int] = plan.slots.tolist() if step.failed or step.void else []
        if self._steps:
            self._begin({slots[row] for row in step.failed | step.void})
        self._owner.on_step(result)
