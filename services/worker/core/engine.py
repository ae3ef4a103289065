"""The engine's decisions: which turns run in the next step, on which pages, and what becomes of
their KV. Pure: it is told events and the time, and returns effects and step plans.

A turn's way, as the methods stand here: `on_turn` looks up its history and lets it wait,
`on_staged` hears what the kvstore has of it, `plan_step` gives it a row in the steps that it needs,
`on_loaded` hears that its history has come, `on_step` gives it a token and perhaps its end,
`on_stored` and `on_committed` see its KV to the tiers below.

The shell's loop: feed events, `plan_step`, run the plan, `on_step`, again. Between `plan_step` and
`on_step` events may come in; turns in flight end only afterwards.
"""

from collections import deque
from dataclasses import dataclass, field

from services.worker.core.admission import (
    EAGER,
    AdmissionView,
    Decision,
    PromptView,
    Punctuality,
    decide,
)
from services.worker.core.costs import StepCosts
from services.worker.core.effects import Effect, Emit, ReleaseTicket, ReportSoon, StageSession
from services.worker.core.forgetting import forget_session
from services.worker.core.history import History
from services.worker.core.limits import EngineLimits, Estimates
from services.worker.core.outcome import ended, error, finish_reason, refuse, token_delta
from services.worker.core.pages import PagePool
from services.worker.core.planner import PlannedStep, Planner
from services.worker.core.queue import TurnQueue
from services.worker.core.staged import Staged
from services.worker.core.staging import Stager
from services.worker.core.step import Sampled, StepPlan, StepResult
from services.worker.core.turn import Turn, TurnState
from services.worker.core.writeback import WriteBehind
from shared.blocks import BlockKey
from shared.ids import SessionId, TenantId, TurnId
from shared.messages import FinishReason, TurnRef
from shared.owners import OwnerKey, owner_key

STEP_MIN_NS = 30_000_000_000
STEP_FACTOR = 20
STEP_UNKNOWN_NS = 600_000_000_000  # while nothing is known of this model's speed


