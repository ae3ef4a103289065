"""The executor of an engine's world: loads, steps, and memory by what it holds.

A pool or arena page holds the (layer, parent key, tokens) that it is the KV of, so that every page
a pass reads can be compared with what its row should find there. Loads and passes write when their
bytes would land, whoever holds the page by then.
"""

from collections import deque
from dataclasses import dataclass, field
from functools import partial

from loadtest.world.memory import PageLoad, each_page
from services.worker.core.effects import Effect, PageLoads
from services.worker.core.engine.engine import EngineCore
from services.worker.core.step import PlannedRow, Sampled, StepPlan, StepResult
from services.worker.core.turns.turn import Turn
from services.worker.device.tables import BlockTables
from shared.blocks import BlockKey, chain_keys, root_key, sequence_root
from shared.messages import TokenLogprobs
from tests.sim.engine_checks import check_plan
from tests.sim.engine_clients import next_token
from tests.sim.engine_kvstore import Content, FakeKvstore, content_of
from tests.sim.heap import MS, World

BLOCK_TOKENS = 4
US = 1_000
ROOT = root_key("model", "tenant")
NONSENSE = 5  # what a row gives whose turn's row before it failed
HOLE = -1  # in a page, where a token's KV was never computed


@dataclass(slots=True)
class Step:
    """A step that runs, or waits for the one before it.

    Attributes:
        turns: whose rows they are.
        tokens: of each row's turn, up to its new ones.
        void: rows whose turn's row failed in the step before: nobody may look at what they give.
    """

    plan: StepPlan
    turns: list[Turn]
    tokens: list[list[int]] = field(default_factory=list)
    failed: set[int] = field(default_factory=set)
    void: set[int] = field(default_factory=set)
    started_at_ns: int = 0


