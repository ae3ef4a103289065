"""Virtual time around the production `EngineCore`: shell, executor, kvstore and frontends."""

from collections.abc import Callable
from functools import partial
from heapq import heappop

from services.worker.core.effects import (
    BlockWrite,
    CallBack,
    CommitBlocks,
    Effect,
    Emit,
    Ended,
    LeasePages,
    LoadPages,
    ReleaseTicket,
    ReturnPages,
    StageSession,
    StageTurn,
    StoreBlocks,
    TrimTicket,
)
from services.worker.core.engine.engine import EngineCore
from services.worker.core.engine.integrity import check_integrity
from services.worker.core.kv.expecting import Expected
from services.worker.core.kv.pages import PagePool
from services.worker.core.limits import EngineLimits
from services.worker.core.turns.request import TurnRequest
from services.worker.core.turns.turn import Turn
from services.worker.core.turns.turn_cache import TurnCache
from shared.blocks import BlockKey, chain_keys, child_key, sequence_root
from shared.ids import DEFAULT_TENANT, FrontendId, SessionId
from shared.owners import OwnerKey, owner_key
from tests.sim.engine_checks import (
    check_empty,
    check_forgotten,
    check_turns,
)
from tests.sim.engine_clients import END_TOKEN, ClientTurn
from tests.sim.engine_device import BLOCK_TOKENS, ROOT, US, EngineDevice
from tests.sim.engine_kvstore import FakeKvstore
from tests.sim.heap import MS

EVENTS_MAX = 20_000
SHORT_ROPE_MAX = (0, 0, 13, 0, 0, 20)  # by seed; 0: all KV is of one kind


class EngineWorld(EngineDevice):
    """One worker's engine and all it talks to."""

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
            short_rope_max=SHORT_ROPE_MAX[seed % len(SHORT_ROPE_MAX)],
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
        self.clients: dict[str, ClientTurn] = {}
        self.sessions: dict[SessionId, list[int]] = {}
        self.num_kept: dict[SessionId, int] = {}  # of those tokens, which the last turn left KV of
        self.num_tails = 0
        self.forgotten: set[OwnerKey] = set()
        self.num_private = 0
        self.on_client_done: Callable[[ClientTurn], None] = lambda client: None
        self.tickets_open: set[int] = set()
        self.make_tables()
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
        request = TurnRequest(
            turn_id=client.turn_id,
            attempt=client.attempt,
            frontend_id=FrontendId("f"),
            tenant=DEFAULT_TENANT,
            session_id=client.session_id,
            sampling=client.sampling,
            arrived_at_ns=self.now_ns,
            num_generated_before=len(client.got),
            priority=client.priority,
        )
        turn = Turn(
            request,
            TurnCache(
                owner=request.owner,
                tokens=client.prompt + client.got,
                block_tokens=BLOCK_TOKENS,
                root=ROOT,
                num_history=self._num_history(client),
            ),
        )
        turn.cache.is_private = turn.request.owner in self.forgotten  # as its frontend says
        self.clients[client.turn_id] = client
        self.note(f"turn {client.turn_id}/{client.attempt}: {len(turn.tokens)} tokens")
        self.feed(self.core.on_turn(turn, self.now_ns))

    def _num_history(self, client: ClientTurn) -> int:
        """As its frontend says; seldom one that lies, or has another record."""
        if self.random.random() < 0.1:
            return self.random.randrange(len(client.prompt) + 1)
        return self.num_kept.get(client.session_id, 0)

    def _record_of(self, session_id: SessionId) -> list[BlockKey]:
        """Keys of what the session's last turn left."""
        tokens = self.sessions[session_id][: self.num_kept.get(session_id, 0)]
        root = sequence_root(ROOT, len(tokens), self.core.limits.short_rope_max)
        keys = chain_keys(root, tokens, BLOCK_TOKENS)
        if rest := tokens[len(keys) * BLOCK_TOKENS :]:
            keys.append(child_key(keys[-1] if keys else root, rest))
        return keys

    def cancel(self, client: ClientTurn) -> None:
        """The client hangs up."""
        client.is_cancelled = True
        self.note(f"cancel {client.turn_id}")
        self.feed(self.core.on_cancel(client.turn_id))

    def forget(self, session_id: SessionId) -> None:
        """A session is deleted, perhaps while its turn runs: here, then below."""
        owner = owner_key(DEFAULT_TENANT, session_id)
        keys = self._record_of(session_id)
        self.note(f"forget {session_id}")
        self.sessions[session_id] = []
        self.num_kept[session_id] = 0
        self.forgotten.add(owner)
        self.num_private += any(turn.request.owner == owner for turn in self.core.running)
        _, effects = self.core.on_forget(owner, keys)
        assert not self.core.pool.blocks.keys() & set(keys)
        self.kvstore.delete(owner, keys)
        self.feed(effects)

    def advise(self, session_id: SessionId, priority: int) -> None:
        """A session is expected."""
        expected = Expected(
            tenant=DEFAULT_TENANT,
            session_id=session_id,
            priority=priority,
            expires_at_ns=self.now_ns + self.random.choice([5, 50]) * MS,
            arrives_at_ns=self.now_ns + self.random.choice([-1, 0, 2, 2000]) * MS,
            num_tokens=len(self.sessions[session_id]),
        )
        self.feed(self.core.on_expected(expected, self.now_ns))

    def take_back(self, session_id: SessionId) -> None:
        """A session is expected no more."""
        self.feed(self.core.on_unexpected(owner_key(DEFAULT_TENANT, session_id)))

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
            self.on_plan(plan)
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
                    self.load(effect.loads)
                case CallBack():
                    self.call_back(effect.pool_pages)
                case ReleaseTicket():
                    self.tickets_open.remove(effect.ticket)
                    self.kvstore.release(effect.ticket)
                case TrimTicket():
                    assert effect.ticket in self.tickets_open
                    self.kvstore.trim(effect.ticket, effect.num_blocks)
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
            keys = self._record_of(effect.session_id)
            staged = self.kvstore.stage(keys, self.now_ns)
            self.tickets_open.add(staged.ticket)
            self.note(f"expect {effect.session_id}: {staged.num_blocks} blocks")
            self.feed(self.core.on_session_staged(effect.number, staged, self.now_ns))

        def fail() -> None:
            self.feed(self.core.on_session_staged(effect.number, None, self.now_ns))

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
                    layer, parent, tokens = content
                    end = len(write.tokens) if write.is_partial else BLOCK_TOKENS
                    self.kvstore.arena[target] = (layer, parent, tokens[:end])
                sums.append(0)
        self.feed(self.core.on_stored({write.number: sums}))

    def _on_delta(self, effect: Emit) -> None:
        delta = effect.delta
        client = self.clients[delta.turn_id]
        self.note(f"delta {delta.turn_id}/{delta.attempt} {delta.index} {delta.tokens}")
        self.num_tails += (delta.cached_tokens or 0) % BLOCK_TOKENS > 0
        was_over = client.is_over
        client.on_delta(delta, BLOCK_TOKENS)
        if client.is_over and not was_over:
            self.after(0, lambda: self.on_client_done(client))
