"""A worker's device: pool memory by what it holds, loads from the arena, and the forward pass."""

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from loadtest.world.kvstore import checksum_of
from loadtest.world.memory import GARBAGE, ArenaMemory, Content, Origin, origins
from loadtest.world.model import BREAKER, KILLER
from loadtest.world.timeline import SECOND, US
from services.worker.core.effects import (
    BlockWrite,
    PageLoad,
    Row,
    Sampled,
    StepPlan,
    StepResult,
)
from services.worker.core.turn import Turn
from shared.arena import PageState

if TYPE_CHECKING:
    from loadtest.world.model import Model
    from loadtest.world.worker import Worker

FETCH_TIMEOUT_NS = 2 * SECOND  # a promised page that has not come by then is recomputed
STALL_TIMEOUT_NS = SECOND  # how long a layer of a pass waits for its pages
LOAD_NS = 500 * US


@dataclass(slots=True)
class _Step:
    """The step under way.

    Attributes:
        awaited: pool pages that it waits for, with the rows that do.
        sums: checksums of the writes that have landed; None: none can be made on this connection.
    """

    plan: StepPlan
    arena: ArenaMemory | None
    awaited: dict[int, list[int]]
    failed: set[int]
    sums: list[list[int]] | None
    started_at_ns: int
    given_up: set[int] = field(default_factory=set)  # writes whose lease has ended
    is_computed: bool = False


class Device:
    """What a worker's threads and its GPU do.

    Loads and passes write when their bytes would land, whoever holds the page by then.
    """

    def __init__(self, worker: "Worker", model: "Model") -> None:
        self._worker = worker
        self._model = model
        self._memory: dict[int, Content] = {}
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

    def load(self, loads: list[PageLoad]) -> None:
        """Start these; each ends with `Worker.on_loaded`."""
        for load in loads:
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

    # Steps.

    def start(self, plan: StepPlan) -> None:
        """Run a step; it ends with `Worker.on_step`."""
        assert self._step is None
        worker, model = self._worker, self._model
        awaited: dict[int, list[int]] = {}
        failed: set[int] = set()
        for index, row in enumerate(plan.rows):
            pages: list[int] = plan.page_tables[:, index, : row.awaits].ravel().tolist()
            for page in pages:
                if page in self._loading:
                    awaited.setdefault(page, []).append(index)
                elif page not in self._memory:
                    failed.add(index)
            self._write_new(plan, index, row)
        can_write = self._arena is not None and plan.epoch == self._epoch
        sums = [[0] * model.num_layers for _ in plan.writes] if can_write else None
        self._step = step = _Step(plan, self._arena, awaited, failed, sums, worker.now_ns)
        duration_ns = model.step_ns + model.token_ns * plan.num_tokens
        for number, write in enumerate(plan.writes if can_write else ()):
            for layer in range(model.num_layers):
                delay_ns = worker.world.random.randrange(duration_ns)
                worker.later(delay_ns, partial(self._store, step, number, write, layer))
        if any(row.turn.sampling.seed == KILLER for row in plan.rows):
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
        for index, row in enumerate(plan.rows):
            if row.turn.sampling.seed == BREAKER:
                result.broken[index] = "it cannot be computed"
            if index in step.failed or index in result.broken:
                result.sampled.append(None)
                continue
            self._verify(plan, index, row.end)
            token = (
                self._model.next_token(row.turn.tokens, self._worker.hardware)
                if row.sample
                else None
            )
            result.sampled.append(None if token is None else Sampled(token))
        if step.sums is not None:
            self._spoil(step, {*step.failed, *result.broken}, step.sums)
            result.checksums = [
                [] if number in step.given_up else sums for number, sums in enumerate(step.sums)
            ]
        self._step = None
        self._worker.on_step(result)

    def _spoil(self, step: _Step, rows: set[int], sums: list[list[int]]) -> None:
        """What a row computed on history that it did not have, or could not compute, is garbage
        with a good checksum.
        """
        if step.arena is None or self._arena is not step.arena or self._epoch != step.plan.epoch:
            return  # the pages may be others' by now
        for number, write in enumerate(step.plan.writes):
            if write.row in rows and number not in step.given_up:
                for layer, page in enumerate(write.arena_pages):
                    step.arena.contents[page] = GARBAGE
                    sums[number][layer] = checksum_of(GARBAGE)

    def _store(self, step: _Step, number: int, write: BlockWrite, layer: int) -> None:
        """One page of a block goes down while the pass runs."""
        assert step.arena is not None and step.sums is not None
        if self._arena is not step.arena or self._epoch != step.plan.epoch:
            step.given_up.add(number)
            return
        content = self._memory.get(write.pool_pages[layer])
        if content is not None:
            step.arena.contents[write.arena_pages[layer]] = content
            step.sums[number][layer] = checksum_of(content)

    def _write_new(self, plan: StepPlan, index: int, row: Row) -> None:
        """The KV of the row's new tokens, layer by layer."""
        size = self._model.block_tokens
        chain = origins(self._root(row.turn), row.turn.tokens[: row.end], size)
        for number in range(row.start // size, -(-row.end // size)):
            first = number * size
            tokens = tuple(row.turn.tokens[first : min(row.end, first + size)])
            for layer in range(self._model.num_layers):
                page = int(plan.page_tables[layer, index, number])
                if row.start <= first:
                    self._memory[page] = (layer, chain[number], tokens)
                elif page in self._memory:  # behind what it should hold already
                    old_layer, origin, old = self._memory[page]
                    kept = old[: row.start - first]
                    self._memory[page] = (old_layer, origin, kept + tokens[len(kept) :])

    def _verify(self, plan: StepPlan, index: int, end: int) -> None:
        """The pages of a row hold, in every layer, the KV of its own tokens up to `end`."""
        turn, size = plan.rows[index].turn, self._model.block_tokens
        chain = origins(self._root(turn), turn.tokens[:end], size)
        for number in range(-(-end // size)):
            first = number * size
            tokens = tuple(turn.tokens[first : min(end, first + size)])
            for layer in range(self._model.num_layers):
                held = self._memory.get(int(plan.page_tables[layer, index, number]))
                assert held is not None, f"{turn.turn_id} reads garbage in block {number}"
                held = (held[0], held[1], held[2][: len(tokens)])
                assert held == (layer, chain[number], tokens), (
                    f"{turn.turn_id} reads wrong KV: block {number}, layer {layer}: {held}"
                )

    def _root(self, turn: Turn) -> Origin:
        return (turn.tenant, self._model.fingerprint)
