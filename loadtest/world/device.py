"""A worker's device: pool memory by what it holds, loads from the arena, and the forward pass."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from loadtest.world.kvstore import checksum_of
from loadtest.world.memory import (
    GARBAGE,
    ArenaMemory,
    Content,
    Origin,
    PageLoad,
    each_page,
    origins,
)
from loadtest.world.model import BREAKER, KILLER
from loadtest.world.timeline import SECOND, US
from services.worker.core.effects import BlockWrite, PageLoads
from services.worker.core.step import PlannedRow, Sampled, StepPlan, StepResult
from services.worker.core.turn import Turn
from services.worker.device.tables import BlockTables
from shared.arena import PageState

if TYPE_CHECKING:
    from loadtest.world.model import Model
    from loadtest.world.worker import Worker

FETCH_TIMEOUT_NS = 2 * SECOND  # a promised page that has not come by then is recomputed
STALL_TIMEOUT_NS = SECOND  # how long a layer of a pass waits for its pages
LOAD_NS = STORE_NS = 500 * US
SLOW_STORE_SHARE, SLOW_STORE_NS = 0.05, 3 * SECOND  # of pages: the thread has no core for a while


@dataclass(slots=True)
class _Step:
    """The step under way.

    Attributes:
        turns: whose rows they are; a real device does not know.
        awaited: pool pages that it waits for, with the rows that do.
    """

    plan: StepPlan
    turns: list[Turn]
    awaited: dict[int, list[int]]
    failed: set[int]
    started_at_ns: int
    is_computed: bool = False


class Device:
    """What a worker's threads and its GPU do.

    Loads and passes write when their bytes would land, whoever holds the page by then.
    """

    def __init__(self, worker: "Worker", model: "Model") -> None:
        self._worker = worker
        self._model = model
        self._memory: dict[int, Content] = {}
        self._tables = BlockTables(model.num_layers)
        self._loading: dict[int, PageLoad] = {}  # by pool page
        self._copying: set[int] = set()  # of those, whose end is settled
        self._arena: ArenaMemory | None = None
        self._epoch = 0
        self._step: _Step | None = None

    @property
    def is_busy(self) -> bool:
        return self._step is not None

    @property
    def plan(self) -> StepPlan | None:
        """Of the step under way."""
        return None if self._step is None else self._step.plan

    def attach(self, arena: ArenaMemory, epoch: int) -> None:
        """Use this arena from now on; what is under way keeps the old."""
        self._arena = arena
        self._epoch = epoch

    def detach(self) -> None:
        """Store nothing any more: the leases end."""
        self._arena = None

    # Loads.

    def load(self, runs: list[PageLoads]) -> None:
        """Start these; each page ends with `Worker.on_loaded`."""
        for load in (load for run in runs for load in each_page(run)):
            assert load.pool_page not in self._loading, "two loads into one page"
            self._memory.pop(load.pool_page, None)
            self._loading[load.pool_page] = load
            arena = self._arena
            if arena is None or load.epoch != self._epoch:
                self._worker.later(0, partial(self._settle, load.pool_page, is_good=False))
                continue
            deadline_ns = self._worker.now_ns + FETCH_TIMEOUT_NS
            self._worker.later(FETCH_TIMEOUT_NS, partial(self._look, load, arena, 0))
            self._look(load, arena, deadline_ns)

    def _look(self, load: PageLoad, arena: ArenaMemory, deadline_ns: int) -> None:
        """Copy the page if it is there, wait if it is to come."""
        page = load.pool_page
        if self._loading.get(page) is not load or page in self._copying:
            return  # that one is over
        state = arena.promise(load.arena_page, load.generation)
        if state is PageState.READY:
            self._copying.add(page)
            delay_ns = self._worker.world.random.randrange(LOAD_NS) + 1
            self._worker.later(delay_ns, partial(self._copy, load, arena))
        elif state is PageState.FILLING and self._worker.now_ns < deadline_ns:
            look = partial(self._look, load, arena, deadline_ns)
            life = self._worker.life
            arena.watch(load.arena_page, lambda: self._worker.run(life, look))
        else:
            self._worker.later(0, partial(self._settle, page, is_good=False))
            self._copying.add(page)

    def _copy(self, load: PageLoad, arena: ArenaMemory) -> None:
        """The bytes are those promised if the word is still the same afterwards."""
        content = arena.contents[load.arena_page]
        is_good = arena.promise(load.arena_page, load.generation) is PageState.READY
        if is_good:
            self._memory[load.pool_page] = content
        self._settle(load.pool_page, is_good=is_good)

    def _settle(self, page: int, *, is_good: bool) -> None:
        del self._loading[page]
        self._copying.discard(page)
        if self._step is not None and page in self._step.awaited:
            rows = self._step.awaited.pop(page)
            if not is_good:
                self._step.failed.update(rows)
            self._end_if_over()
        self._worker.on_loaded(page, is_good=is_good)

    # Stores.

    def store(self, writes: list[BlockWrite], epoch: int) -> None:
        """Copy these blocks down, each on its own; each ends with `Worker.on_stored`."""
        for write in writes:
            self._store(write, self._arena, epoch, [])

    def _store(
        self, write: BlockWrite, arena: ArenaMemory | None, epoch: int, sums: list[int]
    ) -> None:
        """One page after the other, whoever has it by then."""
        if arena is None or self._arena is not arena or self._epoch != epoch:
            self._worker.later(0, partial(self._worker.on_stored, {write.number: []}))
            return
        if len(sums) == self._model.num_layers:
            self._worker.on_stored({write.number: sums})
            return
        layer = len(sums)
        content = self._memory.get(write.pool_pages[layer], GARBAGE)
        arena.contents[write.arena_pages[layer]] = content
        later = partial(self._store, write, arena, epoch, [*sums, checksum_of(content)])
        random = self._worker.world.random
        is_slow = random.random() < SLOW_STORE_SHARE
        self._worker.later(random.randrange(SLOW_STORE_NS if is_slow else STORE_NS) + 1, later)

    # Steps.

    def start(self, plan: StepPlan) -> None:
        """Run a step; it ends with `Worker.on_step`."""
        assert self._step is None
        worker, model = self._worker, self._model
        planned = worker.core._in_flight
        assert planned is not None and planned.plan is plan
        awaited: dict[int, list[int]] = {}
        failed: set[int] = set()
        self._tables.enter(plan.entries)
        for index, (row, turn) in enumerate(zip(plan.rows(), planned.turns, strict=True)):
            if index in plan.awaited:
                num_blocks = row.start // model.block_tokens
                for page in self._tables.pages[:, turn.slot, :num_blocks].ravel().tolist():
                    if page in self._loading:
                        awaited.setdefault(page, []).append(index)
                    elif page not in self._memory:
                        failed.add(index)
            self._write_new(turn, row)
        self._step = _Step(plan, planned.turns, awaited, failed, worker.now_ns)
        duration_ns = model.step_ns + model.token_ns * plan.num_tokens
        if any(turn.sampling.seed == KILLER for turn in planned.turns):
            worker.later(worker.world.random.randrange(duration_ns), worker.die_of_poison)
        worker.later(duration_ns, self._computed)

    def _computed(self) -> None:
        step = self._step
        assert step is not None
        step.is_computed = True
        if step.awaited:
            self._worker.later(STALL_TIMEOUT_NS, partial(self._give_up, step))
        self._end_if_over()

    def _give_up(self, step: _Step) -> None:
        """A layer that keeps the pass waiting is given up."""
        if self._step is step:
            for rows in step.awaited.values():
                step.failed.update(rows)
            step.awaited.clear()
            self._end_if_over()

    def _end_if_over(self) -> None:
        step = self._step
        if step is None or not step.is_computed or step.awaited:
            return
        plan = step.plan
        result = StepResult([], step.failed, duration_ns=self._worker.now_ns - step.started_at_ns)
        result.stall_ns = [0] * self._model.num_layers
        for index, (row, turn) in enumerate(zip(plan.rows(), step.turns, strict=True)):
            if turn.sampling.seed == BREAKER:
                result.broken[index] = "it cannot be computed"
            if index in step.failed or index in result.broken:
                result.sampled.append(None)
                continue
            self._verify(turn, row.end)
            sampled = None
            if row.is_sampled:
                sampled = Sampled(self._model.next_token(turn.tokens, self._worker.hardware))
            result.sampled.append(sampled)
        self._step = None
        self._worker.on_step(result)

    def _write_new(self, turn: Turn, row: PlannedRow) -> None:
        """The KV of the row's new tokens, layer by layer."""
        size = self._model.block_tokens
        chain = origins(self._root(turn), turn.tokens[: row.end], size)
        for number in range(row.start // size, -(-row.end // size)):
            first = number * size
            tokens = tuple(turn.tokens[first : min(row.end, first + size)])
            for layer in range(self._model.num_layers):
                page = int(self._tables.pages[layer, turn.slot, number])
                if row.start <= first:
                    self._memory[page] = (layer, chain[number], tokens)
                elif page in self._memory:  # behind what it should hold already
                    old_layer, origin, old = self._memory[page]
                    kept = old[: row.start - first]
                    self._memory[page] = (old_layer, origin, kept + tokens[len(kept) :])

    def _verify(self, turn: Turn, end: int) -> None:
        """The pages of a row hold, in every layer, the KV of its own tokens up to `end`."""
        size = self._model.block_tokens
        chain = origins(self._root(turn), turn.tokens[:end], size)
        for number in range(-(-end // size)):
            first = number * size
            tokens = tuple(turn.tokens[first : min(end, first + size)])
            for layer in range(self._model.num_layers):
                held = self._memory.get(int(self._tables.pages[layer, turn.slot, number]))
                assert held is not None, f"{turn.turn_id} reads garbage in block {number}"
                held = (held[0], held[1], held[2][: len(tokens)])
                assert held == (layer, chain[number], tokens), (
                    f"{turn.turn_id} reads wrong KV: block {number}, layer {layer}: {held}"
                )

    def _root(self, turn: Turn) -> Origin:
        return (turn.tenant, self._model.fingerprint)
