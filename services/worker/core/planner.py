"""The plan of one step.

Decodes first: each running turn that has its whole context gets one row. Then prompts, in chunks
that share one token budget: those under way, then waiting turns in order of priority and arrival,
if `admission` lets them in now. A decode that finds no page preempts the turn that came last; a
waiting turn is admitted only when pages for its whole prompt are there, so that it is not preempted
at once.

A step may be planned while another is in flight. Its rows begin where those in flight will end, and
a token that is still to be chosen is carried over on the device. Nothing is taken from a turn that
a step in flight has a row of: what would take it waits until nothing is in flight.
"""

from dataclasses import dataclass, field

from services.worker.core.admission import Decision
from services.worker.core.effects import Effect
from services.worker.core.history import History
from services.worker.core.pages import Block
from services.worker.core.queue import TurnQueue
from services.worker.core.residency import Residency
from services.worker.core.rows import Row, step_plan
from services.worker.core.step import StepPlan
from services.worker.core.turn import Turn, TurnState


@dataclass(slots=True)
class PlannedStep:
    """A plan, and whose turns its rows are.

    Attributes:
        retired: blocks that nobody needs any more once the step has landed.
        ends_at_ns: when that will probably be.
    """

    plan: StepPlan
    turns: list[Turn]
    retired: list[Block] = field(default_factory=list)
    ends_at_ns: int = 0


@dataclass(slots=True)
class Draft:
    """A plan as it grows.

    Attributes:
        is_ahead: a step is in flight.
        is_short: a turn was left out because it needs pages that others have.
        budget: prompt tokens that the step can still take.
        num_kept: tokens that each prompt keeps back.
    """

    now_ns: int
    budget: int
    is_ahead: bool
    is_short: bool = False
    num_kept: int = 0
    rows: list[Row] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)


@dataclass(slots=True)
class Planner:
    """Fills a step: `begin` with the decodes, `add_prompts`, `end`."""

    queue: TurnQueue
    history: History
    residency: Residency
    prefill_tokens_max: int
    tokens_max: int
    num_preemptions: int = 0

    def begin(self, now_ns: int, *, is_ahead: bool) -> Draft:
        """A step with every turn that decodes."""
        draft = Draft(now_ns, self.prefill_tokens_max, is_ahead)
        for turn in list(self.queue.running):
            if turn.can_run and turn.is_decoding and not turn.awaits_last(self.tokens_max):
                self._add_row(turn, 1, draft)
        return draft

    def add_prompts(self, draft: Draft, decision: Decision) -> None:
        """Prompts, as far as the decision and the budget go."""
        draft.num_kept = decision.num_kept
        for turn in list(self.queue.running):
            if draft.budget > 0 and turn.can_run and not turn.is_decoding:
                self._add_chunk(turn, draft)
        is_idle = not (draft.rows or draft.is_ahead)
        if decision.opens or is_idle:  # where nothing runs nobody would ask again
            self._add_waiting(draft)

    def end(self, draft: Draft) -> PlannedStep | None:
        """The plan; None when there is nothing to run."""
        if not draft.rows:
            return None
        plan = step_plan(draft.rows, self.residency.pool)
        for row in draft.rows:
            row.turn.on_planned(row.end)
        return PlannedStep(plan, [row.turn for row in draft.rows])

    def preempt(self, turn: Turn, now_ns: int) -> list[Effect]:
        """Take a running turn's pages; it comes back first, with what it generated so far."""
        self.num_preemptions += 1
        return self._restart(turn, now_ns)

    def recompute(self, turn: Turn, now_ns: int) -> list[Effect]:
        """History did not come: the turn keeps what is surely here and computes the rest."""
        self.residency.give_up(turn.prefix)
        turn.num_cached = 0
        return self._restart(turn, now_ns)

    def _restart(self, turn: Turn, now_ns: int) -> list[Effect]:
        assert not turn.num_flights, "a step in flight reads its pages"
        effects = self.history.release(turn)
        turn.prompt_logprobs = []
        self.queue.put_back(turn)
        return effects + self.history.look_up(turn, now_ns)

    def _add_waiting(self, draft: Draft) -> None:
        for turn in list(self.queue.waiting):
            if draft.budget <= 0 or self.queue.is_full:
                break
            if turn.prefix.is_asked:
                continue
            if not self._admit(turn, draft.effects):
                break
            self._add_chunk(turn, draft)

    def _add_chunk(self, turn: Turn, draft: Draft) -> None:
        """A chunk of a prompt, within what is left of the budget."""
        if draft.rows and self.residency.is_coming(turn.prefix, 0):
            return  # let the others run while the first layer's history arrives
        num_tokens = min(draft.budget, len(turn.tokens) - turn.num_planned - draft.num_kept)
        if num_tokens <= 0:
            return  # all but what it keeps back is computed
        if self._add_row(turn, num_tokens, draft):
            draft.budget -= num_tokens

    def _add_row(self, turn: Turn, num_tokens: int, draft: Draft) -> bool:
        """Make sure of the pages for `num_tokens` more tokens and add the row."""
        residency, prefix = self.residency, turn.prefix
        if prefix.coming and not residency.settle(prefix):
            if not turn.num_flights:
                draft.effects += self.recompute(turn, draft.now_ns)
            return False
        end = turn.num_planned + num_tokens
        while (num_lacking := -(-end // turn.block_tokens) - turn.num_blocks) > 0:
            blocks = residency.pool.allocate(num_lacking)
            if not blocks:
                if draft.is_ahead:
                    draft.is_short = True
                    return False
                victim = self.queue.victim()
                draft.effects += self.preempt(victim, draft.now_ns)
                draft.rows = [row for row in draft.rows if row.turn is not victim]
                if victim is turn:
                    return False
                continue
            turn.add_blocks(blocks)
        draft.rows.append(Row(turn, turn.num_planned, end, residency.awaited(prefix)))
        return True

    def _admit(self, turn: Turn, effects: list[Effect]) -> bool:
        """Move a waiting turn into the batch if there are pages for its whole prompt."""
        history, residency, running = self.history, self.residency, self.queue.running
        if not residency.settle(turn.prefix):
            effects += history.release(turn)
        history.acquire_resident(turn)
        reserve = len(running) * residency.pool.num_layers
        is_short = residency.num_available < history.num_pages_wanted(turn) + reserve
        if is_short and (running or not self._make_room(turn, effects)):
            return False
        effects += history.load_staged(turn)
        if turn.first_step_at_ns is None:
            turn.num_cached = turn.num_computed
            history.num_prefix_hits += len(turn.prefix.blocks)
        self.queue.start(turn)
        turn.state = TurnState.RUNNING
        return True

    def _make_room(self, turn: Turn, effects: list[Effect]) -> bool:
        """Nothing runs, so only what waiting turns hold, and blocks for which the kvstore has no
        room, can stand in the way of `turn`."""
        history, residency = self.history, self.residency
        for other in self.queue.waiting:
            if other is not turn:
                effects += history.release(other)
        num_wanted = history.num_pages_wanted(turn)
        if residency.num_available < num_wanted:
            history.writeback.give_up_unwritten()
        return residency.num_available >= num_wanted