@dataclass(slots=True)
class EngineCore:
    """One model on one worker.

    Attributes:
        page_bytes: of one pool page, for the fetch-or-recompute decision.
        end_token_ids: tokens that end a turn unless it asked to ignore them.
    """

    limits: EngineLimits
    pool: PagePool
    page_bytes: int
    end_token_ids: frozenset[int]
    block_tokens: int
    estimates: Estimates = field(default_factory=Estimates)
    costs: StepCosts = field(default_factory=StepCosts)
    punctuality: Punctuality = field(default_factory=Punctuality)
    stager: Stager = field(init=False)
    writeback: WriteBehind = field(init=False)
    history: History = field(init=False)
    queue: TurnQueue = field(init=False)
    planner: Planner = field(init=False)
    num_load_failures: int = 0
    _num_asked: int = 0
    _asked: dict[int, OwnerKey] = field(default_factory=dict)  # sessions, by `StageSession.number`
    _in_flight: PlannedStep | None = None
    _ended_in_flight: dict[TurnId, Turn] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.stager = Stager(self.pool)
        self.writeback = WriteBehind(self.pool, self.limits.lease_target_blocks)
        self.history = History(
            self.pool,
            self.stager,
            self.writeback,
            self.estimates,
            self.limits,
            self.page_bytes,
            self.block_tokens,
        )
        self.queue = TurnQueue(self.limits.turns_running_max)
        self.planner = Planner(self.queue, self.history, self.limits.prefill_tokens_max)

    @property
    def turns(self) -> dict[TurnId, Turn]:
        """The latest attempt of each turn that is not over."""
        return self.queue.turns

    @property
    def waiting(self) -> "deque[Turn]":
        return self.queue.waiting

    @property
    def running(self) -> list[Turn]:
        return self.queue.running

    @property
    def tokens_max(self) -> int:
        """Tokens, prompt and output together, that one turn can have here."""
        in_pool = self.pool.num_pages // self.pool.num_layers * self.block_tokens
        return min(self.limits.max_model_len, in_pool)

    @property
    def num_waiting_tokens(self) -> int:
        """Prompt tokens that are still to be computed."""
        return sum(len(turn.tokens) - turn.num_computed for turn in self.waiting)

    def refs(self) -> list[TurnRef]:
        """Every attempt held here."""
        return [
            TurnRef(turn_id=t.turn_id, attempt=t.attempt, num_generated=t.num_generated)
            for t in self.turns.values()
        ]

    # Turns come and go.

    def on_turn(self, turn: Turn, now_ns: int) -> list[Effect]:
        """A turn with its prompt. A later attempt replaces an earlier one."""
        effects: list[Effect] = []
        if (old := self.turns.get(turn.turn_id)) is not None:
            if old.attempt >= turn.attempt:
                return []
            effects += self._end_or_defer(old)
        if len(turn.tokens) >= self.tokens_max:
            message = (
                f"the prompt has {len(turn.tokens)} tokens; this worker takes {self.tokens_max - 1}"
            )
            return effects + refuse(turn, "context_length_exceeded", message)
        if len(self.turns) >= self.limits.turns_running_max + self.limits.turns_waiting_max:
            return effects + refuse(turn, "overloaded", "too many turns wait on this worker")
        self.queue.add(turn)
        return effects + self.history.look_up(turn, now_ns)

    def on_cancel(self, turn_id: TurnId, attempt: int = 0) -> list[Effect]:
        """The client is gone, or has enough. `attempt` spares later ones; 0 spares none."""
        turn = self.turns.get(turn_id)
        if turn is None or (attempt and turn.attempt > attempt):
            return []
        return self._end_or_defer(turn)

    def on_forget(self, owner: OwnerKey, keys: list[BlockKey]) -> tuple[int, list[Effect]]:
        """A session was deleted; `keys` are its record's. How many blocks of it were here, too."""
        self._asked = {number: asker for number, asker in self._asked.items() if asker != owner}
        return forget_session(self.history, (*self.running, *self.waiting), owner, keys)

    # History comes up.

    def on_staged(
        self, turn_id: TurnId, attempt: int, staged: Staged | None, now_ns: int
    ) -> list[Effect]:
        """The kvstore's answer for a turn; None if it could not be asked."""
        turn = self.turns.get(turn_id)
        if turn is None or turn.attempt != attempt or turn.state is not TurnState.STAGING:
            return [] if staged is None else [ReleaseTicket(staged.ticket)]
        if staged is not None and not turn.is_staged_from(staged):
            return [ReleaseTicket(staged.ticket)]  # of an earlier question; the answer is to come
        return self.history.on_staged(turn, staged)

    def on_prefetch(self, tenant: TenantId, session_id: SessionId, priority: int) -> list[Effect]:
        """An advisory was placed here."""
        if not self.writeback.is_connected:
            return []
        self._num_asked += 1
        self._asked[self._num_asked] = owner_key(tenant, session_id)
        return [StageSession(self._num_asked, tenant, session_id, priority)]

    def on_session_staged(
        self, number: int, staged: Staged | None, priority: int, expires_at_ns: int, now_ns: int
    ) -> list[Effect]:
        """The kvstore's answer for an expected session; None if it could not be asked."""
        owner = self._asked.pop(number, None)
        if staged is None:
            return []
        if staged.num_blocks == 0 or owner is None:  # deleted since
            return [ReleaseTicket(staged.ticket)]
        self.stager.expect(staged, owner, priority, expires_at_ns)
        return self.stager.pump(now_ns)

    def on_loaded(self, good: list[int], bad: list[int], now_ns: int) -> list[Effect]:
        """Loads into these pool pages ended."""
        self.num_load_failures += len(bad)
        effects = self.stager.on_loaded(good, is_good=True)
        effects += self.stager.on_loaded(bad, is_good=False)
        return effects + self.stager.pump(now_ns)

    # Steps.

    def plan_step(self, now_ns: int) -> tuple[StepPlan | None, list[Effect]]:
        """Decide the next step; None when nothing can run now."""
        assert self._in_flight is None, "the last step has not ended"
        for turn in self.waiting:
            if turn.state is TurnState.STAGING and now_ns >= turn.stage_deadline_ns:
                turn.state = TurnState.WAITING  # the answer, should it come, is let go
        effects = self.writeback.pump(now_ns)
        draft = self.planner.begin(now_ns)
        self.planner.add_prompts(draft, self._decide(len(draft.rows), now_ns))
        planned = self.planner.end(draft)
        effects += draft.effects
        effects += self.stager.pump(now_ns)
        if planned is None:
            return None, effects
        for turn in planned.turns:
            if turn.first_step_at_ns is None:
                turn.first_step_at_ns = now_ns
        self._in_flight = planned
        return planned.plan, effects

    def on_step(self, result: StepResult, now_ns: int) -> list[Effect]:
        """The step planned last has run."""
        planned, self._in_flight = self._in_flight, None
        assert planned is not None, "no step was planned"
        self._measure(planned.plan, result)
        effects: list[Effect] = []
        ends: list[int] = planned.plan.context_lens.tolist()
        for index, (turn, end) in enumerate(zip(planned.turns, ends, strict=True)):
            if index in result.broken:
                self.history.lose(turn)
            elif index in result.failed:
                effects += self.planner.recompute(turn, now_ns)
            else:
                turn.num_computed = end
                self.history.register(turn)
                turn.prompt_logprobs += result.prompt_logprobs.get(index, [])
            if turn.turn_id in self._ended_in_flight:
                effects += self._finish_ended(turn)
            elif index in result.broken:
                effects.append(error(turn, "poisoned", result.broken[index]))
                effects += self._end(turn, "error")
            elif index not in result.failed and (sampled := result.sampled[index]) is not None:
                effects += self._take_token(turn, sampled, now_ns)
        return effects

    def step_limit_ns(self, plan: StepPlan) -> int:
        """How long a step may run before it counts as stuck: far longer than any that is not."""
        if not self.costs.is_known:
            return STEP_UNKNOWN_NS
        predicted_ns = self.costs.step_ns(plan.num_prefill_tokens, plan.num_decodes)
        return max(STEP_MIN_NS, STEP_FACTOR * predicted_ns)

    def next_deadline_ns(self) -> int | None:
        """When to plan again although nothing happens: a stage's answer is overdue, an expected
        session did not come, arena pages may be there again."""
        deadlines = [t.stage_deadline_ns for t in self.waiting if t.state is TurnState.STAGING]
        for at_ns in (self.stager.next_expiry_ns, self.writeback.next_ask_at_ns):
            if at_ns is not None:
                deadlines.append(at_ns)
        return min(deadlines, default=None)

    # New KV goes below.

    def on_leased(self, arena_pages: list[int]) -> None:
        """Arena pages to write new KV into."""
        self.writeback.on_leased(arena_pages)

    def on_stored(self, checksums: dict[int, list[int]]) -> list[Effect]:
        """Copies to the arena ended: by `BlockWrite.number`, xxh3-64 of each layer's page; empty
        for a write that could not be made."""
        return self.writeback.on_stored(checksums)

    def on_committed(self, keys: list[BlockKey]) -> None:
        """The kvstore took these blocks over."""
        self.writeback.on_committed(keys)

    # Admission.

    def _decide(self, num_decodes: int, now_ns: int) -> Decision:
        if self.limits.prefill_admission == "eager":
            return EAGER
        ready = [turn for turn in self.waiting if turn.state is not TurnState.STAGING]
        under_way = [turn for turn in self.running if not turn.is_decoding]
        num_running = len(self.running)
        layers = self.pool.num_layers
        view = AdmissionView(
            now_ns=now_ns,
            ready=tuple(map(self._prompt_view, ready)),
            under_way=tuple(map(self._prompt_view, under_way)),
            num_decodes=num_decodes,
            num_places=self.limits.turns_running_max - num_running,
            num_pages=self.pool.num_available - num_running * layers,
            budget=self.limits.prefill_tokens_max,
            load_block_ns=layers * self.page_bytes * 1e9 / self.estimates.load_bytes_per_s,
            reserve=self.punctuality.reserve,
            costs=self.costs,
        )
        decision = decide(view)
        if decision.opens:
            for turn in ready:
                turn.is_called = True
        return decision

    def _prompt_view(self, turn: Turn) -> PromptView:
        staged = turn.staged
        num_blocks = turn.staged_from + staged.num_blocks if staged is not None else 0
        return PromptView(
            num_tokens=len(turn.tokens) - max(turn.num_computed, num_blocks * self.block_tokens),
            num_pages=self.history.num_pages_wanted(turn),
            num_staged_blocks=staged.num_blocks if staged is not None else 0,
            arrived_at_ns=turn.arrived_at_ns,
            target_ns=0 if turn.num_generated else self._target_ns(turn),
            is_called=turn.is_called,
        )

    def _target_ns(self, turn: Turn) -> int:
        return self.limits.slo_ttft_ns if turn.slo_ttft_ns is None else turn.slo_ttft_ns

    def _learn_punctuality(self, turn: Turn, now_ns: int) -> None:
        """Learn from how punctual a first token is, unless the turn could never have been in
        time."""
        target_ns = 0 if turn.num_generated_before else self._target_ns(turn)
        num_tokens = turn.num_prompt - turn.num_cached
        budget = self.limits.prefill_tokens_max
        if target_ns and self.costs.prefill_ns(num_tokens, 0, budget) <= target_ns:
            is_late = now_ns > turn.arrived_at_ns + target_ns
            self.punctuality.on_first_token(is_late=is_late)

    # Tokens and ends.

    def _take_token(self, turn: Turn, sampled: Sampled, now_ns: int) -> list[Effect]:
        """Append a sampled token, tell the frontend, and end the turn if it was the last."""
        turn.tokens.append(sampled.token)
        finish = finish_reason(turn, sampled.token, self.end_token_ids, self.tokens_max)
        is_first = turn.first_token_at_ns is None
        if is_first:
            turn.first_token_at_ns = now_ns
            self._learn_punctuality(turn, now_ns)
        delta = token_delta(turn, sampled, finish, now_ns, is_first=is_first)
        effects: list[Effect] = [Emit(turn.frontend_id, delta)]
        if is_first and turn.was_lost:
            effects.append(ReportSoon())
        return effects if finish is None else effects + self._end(turn, finish)

    def _end(self, turn: Turn, reason: FinishReason) -> list[Effect]:
        """A turn leaves; its blocks stay as clean copies for whoever needs them or their room."""
        del self.turns[turn.turn_id]
        return self._let_go(turn, reason)

    def _end_or_defer(self, turn: Turn) -> list[Effect]:
        """End a turn now, or after the step that runs it."""
        if self._in_flight is None or turn not in self._in_flight.turns:
            return self._end(turn, "cancelled")
        del self.turns[turn.turn_id]  # a later attempt may take its place meanwhile
        self._ended_in_flight[turn.turn_id] = turn
        return []

    def _finish_ended(self, turn: Turn) -> list[Effect]:
        del self._ended_in_flight[turn.turn_id]
        return self._let_go(turn, "cancelled")

    def _let_go(self, turn: Turn, reason: FinishReason) -> list[Effect]:
        self.queue.remove(turn)
        return [*self.history.release(turn), ended(turn, reason)]

    def _measure(self, plan: StepPlan, result: StepResult) -> None:
        """Let the speed estimates learn from a step."""
        num_prefill = plan.num_prefill_tokens
        busy_ns = result.duration_ns - sum(result.stall_ns)
        self.costs.on_step(num_prefill, plan.num_decodes, busy_ns)
        self.estimates.on_prefill(num_prefill, busy_ns)
