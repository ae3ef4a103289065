"""The engine's decisions: which turns run in the next step, on which pages, and what becomes of
their KV. Pure: it is told events and the time, and returns effects and step plans.

The shell's loop: feed events, `plan_step`, run the plan, `on_step`, again. Between `plan_step` and
`on_step` events may come in; turns in flight end only afterwards.
"""

from collections import deque
from dataclasses import dataclass, field

from services.worker.core.admission import Punctuality
from services.worker.core.costs import StepCosts
from services.worker.core.effects import (
    Effect,
    ReleaseTicket,
    StageSession,
)
from services.worker.core.forgetting import forget_session
from services.worker.core.history import look_up, release_holds
from services.worker.core.limits import EngineLimits, Estimates
from services.worker.core.outcome import (
    end_turn,
    ended,
    fail_turn,
    lose_blocks,
    measure,
    refuse,
    register_blocks,
    take_token,
)
from services.worker.core.pages import PagePool
from services.worker.core.planner import PlannedStep, plan_rows
from services.worker.core.staged import Staged
from services.worker.core.staging import Stager
from services.worker.core.step import StepPlan, StepResult
from services.worker.core.turn import NO_SLOT, Turn, TurnState
from services.worker.core.writeback import WriteBehind
from shared.blocks import BlockKey
from shared.ids import SessionId, TenantId, TurnId
from shared.messages import TurnRef
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
        waiting: by priority, then arrival; a preempted turn goes to the front.
        running: in order of admission.
    """

    limits: EngineLimits
    pool: PagePool
    page_bytes: int
    end_token_ids: frozenset[int]
    block_tokens: int
    estimates: Estimates = field(default_factory=Estimates)
    costs: StepCosts = field(default_factory=StepCosts)
    punctuality: Punctuality = field(default_factory=Punctuality)
    waiting: "deque[Turn]" = field(default_factory=deque)
    running: list[Turn] = field(default_factory=list)
    turns: dict[TurnId, Turn] = field(default_factory=dict)
    stager: Stager = field(init=False)
    writeback: WriteBehind = field(init=False)
    num_preemptions: int = 0
    num_prefix_queries: int = 0
    num_prefix_hits: int = 0
    num_load_failures: int = 0
    _num_asked: int = 0
    _asked: dict[int, OwnerKey] = field(default_factory=dict)  # sessions, by `StageSession.number`
    _slots: list[int] = field(init=False)  # free lines of the executor's block tables
    _in_flight: PlannedStep | None = None
    _ended_in_flight: dict[TurnId, Turn] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._slots = list(range(self.limits.turns_running_max))
        self.stager = Stager(self.pool)
        self.writeback = WriteBehind(self.pool, self.limits.lease_target_blocks)

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
        self.turns[turn.turn_id] = turn
        position = len(self.waiting)
        while position and self.waiting[position - 1].priority < turn.priority:
            position -= 1
        self.waiting.insert(position, turn)
        return effects + look_up(self, turn, now_ns)

    def on_cancel(self, turn_id: TurnId, attempt: int = 0) -> list[Effect]:
        """The client is gone, or has enough. `attempt` spares later ones; 0 spares none."""
        turn = self.turns.get(turn_id)
        if turn is None or (attempt and turn.attempt > attempt):
            return []
        return self._end_or_defer(turn)

    def on_staged(
        self, turn_id: TurnId, attempt: int, staged: Staged | None, now_ns: int
    ) -> list[Effect]:
        """The kvstore's answer for a turn; None if it could not be asked."""
        turn = self.turns.get(turn_id)
        if turn is None or turn.attempt != attempt or turn.state is not TurnState.STAGING:
            return [] if staged is None else [ReleaseTicket(staged.ticket)]
        if staged is not None and not turn.is_staged_from(staged):
            return [ReleaseTicket(staged.ticket)]  # of an earlier question; the answer is to come
        turn.state = TurnState.WAITING
        if staged is None:
            return []
        is_worth_it = staged.num_blocks > 0 and self.estimates.is_fetch_worthwhile(
            staged.num_blocks * self.block_tokens,
            staged.num_blocks * self.pool.num_layers * self.page_bytes,
            staged.num_from_disk * self.page_bytes,
        )
        if not is_worth_it:
            return [ReleaseTicket(staged.ticket)]
        turn.staged = staged
        self.stager.hold(staged.ticket)
        return []

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

    def on_forget(self, owner: OwnerKey, keys: list[BlockKey]) -> tuple[int, list[Effect]]:
        """A session was deleted; `keys` are its record's. How many blocks of it were here, too."""
        self._asked = {number: asker for number, asker in self._asked.items() if asker != owner}
        return forget_session(self, owner, keys)

    def on_loaded(self, good: list[int], bad: list[int], now_ns: int) -> list[Effect]:
        """Loads into these pool pages ended."""
        self.num_load_failures += len(bad)
        effects = self.stager.on_loaded(good, is_good=True)
        effects += self.stager.on_loaded(bad, is_good=False)
        return effects + self.stager.pump(now_ns)

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

    def plan_step(self, now_ns: int) -> tuple[StepPlan | None, list[Effect]]:
        """Decide the next step; None when nothing can run now."""
        assert self._in_flight is None, "the last step has not ended"
        for turn in self.waiting:
            if turn.state is TurnState.STAGING and now_ns >= turn.stage_deadline_ns:
                turn.state = TurnState.WAITING  # the answer, should it come, is let go
        effects = self.writeback.pump(now_ns)
        planned, more = plan_rows(self, now_ns)
        effects += more
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
        measure(self, planned.plan, result)
        effects: list[Effect] = []
        ends: list[int] = planned.plan.context_lens.tolist()
        for index, (turn, end) in enumerate(zip(planned.turns, ends, strict=True)):
            if index in result.broken:
                lose_blocks(turn)
            elif index in result.failed:
                effects += self.forget_history(turn, now_ns)
            else:
                turn.num_computed = end
                register_blocks(self, turn)
                turn.prompt_logprobs += result.prompt_logprobs.get(index, [])
            if turn.turn_id in self._ended_in_flight:
                effects += self._finish_ended(turn)
            elif index in result.broken:
                effects += fail_turn(self, turn, "poisoned", result.broken[index])
            elif index not in result.failed and (sampled := result.sampled[index]) is not None:
                effects += take_token(self, turn, sampled, now_ns)
        return effects

    def join(self, turn: Turn) -> None:
        """A waiting turn gets its place in the batch."""
        self.waiting.remove(turn)
        self.running.append(turn)
        turn.slot = self._slots.pop()

    def leave(self, turn: Turn) -> None:
        """A turn waits and runs no more."""
        if turn.slot == NO_SLOT:
            self.waiting.remove(turn)
            return
        self.running.remove(turn)
        self._slots.append(turn.slot)
        turn.slot = NO_SLOT

    def preempt(self, turn: Turn, now_ns: int) -> list[Effect]:
        """Take a running turn's pages; it comes back first, with what it generated so far."""
        self.num_preemptions += 1
        return self._restart(turn, now_ns)

    def forget_history(self, turn: Turn, now_ns: int) -> list[Effect]:
        """History did not come: the turn keeps what is surely here and computes the rest."""
        for block in turn.coming:
            if block.loading:
                block.lost = True
        turn.may_stage = False
        turn.num_cached = 0
        return self._restart(turn, now_ns)

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

    def _end_or_defer(self, turn: Turn) -> list[Effect]:
        """End a turn now, or after the step that runs it."""
        if self._in_flight is None or turn not in self._in_flight.turns:
            return end_turn(self, turn, "cancelled")
        del self.turns[turn.turn_id]  # a later attempt may take its place meanwhile
        self._ended_in_flight[turn.turn_id] = turn
        return []

    def _finish_ended(self, turn: Turn) -> list[Effect]:
        del self._ended_in_flight[turn.turn_id]
        self.leave(turn)
        return [*release_holds(self, turn), ended(turn, "cancelled")]

    def _restart(self, turn: Turn, now_ns: int) -> list[Effect]:
        self.leave(turn)
        effects = release_holds(self, turn)
        turn.prompt_logprobs = []
        self.waiting.appendleft(turn)
        return effects + look_up(self, turn, now_ns)