class EngineDevice(World):
    """What a worker's threads do for its engine.

    Attributes:
        pool_memory: what each pool page holds; absent: garbage.
        in_transfer: pool pages into which a load is under way, with when it ends and whether well.
        steps: the first one runs.
        outgrown: turns that became long sequences while they ran.
        tables_ahead: as the step planned last will find them.
    """

    core: EngineCore
    kvstore: FakeKvstore
    num_layers: int
    step_ns: int
    load_ns: int
    load_wait_ns: int
    bad_load_share: float

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.pool_memory: dict[int, Content] = {}
        self.in_transfer: dict[int, tuple[int, bool]] = {}
        self.steps: deque[Step] = deque()
        self.num_steps = 0
        self.num_carried = 0
        self.num_called_back = 0
        self.outgrown: set[str] = set()
        self._lane_free_at_ns = 0

    def make_tables(self) -> None:
        """Once the number of layers is known."""
        self.tables = BlockTables(self.num_layers)
        self.tables_ahead = BlockTables(self.num_layers)

    def feed(self, effects: list[Effect]) -> None:
        """Perform what an event led to."""
        raise NotImplementedError

    def load(self, runs: list[PageLoads]) -> None:
        """Begin these; the core hears of each page's end."""
        for load in (load for run in runs for load in each_page(run)):
            assert load.pool_page not in self.in_transfer, "two loads into one page"
            self.pool_memory.pop(load.pool_page, None)
            start_ns = max(self.now_ns, self._lane_free_at_ns)
            is_there = self._is_promised(load)
            if is_there:
                start_ns = max(start_ns, self.kvstore.ready_at_ns[load.arena_page])
            end_ns = self._lane_free_at_ns = start_ns + self.random.randrange(1, self.load_ns)
            is_good = is_there and load.arena_page not in self.kvstore.doomed
            is_good = is_good and self.random.random() >= self.bad_load_share
            self.in_transfer[load.pool_page] = (end_ns, is_good)
            self.after(end_ns - self.now_ns, partial(self._land, load, is_good))

    def _is_promised(self, load: PageLoad) -> bool:
        return self.kvstore.generations.get(load.arena_page) == load.generation

    def call_back(self, pages: list[int]) -> None:
        """Some of them are not loaded any more, those that have not begun."""
        taken = [page for page in pages if page in self.in_transfer and self.random.random() < 0.7]
        for page in taken:
            del self.in_transfer[page]
        self.num_called_back += len(taken)
        if taken:
            self.after(self.random.choice([0, 1 * MS]), partial(self._tell_called_back, taken))

    def _tell_called_back(self, pages: list[int]) -> None:
        self.feed(self.core.on_called_back(pages))

    def _land(self, load: PageLoad, is_good: bool) -> None:
        if self.in_transfer.get(load.pool_page, (0, False))[0] != self.now_ns:
            return  # it was called back
        planned_end, _ = self.in_transfer.pop(load.pool_page)
        assert planned_end == self.now_ns
        is_good = is_good and self._is_promised(load)
        if is_good:
            self.pool_memory[load.pool_page] = self.kvstore.arena[load.arena_page]
        else:
            self._void_rows(load.pool_page)
        page = [load.pool_page]

        def tell() -> None:
            good, bad = (page, []) if is_good else ([], page)
            self.feed(self.core.on_loaded(good, bad, self.now_ns))

        self.after(self.random.choice([0, 0, 1 * MS, 5 * MS]), tell)

    def _void_rows(self, page: int) -> None:
        """A load that was late to fail still fails the rows that wait for it."""
        if self.steps:
            step = self.steps[0]
            for index, row in enumerate(step.plan.rows()):
                if index in step.plan.awaited and page in self._history(step, index, row.start):
                    step.failed.add(index)

    def _history(self, step: Step, index: int, num_tokens: int) -> list[int]:
        """Pages, of all layers, that hold these tokens' KV."""
        blocks = self.tables.pages[:, step.plan.slots[index], : -(-num_tokens // BLOCK_TOKENS)]
        pages: list[int] = blocks.ravel().tolist()
        return pages

    def on_plan(self, plan: StepPlan) -> None:
        """Run it behind those that were planned before."""
        self.tables_ahead.enter(plan.entries)
        check_plan(self.core, plan, self.tables_ahead)
        self.note(f"plan {[(row.turn_id, row.start, row.end) for row in plan.rows()]}")
        self.num_steps += 1
        self.num_carried += len(plan.carried)
        self.steps.append(Step(plan, self.core.flights[-1].turns))
        short_max = self.core.limits.short_rope_max
        long = [self.steps[-1].turns[row] for row in plan.long.tolist()]
        self.outgrown |= {turn.request.turn_id for turn in long if turn.num_known <= short_max}
        if len(self.steps) == 1:
            self._start_step(set())

    def _start_step(self, void_slots: set[int]) -> None:
        """Run the first step that waits; what it gives for the turns in these slots is void."""
        step = self.steps[0]
        plan = step.plan
        step.started_at_ns = self.now_ns
        self.tables.enter(plan.entries)
        new, starts = self.tables.tokens(plan).tolist(), plan.query_starts.tolist()
        end_ns = self.now_ns + self.step_ns + 10 * US * plan.num_tokens
        for index, (row, turn) in enumerate(zip(plan.rows(), step.turns, strict=True)):
            step.tokens.append([*turn.tokens[: row.start], *new[starts[index] : starts[index + 1]]])
            awaited: list[int] = []
            if plan.slots[index] in void_slots:
                assert index in plan.following
                step.void.add(index)
            elif index in plan.awaited:
                awaited = self._history(step, index, row.start)
            for load_end_ns, is_good in (
                self.in_transfer[page] for page in awaited if page in self.in_transfer
            ):
                end_ns = max(end_ns, min(load_end_ns, self.now_ns + self.load_wait_ns))
                if not is_good or load_end_ns > self.now_ns + self.load_wait_ns:
                    step.failed.add(index)
            if any(
                page not in self.pool_memory and page not in self.in_transfer for page in awaited
            ):
                step.failed.add(index)
            if not awaited and index not in step.void:
                self._verify(step, index, row.start)
            self._write_new(step, index, row)
        self.after(end_ns - self.now_ns, self._end_step)

    def _write_new(self, step: Step, index: int, row: PlannedRow) -> None:
        """The KV of the row's new tokens, layer by layer. A page that is on its way is waited for
        first; where it holds less than it should, a hole stays."""
        known, slot = step.tokens[index], int(step.plan.slots[index])
        keys = self._parents(step, index, known)
        for number in range(row.start // BLOCK_TOKENS, -(-row.end // BLOCK_TOKENS)):
            first = number * BLOCK_TOKENS
            for layer in range(self.num_layers):
                page = int(self.tables.pages[layer, slot, number])
                tokens = known[first : first + BLOCK_TOKENS]
                content = content_of(layer, keys[number], tokens)
                if row.start <= first:
                    self.pool_memory[page] = content
                elif page in self.pool_memory:  # behind what it should hold already
                    old_layer, parent, old = self.pool_memory[page]
                    holes = (HOLE,) * (row.start - first - len(old))
                    new = (*old[: row.start - first], *holes, *tokens[row.start - first :])
                    self.pool_memory[page] = (old_layer, parent, new)

    def _parents(self, step: Step, index: int, known: list[int]) -> list[BlockKey]:
        """Parents of the blocks of a row's tokens: KV of a long sequence is of another kind."""
        short_max = self.core.limits.short_rope_max
        num_tokens = len(step.turns[index].tokens) if index in step.plan.long else len(known)
        root = sequence_root(ROOT, num_tokens, short_max)
        assert (root != ROOT) == (index in step.plan.long), "a row of the other kind"
        return [root, *chain_keys(root, known, BLOCK_TOKENS)]

    def _spoil(self, step: Step, index: int, row: PlannedRow) -> None:
        """What was computed from history that is not there is no KV of anything. What a page held
        before stays."""
        first, last = row.start // BLOCK_TOKENS, -(-row.end // BLOCK_TOKENS)
        blocks = self.tables.pages[:, step.plan.slots[index], first:last]
        for number, pages in enumerate(blocks.T.tolist(), first):
            num_kept = max(row.start - number * BLOCK_TOKENS, 0)
            for page in pages:
                if page in self.pool_memory:
                    layer, parent, old = self.pool_memory.pop(page)
                    if num_kept:
                        self.pool_memory[page] = (layer, parent, old[:num_kept])

    def _verify(self, step: Step, index: int, end: int) -> None:
        """The pages of a row hold, in every layer, the KV of its tokens up to `end`."""
        known, slot = step.tokens[index][:end], int(step.plan.slots[index])
        turn_id = step.plan.turn_ids[index]
        keys = self._parents(step, index, known)
        for number in range(-(-end // BLOCK_TOKENS)):
            first = number * BLOCK_TOKENS
            tokens = known[first : first + BLOCK_TOKENS]
            for layer in range(self.num_layers):
                page = int(self.tables.pages[layer, slot, number])
                held = self.pool_memory.get(page)
                assert held is not None, f"{turn_id} reads garbage in block {number}"
                held = (held[0], held[1], held[2][: len(tokens)])
                assert held == content_of(layer, keys[number], tokens), (
                    f"{turn_id} reads wrong KV: block {number}, layer {layer}: {held}"
                )

    def _end_step(self) -> None:
        step = self.steps[0]
        plan = step.plan
        result = StepResult([], step.failed, duration_ns=self.now_ns - step.started_at_ns)
        result.stall_ns = [0] * self.num_layers
        void_slots: set[int] = set()
        for index, row in enumerate(plan.rows()):
            if index in step.failed or index in step.void:
                void_slots.add(int(plan.slots[index]))
                self._spoil(step, index, row)
                is_told = row.is_sampled and index not in step.failed
                result.sampled.append(Sampled(NONSENSE) if is_told else None)
                continue
            if index in plan.awaited:
                self._write_new(step, index, row)  # behind the tokens that have come meanwhile
            self._verify(step, index, row.end)
            known = step.tokens[index]
            if index in plan.scoring:
                scores = [TokenLogprobs(token=token, logprob=0.0) for token in known[row.start :]]
                result.prompt_logprobs[index] = scores
            result.sampled.append(Sampled(next_token(known)) if row.is_sampled else None)
        self.tables.keep(plan, result.sampled)
        self.steps.popleft()
        if self.steps:
            self._start_step(void_slots)
        self.after(self.random.choice([0, 0, 50 * US]), partial(self._tell, result))

    def _tell(self, result: StepResult) -> None:
        self.feed(self.core.on_step(result, self.now_ns))
