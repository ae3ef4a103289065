"""The engine's decisions: which turns run in the next step, on which pages, and what becomes of
their KV. Pure: it is told events and the time, and returns effects and step plans.

A turn's way, as the methods stand here: `on_turn` looks up its history and lets it wait,
`on_staged` hears what the kvstore has of it, `plan_step` gives it a row in the steps that it needs,
`on_loaded` hears that its history has come, `on_step` gives it a token and perhaps its end,
`on_stored` and `on_committed` see its KV to the tiers below.

The shell's loop: feed events, `plan_step` when `plan_at_ns` has come, run the plans in their order,
`on_step` as each lands. While one step runs the next is planned, as late as it can be, so that
turns that arrive meanwhile are in it. A turn that ends while a step in flight has a row of it keeps
its pages until that has landed.
"""

from collections import deque
from dataclasses import dataclass, field, replace

import numpy as np

from services.worker.core.adapters.adapters import Adapters
from services.worker.core.adapters.loading import ImageLoading
from services.worker.core.adapters.streaming import Ways
from services.worker.core.effects import Effect, Emit, ReleaseTicket, ReportSoon
from services.worker.core.engine.admission import (
    EAGER,
    AdmissionView,
    Decision,
    PromptView,
    Punctuality,
    decide,
)
from services.worker.core.engine.costs import StepCosts
from services.worker.core.engine.device_time import DeviceTime
from services.worker.core.engine.forgetting import forget_session
from services.worker.core.engine.outcome import ended, error, finish_reason, refuse, token_delta
from services.worker.core.engine.planner import PlannedStep, Planner
from services.worker.core.engine.queue import TurnQueue
from services.worker.core.engine.speeds import speeds_of
from services.worker.core.engine.targets import TargetCounts
from services.worker.core.engine.turn import Turn, TurnState
from services.worker.core.kv.expecting import (
    ASK_AHEAD_NS,
    LEAD_FACTOR,
    Expected,
    Expecting,
    prefetched,
)
from services.worker.core.kv.history import History
from services.worker.core.kv.pages import Block, PagePool
from services.worker.core.kv.residency import Residency
from services.worker.core.kv.staged import Staged
from services.worker.core.kv.staging import Stager
from services.worker.core.kv.writeback import WriteBehind
from services.worker.core.limits import EngineLimits, Estimates
from services.worker.core.step import Sampled, StepPlan, StepResult
from shared.blocks import BlockKey
from shared.hints import HINT_HOLD_NS
from shared.ids import ModelId, TurnId
from shared.messages import FinishReason, ModelSpeeds, TurnRef
from shared.owners import OwnerKey
from shared.urgency import is_urgent

STEP_MIN_NS = 30_000_000_000
STEP_FACTOR = 20
STEP_UNKNOWN_NS = 600_000_000_000  # while nothing is known of this model's speed
GRAMMAR_FAILED = "grammar_failed"
LEAD_MIN_NS = 3_000_000  # how long before a step is to land the next one is planned
LEAD_SHARE = 0.1  # of the step, in addition: predictions miss by about that


