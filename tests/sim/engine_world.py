"""Virtual time around the production `EngineCore`: a shell, an executor, a kvstore and frontends.

Memory is modelled: a pool or arena page holds the (layer, parent key, tokens) that it is the KV of,
so that every page a pass reads can be compared with what its row should find there. Loads and
passes write when their bytes would land, whoever holds the page by then.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop

from loadtest.world.memory import PageLoad, each_page
from services.worker.core.effects import (
    BlockWrite,
    CommitBlocks,
    Effect,
    Emit,
    Ended,
    LeasePages,
    LoadPages,
    PageLoads,
    ReleaseTicket,
    ReturnPages,
    StageSession,
    StageTurn,
    StoreBlocks,
)
from services.worker.core.engine import EngineCore
from services.worker.core.integrity import check_integrity
from services.worker.core.limits import EngineLimits
from services.worker.core.pages import PagePool
from services.worker.core.step import PlannedRow, Sampled, StepPlan, StepResult
from services.worker.core.turn import Turn
from services.worker.device.tables import BlockTables
from shared.blocks import BlockKey, chain_keys, root_key
from shared.ids import DEFAULT_TENANT, FrontendId, SessionId
from shared.messages import TokenLogprobs
from shared.owners import OwnerKey, owner_key
from tests.sim.engine_checks import (
    check_empty,
    check_forgotten,
    check_plan,
    check_turns,
)
from tests.sim.engine_clients import END_TOKEN, ClientTurn, next_token
from tests.sim.engine_kvstore import Content, FakeKvstore, content_of
from tests.sim.heap import MS, World

BLOCK_TOKENS = 4
US = 1_000
ROOT = root_key("model", "tenant")
EVENTS_MAX = 20_000
NONSENSE = 5  # what a row gives whose turn's row before it failed


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


class EngineWorld(World):
    """One worker's engine and all it talks to.

    Attributes:
        pool_memory: what each pool page holds; absent: garbage.
        in_transfer: pool pages into which a load is under way, with when it ends and whether well.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        rng = self.random
        self.num_layers = rng.choice([1, 2, 3])
        num_pages = self.num_layers * rng.choice([8, 12, 16, 24]) + rng.randrange(self.num_layers)
        limits = EngineLimits(
            max_model_len=rng.choice([28, 60, 100]),
            prefill_tokens_max=rng.choice([3, 8, 16, 64]),
            turns_running_max=rng.choice([2, 4, 16]),
            stage_timeout_min_ns=1 * MS,
            stage_timeout_max_ns=rng.choice([2, 20]) * MS,
            lease_target_blocks=rng.choice([2, 8]),
        )
        pool = PagePool(num_pages, self.num_layers)
        self.core = EngineCore(limits, pool, 1024, frozenset({END_TOKEN}), BLOCK_TOKENS)
        self.core.estimates.prefill_tokens_per_s = rng.choice([0.0, 0.0, 0.0, 1e9])
        self.kvstore = FakeKvstore(
            num_pages=self.num_layers * rng.choice([4, 16, 60]),
            num_layers=self.num_layers,
            random=rng,
            disk_ns=rng.choice([2 * US, 5 * MS]),
            doomed_share=rng.choice([0.0, 0.1, 0.3]),
        )
        self.step_ns = rng.choice([300 * US, 300 * US, 8 * MS])
        self.slow_ns = rng.choice([1 * MS, 5 * MS])
        self.bad_load_share = rng.choice([0.0, 0.05, 0.3])
        self.load_ns = rng.choice([40 * US, 1 * MS])
        self.load_wait_ns = rng.choice([1, 10]) * MS
        self.life = 0
        self.pool_memory: dict[int, Content] = {}
        self.in_transfer: dict[int, tuple[int, bool]] = {}
        self._lane_free_at_ns = 0
        self.clients: dict[str, ClientTurn] = {}
        self.sessions: dict[SessionId, list[int]] = {}
        self.forgotten: set[OwnerKey] = set()
        self.num_private = 0
        self.on_client_done: Callable[[ClientTurn], None] = lambda client: None
        self.tickets_open: set[int] = set()
        self.tables = BlockTables(self.num_layers)
        self.tables_ahead = BlockTables(self.num_layers)  # as the step planned last will find them
        self.steps: deque[Step] = deque()  # the first one runs
        self.num_steps = 0
        self.num_carried = 0
        self._wake_at_ns: int | None = None
        if rng.random() < 0.9:
            self.core.writeback.connect(1)

    def run(self) -> None:
        """Until nothing is left to happen; then nothing may be left over."""
        for _ in range(EVENTS_MAX):
            if not self._heap:
                break
            self.now_ns, _, action = heappop(self._heap)
            action()
            self._check()
        else:
            raise AssertionError("no end of events: a livelock")
        assert not self.steps
        for client in self.clients.values():
            client.check_over()
        check_empty(self.core)
        assert not self.tickets_open, "a ticket was never released"
        assert self.kvstore.leased == set(self.core.writeback._stock), "a lease was lost"

    def submit(self, client: ClientTurn) -> None:
        """Send a turn, or the next attempt at it, to the worker."""
        turn = Turn(
            turn_id=client.turn_id,
            attempt=client.attempt,
            frontend_id=FrontendId("f"),
            tenant=DEFAULT_TENANT,
            session_id=client.session_id,
            root=ROOT,
            tokens=client.prompt + client.got,
            num_generated_before=len(client.got),
            sampling=client.sampling,
            arrived_at_ns=self.now_ns,
            block_tokens=BLOCK_TOKENS,
            priority=client.priority,
        )
        turn.is_private = turn.owner in self.forgotten  # as its frontend says
        self.clients[client.turn_id] = client
        self.note(f"turn {client.turn_id}/{client.attempt}: {len(turn.tokens)} tokens")
        self.feed(self.core.on_turn(turn, self.now_ns))

    def cancel(self, client: ClientTurn) -> None:
        """The client hangs up."""
        client.is_cancelled = True
        self.note(f"cancel {client.turn_id}")
        self.feed(self.core.on_cancel(client.turn_id))

    def forget(self, session_id: SessionId) -> None:
        """A session is deleted, perhaps while its turn runs: here, then below."""
        owner = owner_key(DEFAULT_TENANT, session_id)
        keys = chain_keys(ROOT, self.sessions[session_id], BLOCK_TOKENS)
        self.note(f"forget {session_id}")
        self.sessions[session_id] = []
        self.forgotten.add(owner)
        self.num_private += any(turn.owner == owner for turn in self.core.running)
        _, effects = self.core.on_forget(owner, keys)
        assert not self.core.pool.blocks.keys() & set(keys)
        self.kvstore.delete(owner, keys)
        self.feed(effects)

    def advise(self, session_id: SessionId, priority: int) -> None:
        """A session is expected."""
        self.feed(self.core.on_prefetch(DEFAULT_TENANT, session_id, priority))

    def lose_kvstore(self, *, is_restart: bool) -> None:
        """The kvstore is cut off; a new one has lost its arena, an old one forgot the worker."""
        self.note(f"lose kvstore restart={is_restart}")
        self.life += 1
        if is_restart:
            self.kvstore.restart()
        else:
            self.kvstore.reopen()

    def disconnect(self) -> None:
        """The worker notices that there is no kvstore."""
        self.core.writeback.disconnect()
        self.feed([])

    def connect(self) -> None:
        """The kvstore knows the worker, perhaps again."""
        self.note("connect")
        self.core.writeback.connect(1)
        self.feed([])

    def feed(self, effects: list[Effect]) -> None:
        """The shell: perform an event's effects, then plan the next step if it is time."""
        self._perform(effects)
        at_ns = self.core.plan_at_ns()
        while at_ns is not None and at_ns <= self.now_ns:
            plan, effects = self.core.plan_step(self.now_ns)
            self._perform(effects)
            if plan is None:
                break
            self._on_plan(plan)
            at_ns = self.core.plan_at_ns()
        if self.core.flights:
            if at_ns is not None and at_ns > self.now_ns:
                self.after(at_ns - self.now_ns, partial(self.feed, []))
        elif (deadline_ns := self.core.next_deadline_ns()) is not None:
            assert deadline_ns > self.now_ns, "a deadline that planning did not meet"
            if self._wake_at_ns is None or deadline_ns < self._wake_at_ns:
                self._wake_at_ns = deadline_ns
                self.after(deadline_ns - self.now_ns, self._wake)

    def _wake(self) -> None:
        self._wake_at_ns = None
        self.feed([])

    def _check(self) -> None:
        check_integrity(self.core)
        check_turns(self.core)
        below = [block.write for block in self.kvstore.blocks.values()]
        check_forgotten(self.core, below, self.forgotten)
        storing = [each.write for each in self.core.writeback._storing.values()]
        lent = {page for write in storing for page in write.arena_pages}
        stock = self.core.writeback._stock
        assert len(set(stock)) == len(stock) and not lent & set(stock), "a lease is used twice"
        if self.core.writeback.is_connected:
            assert self.kvstore.leased == lent | set(stock), "a lease is lost"

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case StageTurn():
                    self._stage_turn(effect)
                case StageSession():
                    self._stage_session(effect)
                case LoadPages():
                    self._load(effect.loads)
                case ReleaseTicket():
                    self.tickets_open.remove(effect.ticket)
                    self.kvstore.release(effect.ticket)
                case LeasePages():
                    self._ask(partial(self._lease, effect.num_pages), lambda: None)
                case StoreBlocks():
                    for write in effect.writes:
                        delay_ns = self.random.choice([50 * US, 1 * MS, 10 * MS])
                        self.after(delay_ns, partial(self._store, write, self.life))
                case CommitBlocks():
                    self._commit(effect)
                case ReturnPages():
                    self.kvstore.give_back(effect.arena_pages)
                case Emit():
                    self._on_delta(effect)
                case Ended():
                    self.note(f"end {effect.end.turn_id}/{effect.end.attempt} {effect.end.reason}")
                    self.clients[effect.end.turn_id].on_end(effect.end)

    def _ask(self, answer: Callable[[], None], fail: Callable[[], None]) -> None:
        """Ask the kvstore something; `fail` if the connection is lost before it answers."""
        assert self.core.writeback.is_connected, "asked a kvstore that is not there"
        life = self.life
        delay_ns = self.random.randrange(self.slow_ns)
        if self.random.random() < 0.1:
            delay_ns += 4 * self.core.limits.stage_timeout_max_ns // 3
        self.after(delay_ns, lambda: answer() if life == self.life else fail())

    def _stage_turn(self, effect: StageTurn) -> None:
        self.note(f"stage {effect.turn_id}/{effect.attempt} {len(effect.keys)}")

        def answer() -> None:
            staged = self.kvstore.stage(effect.keys, self.now_ns)
            self.tickets_open.add(staged.ticket)
            self.feed(self.core.on_staged(effect.turn_id, effect.attempt, staged, self.now_ns))

        def fail() -> None:
            self.feed(self.core.on_staged(effect.turn_id, effect.attempt, None, self.now_ns))

        self._ask(answer, fail)

    def _stage_session(self, effect: StageSession) -> None:
        def answer() -> None:
            keys = chain_keys(ROOT, self.sessions[effect.session_id], BLOCK_TOKENS)
            staged = self.kvstore.stage(keys, self.now_ns)
            self.tickets_open.add(staged.ticket)
            expires_at_ns = self.now_ns + self.random.choice([5, 50]) * MS
            self.note(f"expect {effect.session_id}: {staged.num_blocks} blocks")
            self.feed(
                self.core.on_session_staged(
                    effect.number, staged, effect.priority, expires_at_ns, self.now_ns
                )
            )

        def fail() -> None:
            self.feed(self.core.on_session_staged(effect.number, None, 1, 0, self.now_ns))

        self._ask(answer, fail)

    def _lease(self, num_pages: int) -> None:
        self.core.on_leased(self.kvstore.lease(num_pages))
        self.feed([])

    def _commit(self, effect: CommitBlocks) -> None:
        assert len(effect.checksums) == len(effect.writes)
        for write in effect.writes:
            self.kvstore.commit(write)
        keys: list[BlockKey] = [write.key for write in effect.writes]
        self.note(f"commit {len(keys)}")

        def answer() -> None:
            self.core.on_committed(keys)
            self.feed([])

        def persist() -> None:
            for key in keys:
                self.kvstore.persist(key)

        self._ask(answer, lambda: None)
        self.after(self.random.randrange(10 * MS), persist)

    def _store(self, write: BlockWrite, life: int) -> None:
        sums: list[int] = []
        if life == self.life:  # or else others may have the pages by now
            for page, target in zip(write.pool_pages, write.arena_pages, strict=True):
                if (content := self.pool_memory.get(page)) is not None:
                    self.kvstore.arena[target] = content
                sums.append(0)
        self.feed(self.core.on_stored({write.number: sums}))

    def _load(self, runs: list[PageLoads]) -> None:
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

    def _land(self, load: PageLoad, is_good: bool) -> None:
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
        blocks = self.tables.pages[:, step.plan.slots[index], : num_tokens // BLOCK_TOKENS]
        pages: list[int] = blocks.ravel().tolist()
        return pages

    def _on_plan(self, plan: StepPlan) -> None:
        """Run it behind those that were planned before."""
        self.tables_ahead.enter(plan.entries)
        check_plan(self.core, plan, self.tables_ahead)
        self.note(f"plan {[(row.turn_id, row.start, row.end) for row in plan.rows()]}")
        self.num_steps += 1
        self.num_carried += len(plan.carried)
        self.steps.append(Step(plan, self.core.flights[-1].turns))
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
        """The KV of the row's new tokens, layer by layer."""
        known, slot = step.tokens[index], int(step.plan.slots[index])
        keys = [ROOT, *chain_keys(ROOT, known, BLOCK_TOKENS)]
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
                    new = tuple(tokens[row.start - first :])
                    self.pool_memory[page] = (old_layer, parent, old[: row.start - first] + new)

    def _spoil(self, step: Step, index: int, row: PlannedRow) -> None:
        """What was computed from history that is not there is no KV of anything."""
        first, last = row.start // BLOCK_TOKENS, -(-row.end // BLOCK_TOKENS)
        blocks = self.tables.pages[:, step.plan.slots[index], first:last]
        for page in blocks.ravel().tolist():
            self.pool_memory.pop(page, None)

    def _verify(self, step: Step, index: int, end: int) -> None:
        """The pages of a row hold, in every layer, the KV of its tokens up to `end`."""
        known, slot = step.tokens[index][:end], int(step.plan.slots[index])
        turn_id = step.plan.turn_ids[index]
        keys = [ROOT, *chain_keys(ROOT, known, BLOCK_TOKENS)]
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

    def _on_delta(self, effect: Emit) -> None:
        delta = effect.delta
        client = self.clients[delta.turn_id]
        self.note(f"delta {delta.turn_id}/{delta.attempt} {delta.index} {delta.tokens}")
        was_over = client.is_over
        client.on_delta(delta, BLOCK_TOKENS)
        if client.is_over and not was_over:
            self.after(0, lambda: self.on_client_done(client))