@dataclass(slots=True)
class EngineCore:
    """One model on one worker.

    Attributes:
        page_bytes: of one pool page.
        end_token_ids: tokens that end a turn unless it asked to ignore them.
        fingerprint: the model's, for the keys of its adapters' images.
        stored_page_bytes: of one page below the pool, for the fetch-or-recompute decision; 0: the
            same.
        flights: steps that were planned and have not landed, in order.
    """

    limits: EngineLimits
    pool: PagePool
    page_bytes: int
    end_token_ids: frozenset[int]
    block_tokens: int
    fingerprint: str = ""
    stored_page_bytes: int = 0
    estimates: Estimates = field(default_factory=Estimates)
    costs: StepCosts = field(default_factory=StepCosts)
    punctuality: Punctuality = field(default_factory=Punctuality)
    device_time: DeviceTime = field(default_factory=DeviceTime)
    targets: TargetCounts = field(default_factory=TargetCounts)
    residency: Residency = field(init=False)
    stager: Stager = field(init=False)
    writeback: WriteBehind = field(init=False)
    history: History = field(init=False)
    adapters: Adapters = field(init=False)
    queue: TurnQueue = field(init=False)
    planner: Planner = field(init=False)
    num_load_failures: int = 0
    expecting: Expecting = field(default_factory=Expecting)
    flights: "deque[PlannedStep]" = field(default_factory=deque)
    _is_short: bool = False  # turns need pages that can be taken only when nothing is in flight
    _leaving: dict[Turn, FinishReason] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.stored_page_bytes = self.stored_page_bytes or self.page_bytes
        self.residency = Residency(self.pool)
        self.stager = self.residency.stager
        self.writeback = WriteBehind(self.pool, self.limits.lease_target_blocks)
        self.history = History(
            self.residency,
            self.writeback,
            self.estimates,
            self.costs,
            self.limits,
            self.stored_page_bytes,
            self.block_tokens,
        )
        self.queue = TurnQueue(self.limits.turns_running_max)
        loading = ImageLoading(
            self.residency,
            self.writeback,
            self.fingerprint,
            self.page_bytes,
            self.estimates,
            Ways(self.limits.lora_start),
            is_stored=self.stored_page_bytes == self.page_bytes,
        )
        self.adapters = Adapters(self.residency, loading, self.limits.turns_running_max)
        self.planner = Planner(
            self.queue,
            self.history,
            self.adapters,
            self.residency,
            self.costs,
            self.limits.prefill_tokens_max,
            self.limits.layerwise,
        )

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
        """Tokens, prompt and output together, that one turn of the base model can have here."""
        return self._tokens_max_beside(0)

    def _tokens_max_beside(self, num_image_blocks: int) -> int:
        num_blocks = self.pool.num_pages // self.pool.num_layers - num_image_blocks
        return min(self.limits.max_model_len, num_blocks * self.block_tokens)

    @property
    def num_waiting_tokens(self) -> int:
        """Prompt tokens that are in no step yet, without those whose KV is here, on its way, or
        staged; while the kvstore's answer is out, as many as the session left count as staged."""
        waiting = sum(turn.num_to_compute for turn in self.waiting if not turn.is_paused)
        return waiting + sum(len(turn.tokens) - turn.num_planned for turn in self._under_way)

    @property
    def _under_way(self) -> list[Turn]:
        """Turns that run, of whose prompts not all is in a step yet."""
        return [turn for turn in self.running if turn.can_run and not turn.is_decoding]

    def refs(self) -> list[TurnRef]:
        """Every attempt held here."""
        return [
            TurnRef(
                turn_id=t.turn_id,
                attempt=t.attempt,
                num_generated=t.num_generated,
                adapter_hash="" if t.adapter is None else t.adapter.adapter_hash,
                lora_rank=0 if t.adapter is None else t.adapter.lora_rank,
            )
            for t in self.turns.values()
        ]

    def speeds(self, model_id: str) -> ModelSpeeds:
        """How fast it is, under the model's name."""
        block_bytes = self.stored_page_bytes * self.pool.num_layers
        return speeds_of(ModelId(model_id), self.costs, self.estimates, block_bytes)

    # Turns come and go.

    def on_turn(self, turn: Turn, now_ns: int) -> list[Effect]:
        """A turn with its prompt. A later attempt replaces an earlier one."""
        effects: list[Effect] = []
        if (old := self.turns.get(turn.turn_id)) is not None:
            if old.attempt >= turn.attempt:
                return []
            effects += self._end(old, "cancelled")
        turn.tokens_max = self._tokens_max_beside(turn.num_image_blocks)
        turn.short_rope_max = self.limits.short_rope_max
        if len(turn.tokens) >= turn.tokens_max:
            most = max(turn.tokens_max - 1, 0)
            beside = " beside its adapter" if turn.num_image_blocks else ""
            message = f"the prompt has {len(turn.tokens)} tokens; this worker takes {most}{beside}"
            return effects + refuse(turn, "context_length_exceeded", message)
        if len(self.turns) >= self.limits.turns_running_max + self.limits.turns_waiting_max:
            return effects + refuse(turn, "overloaded", "too many turns wait on this worker")
        if turn.outgrows_short:
            turn.on_outgrown()
        self.queue.add(turn)
        for owner in turn.announced_as:
            self.expecting.drop(owner)
            self.adapters.unexpect(owner)
            effects += self.stager.on_arrived(owner)
        effects += self.adapters.use(turn, now_ns)
        return effects + self.history.look_up(turn, now_ns)

    def on_cancel(self, turn_id: TurnId, attempt: int = 0, num_kept: int = 0) -> list[Effect]:
        """The client is gone, or has enough. `attempt` spares later ones; 0 spares none.

        Args:
            num_kept: of its tokens, that the session's next turn begins with; 0: none goes on.
        """
        turn = self.turns.get(turn_id)
        if turn is None or (attempt and turn.attempt > attempt):
            return []
        turn.num_kept = num_kept
        return self._end(turn, "cancelled")

    def on_forget(self, owner: OwnerKey, keys: list[BlockKey]) -> tuple[int, list[Effect]]:
        """A session was deleted; `keys` are its record's. How many blocks of it were here, too."""
        self.expecting.drop(owner)
        self.adapters.unexpect(owner)
        return forget_session(self.history, (*self.running, *self.waiting), owner, keys)

    # History comes up.

    def on_staged(
        self, turn_id: TurnId, attempt: int, staged: Staged | None, now_ns: int
    ) -> list[Effect]:
        """The kvstore's answer for a turn; None if it could not be asked."""
        turn = self.turns.get(turn_id)
        if turn is None or turn.attempt != attempt:
            return [] if staged is None else [ReleaseTicket(staged.ticket)]
        if staged is not None:
            turn.staged_at_ns, turn.num_staged = now_ns, staged.num_blocks
        return self.history.on_staged(turn, self._heard(staged, now_ns), len(self.running))

    def on_image_staged(self, number: int, staged: Staged | None, now_ns: int) -> list[Effect]:
        """The kvstore's answer for an adapter's image; None if it could not be asked."""
        staged = self._heard(staged, now_ns)
        return self.adapters.on_staged(number, staged, self.planner.reserve, now_ns)

    def on_expected(self, expected: Expected, now_ns: int) -> list[Effect]:
        """A turn was announced, and is to come here."""
        start_at_ns = self._start_at_ns(expected, now_ns)
        self.adapters.unexpect(expected.owner)
        if start_at_ns > now_ns:
            self.expecting.wait(expected, start_at_ns)
            return []
        self.expecting.drop(expected.owner)
        return self._bring_up(expected, now_ns)

    def on_unexpected(self, owner: OwnerKey) -> list[Effect]:
        """The session's turn is not coming, or not here."""
        self.expecting.drop(owner)
        self.adapters.unexpect(owner)
        return self.stager.forget(owner)

    def on_session_staged(self, number: int, staged: Staged | None, now_ns: int) -> list[Effect]:
        """The kvstore's answer for an expected session; None if it could not be asked."""
        expected = self.expecting.answered(number)
        staged = self._heard(staged, now_ns)
        if staged is None:
            return [] if expected is None else prefetched(expected, 0, 0)
        if expected is None:  # not coming
            return [ReleaseTicket(staged.ticket)]
        if staged.num_blocks == 0:  # deleted since
            return [ReleaseTicket(staged.ticket), *prefetched(expected, 0, 0)]
        owner = expected.owner
        effects = self.stager.expect(staged, (owner, ""), owner, expected, now_ns)
        return effects + self.stager.pump(now_ns)

    def _heard(self, staged: Staged | None, now_ns: int) -> Staged | None:
        """An answer of the kvstore's, whose promises count from now."""
        if staged is None:
            return None
        self.estimates.on_source(staged.source_bytes_per_s)
        return replace(staged, heard_at_ns=now_ns) if staged.ready_in_ns else staged

    def _start_at_ns(self, expected: Expected, now_ns: int) -> int:
        """When to bring up what an announced turn needs: so early that it is there in time, by the
        slowest way that it may come; what an urgent one needs at once, if it comes before that
        would be let go."""
        at_once_ns = expected.arrives_at_ns - HINT_HOLD_NS
        if not expected.arrives_at_ns or (is_urgent(expected.priority) and at_once_ns <= now_ns):
            return 0
        num_tokens = expected.num_tokens or self.limits.max_model_len
        num_blocks = -(-num_tokens // self.block_tokens) + expected.num_image_blocks
        num_bytes = num_blocks * self.pool.num_layers * self.stored_page_bytes
        lead_ns = LEAD_FACTOR * self.estimates.slowest_ns(num_bytes, expected.kv_at) + ASK_AHEAD_NS
        return expected.arrives_at_ns - lead_ns

    def _bring_up(self, expected: Expected, now_ns: int) -> list[Effect]:
        if not self.writeback.is_connected:
            return []
        held_until_ns = max(expected.arrives_at_ns, now_ns) + HINT_HOLD_NS
        expires_at_ns = min(expected.expires_at_ns, held_until_ns)
        expected = replace(expected, expires_at_ns=expires_at_ns, asked_at_ns=now_ns)
        return [self.expecting.ask(expected), *self.adapters.expect(expected)]

    def on_loaded(self, good: list[int], bad: list[int], now_ns: int) -> list[Effect]:
        """Loads into these pool pages, or builds of them, ended."""
        self.num_load_failures += len(bad)
        if good:
            self.history.landed_at_ns = now_ns
        effects = self.stager.on_loaded(good, is_good=True)
        effects += self.stager.on_loaded(bad, is_good=False)
        effects += self.adapters.on_loaded(now_ns)
        return effects + self.stager.pump(now_ns)

    def on_called_back(self, pages: list[int]) -> list[Effect]:
        """Nothing is loaded into these pool pages, for which that was asked."""
        return self.stager.on_called_back(pages)

    # Steps.

    @property
    def is_busy(self) -> bool:
        """Whether turns are held, or steps in flight."""
        return bool(self.turns or self.flights)

    def plan_at_ns(self) -> int | None:
        """When to plan the next step: at any time if nothing is in flight, a little before one in
        flight is to land; None: one has to land first."""
        if not self.flights:
            return 0
        if self._is_short or len(self.flights) > self.limits.steps_ahead_max:
            return None
        first = self.flights[0]
        return first.ends_at_ns - LEAD_MIN_NS - int(LEAD_SHARE * first.takes_ns)

    def plan_step(self, now_ns: int) -> tuple[StepPlan | None, list[Effect]]:
        """Decide the next step; None when nothing can run now."""
        assert len(self.flights) <= self.limits.steps_ahead_max, "too many steps are in flight"
        self.pool.on_time(now_ns)
        starts_at_ns = max([now_ns, *(planned.ends_at_ns for planned in self.flights)])
        for turn in self.waiting:
            turn.prefix.on_time(now_ns)
        self.adapters.on_time(now_ns)
        effects = self.writeback.pump(now_ns)
        for expected in self.expecting.take_due(now_ns):
            effects += self._bring_up(expected, now_ns)
        self.stager.is_paused = False
        draft = self.planner.begin(now_ns, starts_at_ns, is_ahead=bool(self.flights))
        self.planner.add_prompts(draft, self._decide(len(draft.rows), starts_at_ns))
        planned = self.planner.end(draft)
        self._is_short = draft.is_short
        effects += draft.effects
        for turn in draft.lost:
            why = f"the adapter {turn.adapter.name!r} cannot be loaded" if turn.adapter else ""
            effects += [error(turn, "adapter_unavailable", why), *self._end(turn, "error")]
        effects += self.stager.pump(now_ns)
        if planned is None:
            if not self.flights:
                self.device_time.on_nothing_to_run()
            return None, effects
        for turn in planned.turns:
            if turn.first_step_at_ns is None:
                turn.first_step_at_ns = now_ns
        planned.takes_ns = self._predicted_ns(planned)
        planned.ends_at_ns = starts_at_ns + planned.takes_ns
        self.flights.append(planned)
        return planned.plan, effects

    def on_step(self, result: StepResult, now_ns: int) -> list[Effect]:
        """The first step in flight has run."""
        planned = self.flights.popleft()
        plan = planned.plan
        self._measure(planned, result)
        effects: list[Effect] = []
        for ticket in planned.tickets:
            effects += self.stager.let_go(ticket)
        for later in self.flights:
            later.takes_ns = self._predicted_ns(later)
            later.ends_at_ns = now_ns + later.takes_ns
        ends: list[int] = plan.context_lens.tolist()
        for index, (turn, end) in enumerate(zip(planned.turns, ends, strict=True)):
            turn.on_landed(is_sampled=plan.sampling[index] is not None)
            if turn.trace and result.stall_at_ns:
                turn.note_waits(result)
            if not turn.is_void:
                effects += self._on_row(turn, index, end, result, now_ns)
            if not turn.num_flights:
                effects += self._settle(turn, now_ns)
        self.pool.give_back(planned.retired)
        if not self.running:
            self.device_time.on_nothing_to_run()
        return effects

    def step_limit_ns(self, plan: StepPlan) -> int:
        """How long a step may run before it counts as stuck: far longer than any that is not."""
        if not self.costs.is_known:
            return STEP_UNKNOWN_NS
        predicted_ns = self.costs.step_ns(plan.num_prefill_tokens, plan.num_decodes)
        return max(STEP_MIN_NS, STEP_FACTOR * predicted_ns)

    def next_deadline_ns(self) -> int | None:
        """When to plan again although nothing happens: a stage's answer is overdue, history is, or
        a pass need not wait for it any more, an expected session did not come or is near, arena
        pages may be there again."""
        deadlines = [t.prefix.answer_due_at_ns for t in self.waiting if t.prefix.is_asked]
        for turn in self.running:
            if turn.prefix.coming and turn.can_run:
                deadlines.append(min(turn.look_again_at_ns, turn.prefix.give_up_at_ns))
        for at_ns in (
            self.stager.next_expiry_ns,
            self.expecting.next_at_ns,
            self.writeback.next_ask_at_ns,
            self.adapters.next_deadline_ns,
        ):
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
        ready = [turn for turn in self.waiting if not turn.prefix.is_asked]
        num_running = len(self.running)
        layers = self.pool.num_layers
        view = AdmissionView(
            now_ns=now_ns,
            ready=tuple(map(self._prompt_view, ready)),
            under_way=tuple(map(self._prompt_view, self._under_way)),
            num_decodes=num_decodes,
            num_places=self.limits.turns_running_max - num_running,
            num_pages=self.residency.num_available - num_running * layers,
            budget=self.limits.prefill_tokens_max,
            load_block_ns=self.estimates.load_ns(layers * self.stored_page_bytes),
            reserve=self.punctuality.reserve,
            costs=self.costs,
        )
        decision = decide(view)
        if decision.opens:
            for turn in ready:
                turn.is_called = True
        return decision

    def _prompt_view(self, turn: Turn) -> PromptView:
        staged = turn.prefix.staged
        return PromptView(
            num_tokens=len(turn.tokens) - turn.num_in_sight,
            num_pages=self.history.num_pages_wanted(turn) + self.adapters.num_pages_wanted(turn),
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

    def _on_row(
        self, turn: Turn, index: int, end: int, result: StepResult, now_ns: int
    ) -> list[Effect]:
        """What a step gave for a turn, whose rows before this one were good."""
        why_broken = result.broken.get(index)
        if why_broken is not None or index in result.failed:
            turn.is_void = True
            if index in result.failed:  # told at once: others may be waiting for the same
                self.residency.put_off(turn.prefix)  # nobody tells whether it was this,
                self.adapters.on_failed(turn)  # or its adapter, or both
        else:
            turn.num_computed = min(end, len(turn.tokens))  # one that leaves takes no more tokens
            if self.history.has_news(turn):
                self._retire(self.history.register(turn))
            if index in result.prompt_logprobs:
                turn.prompt_logprobs += result.prompt_logprobs[index]
        if why_broken is not None:
            self.history.lose(turn)
        if turn.state is TurnState.LEAVING:
            return []
        if (why_refused := result.refused.get(index)) is not None:
            return [error(turn, GRAMMAR_FAILED, why_refused), *self._end(turn, "error")]
        if why_broken is not None:
            return [error(turn, "poisoned", why_broken), *self._end(turn, "error")]
        sampled = None if turn.is_void else result.sampled[index]
        return [] if sampled is None else self._take_token(turn, sampled, now_ns)

    def _retire(self, blocks: list[Block]) -> None:
        """Turns need these blocks no more; steps in flight may still read them."""
        if self.flights:
            self.flights[-1].retired += blocks
        else:
            self.pool.give_back(blocks)

    def _settle(self, turn: Turn, now_ns: int) -> list[Effect]:
        """No step in flight has a row of a turn any more: do what waited for that."""
        if (reason := self._leaving.pop(turn, None)) is not None:
            return self._let_go(turn, reason)
        if turn.is_void and turn.state is TurnState.RUNNING:
            turn.is_void = False
            return self.planner.again(turn, now_ns)
        if turn.outgrows_short and turn.state is TurnState.RUNNING:
            return self.planner.outgrow(turn, now_ns)
        return []

    def _take_token(self, turn: Turn, sampled: Sampled, now_ns: int) -> list[Effect]:
        """Append a sampled token, tell the frontend, and end the turn if it was the last."""
        turn.tokens.append(sampled.token)
        finish = finish_reason(turn, sampled.token, self.end_token_ids)
        is_first = turn.first_token_at_ns is None
        if is_first:
            turn.first_token_at_ns = now_ns
            self._learn_punctuality(turn, now_ns)
            self.targets.on_first_token(turn, self._target_ns(turn), now_ns)
            if turn.adapter is not None and not turn.num_generated_before:
                duration_ns = now_ns - turn.arrived_at_ns
                self.adapters.stats.on_first_token(turn.adapter_start, duration_ns)
        if finish is not None:
            self.targets.on_last_token(turn, now_ns)
        delta = token_delta(turn, sampled, finish, now_ns, is_first=is_first)
        effects: list[Effect] = [Emit(turn.frontend_id, delta)]
        if is_first and turn.was_lost:
            effects.append(ReportSoon())
        return effects if finish is None else effects + self._end(turn, finish)

    def _end(self, turn: Turn, reason: FinishReason) -> list[Effect]:
        """A turn is over: it leaves now, or when the steps in flight that run it have landed. A
        later attempt may take its place meanwhile."""
        del self.turns[turn.turn_id]
        turn.state = TurnState.LEAVING
        if not turn.num_flights:
            return self._let_go(turn, reason)
        self._leaving[turn] = reason
        return []

    def _let_go(self, turn: Turn, reason: FinishReason) -> list[Effect]:
        """Its blocks stay as clean copies for whoever needs them or their room, the last one of its
        session with them."""
        effects = self.adapters.drop(turn)
        self.queue.remove(turn)
        if reason in {"stop", "length"}:
            # The token that it ended with has no KV, or need not have.
            self.history.keep_tail(turn, len(turn.tokens) - 1)
        elif reason == "cancelled" and turn.num_kept > 0:
            self.history.keep_tail(turn, turn.num_kept)
        return [*effects, *self.history.release(turn), ended(turn, reason)]

    def _measure(self, planned: PlannedStep, result: StepResult) -> None:
        """Let the speed estimates learn from a step."""
        plan = planned.plan
        self.device_time.on_step(result.started_at_ns, result.duration_ns)
        num_prefill = planned.num_prefill
        if result.assist_ns:
            assisted = np.isin(plan.adapters, list(plan.assists))
            self.adapters.loading.ways.assists.add(
                int(plan.lengths[assisted].sum()), result.assist_ns
            )
        busy_ns = result.duration_ns - sum(result.stall_ns) - result.assist_ns
        self.costs.on_step(num_prefill, planned.num_decodes, busy_ns, planned.lora)
        self.estimates.on_prefill(num_prefill, busy_ns)

    def _predicted_ns(self, planned: PlannedStep) -> int:
        if not self.costs.is_known:
            return 0
        num_lora_bytes = planned.lora.num_bytes
        busy_ns = self.costs.step_ns(planned.num_prefill, planned.num_decodes, num_lora_bytes)
        return busy_ns + planned.stall_ns
