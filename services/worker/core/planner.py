"""The plan of one step.

Decodes first: each running turn that has its whole context gets one row. Then prompts, in chunks
that share one token budget: those under way, then waiting turns in order of priority and arrival,
if `admission` lets them in now. A decode that finds no page preempts the turn that came last; a
waiting turn is admitted only when pages for its whole prompt are there, so that it is not preempted
at once.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from services.worker.core.admission import Decision, decide
from services.worker.core.effects import Effect
from services.worker.core.history import (
    acquire_resident,
    load_staged,
    num_pages_wanted,
    release_holds,
)
from services.worker.core.pages import PagePool
from services.worker.core.step import RowSampling, RowScoring, StepPlan, TableEntries
from services.worker.core.turn import Turn, TurnState
from shared.sampling import has_penalties

if TYPE_CHECKING:
    from services.worker.core.engine import EngineCore


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A plan, and whose turns its rows are."""

    plan: StepPlan
    turns: list[Turn]


@dataclass(frozen=True, slots=True)
class _Row:
    """One turn's part: compute ``tokens[start:end]``, once `awaited` (see `StepPlan`) is there."""

    turn: Turn
    start: int
    end: int
    awaited: list[list[int]]


@dataclass(slots=True)
class _Draft:
    """The plan as it grows."""

    now_ns: int
    budget: int
    num_kept: int = 0  # tokens that each prompt keeps back
    rows: list[_Row] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)


def plan_rows(core: "EngineCore", now_ns: int) -> tuple[PlannedStep | None, list[Effect]]:
    """Decide the rows of the next step; None when there is nothing to run."""
    plan = _Draft(now_ns, core.limits.prefill_tokens_max)
    for turn in list(core.running):
        if turn.state is TurnState.RUNNING and _is_decoding(turn):
            _plan_row(core, turn, 1, plan)
    _plan_prompts(core, decide(core, len(plan.rows), now_ns), plan)
    if not plan.rows:
        return None, plan.effects
    turns = [row.turn for row in plan.rows]
    return PlannedStep(_step_plan(plan.rows, core.pool), turns), plan.effects


def _plan_prompts(core: "EngineCore", decision: Decision, plan: _Draft) -> None:
    plan.num_kept = decision.num_kept
    _plan_under_way(core, plan)
    if decision.opens or not plan.rows:  # without rows nobody would ask again
        _plan_waiting(core, plan)


def _plan_under_way(core: "EngineCore", plan: _Draft) -> None:
    for turn in list(core.running):
        if plan.budget > 0 and turn.state is TurnState.RUNNING and not _is_decoding(turn):
            _plan_prefill(core, turn, plan)


def _plan_waiting(core: "EngineCore", plan: _Draft) -> None:
    for turn in list(core.waiting):
        if plan.budget <= 0 or len(core.running) >= core.limits.turns_running_max:
            break
        if turn.state is TurnState.STAGING:
            continue
        if not _admit(core, turn, plan.effects):
            break
        _plan_prefill(core, turn, plan)


def _is_decoding(turn: Turn) -> bool:
    return turn.num_computed == len(turn.tokens) - 1


def _plan_prefill(core: "EngineCore", turn: Turn, plan: _Draft) -> None:
    """Plan a chunk of a prompt, within what is left of the budget."""
    if plan.rows and core.stager.is_loading(turn.coming, 0):
        return  # let the others run while the first layer's history arrives
    num_tokens = min(plan.budget, len(turn.tokens) - turn.num_computed - plan.num_kept)
    if num_tokens <= 0:
        return  # all but what it keeps back is computed
    if _plan_row(core, turn, num_tokens, plan):
        plan.budget -= num_tokens


def _plan_row(core: "EngineCore", turn: Turn, num_tokens: int, plan: _Draft) -> bool:
    """Make sure of the pages for `num_tokens` more tokens and add the row."""
    if turn.coming and not _settle_coming(turn):
        plan.effects += core.forget_history(turn, plan.now_ns)
        return False
    end = turn.num_computed + num_tokens
    while len(turn.blocks) * turn.block_tokens < end:
        block = core.pool.allocate()
        if block is None:
            victim = _victim(core)
            plan.effects += core.preempt(victim, plan.now_ns)
            plan.rows = [row for row in plan.rows if row.turn is not victim]
            if victim is turn:
                return False
            continue
        turn.add_block(block)
    awaited = core.stager.loading_pages(turn.coming) if turn.coming else []
    plan.rows.append(_Row(turn, turn.num_computed, end, awaited))
    return True


def _settle_coming(turn: Turn) -> bool:
    """Forget what has come of a turn's history; False if some of it will not come."""
    if any(block.lost for block in turn.coming):
        return False
    turn.coming = [block for block in turn.coming if block.loading]
    return True


def _victim(core: "EngineCore") -> Turn:
    """The running turn to preempt: of the lowest priority, the one that was admitted last."""
    lowest = min(turn.priority for turn in core.running)
    return next(turn for turn in reversed(core.running) if turn.priority == lowest)


def _admit(core: "EngineCore", turn: Turn, effects: list[Effect]) -> bool:
    """Move a waiting turn into the batch if there are pages for its whole prompt."""
    if any(block.lost for block in turn.coming):
        effects += release_holds(core, turn)
    acquire_resident(core, turn)
    reserve = len(core.running) * core.pool.num_layers
    is_short = core.pool.num_available < num_pages_wanted(core, turn) + reserve
    if is_short and (core.running or not _make_room(core, turn, effects)):
        return False
    effects += load_staged(core, turn)
    if turn.first_step_at_ns is None:
        turn.num_cached = turn.num_computed
        core.num_prefix_hits += len(turn.blocks)
    core.join(turn)
    turn.state = TurnState.RUNNING
    return True


def _make_room(core: "EngineCore", turn: Turn, effects: list[Effect]) -> bool:
    """Nothing runs, so only what waiting turns hold, and blocks for which the kvstore has no room,
    can stand in the way of `turn`."""
    for other in core.waiting:
        if other is not turn:
            effects += release_holds(core, other)
    if core.pool.num_available < num_pages_wanted(core, turn):
        core.writeback.give_up_unwritten()
    return core.pool.num_available >= num_pages_wanted(core, turn)


def _step_plan(rows: list[_Row], pool: PagePool) -> StepPlan:
    lengths = [row.end - row.start for row in rows]
    tokens = [token for row in rows for token in row.turn.tokens[row.start : row.end]]
    return StepPlan(
        turn_ids=[row.turn.turn_id for row in rows],
        slots=np.array([row.turn.slot for row in rows], np.int32),
        tokens=np.array(tokens, np.int32),
        query_starts=np.cumsum([0, *lengths], dtype=np.int32),
        context_lens=np.array([row.end for row in rows], np.int32),
        sampling=[_sampling(row) for row in rows],
        scoring={index: told for index, row in enumerate(rows) if (told := _scoring(row))},
        awaited={index: row.awaited for index, row in enumerate(rows) if row.awaited},
        entries=_entries([row.turn for row in rows], pool),
    )


def _sampling(row: _Row) -> RowSampling | None:
    turn = row.turn
    if row.end < len(turn.tokens):
        return None
    if not has_penalties(turn.sampling):
        return RowSampling(turn.sampling, turn.num_generated)
    prompt, generated = turn.tokens[: turn.num_prompt], turn.tokens[turn.num_prompt :]
    return RowSampling(turn.sampling, turn.num_generated, prompt, generated)


def _scoring(row: _Row) -> RowScoring | None:
    turn = row.turn
    num_top = turn.sampling.prompt_logprobs
    if num_top is None or row.start >= turn.num_prompt:
        return None
    targets = turn.tokens[row.start + 1 : min(row.end + 1, turn.num_prompt)]
    return RowScoring(num_top, targets, row.start == 0)


def _entries(turns: list[Turn], pool: PagePool) -> TableEntries:
    """What the executor's block tables lack of these turns."""
    slots: list[int] = []
    blocks: list[int] = []
    rows: list[int] = []
    for turn in turns:
        if turn.untold:
            slots += [turn.slot] * len(turn.untold)
            blocks += turn.untold
            rows += [turn.blocks[number].row for number in turn.untold]
            turn.untold = []
    return TableEntries(np.array(slots, np.int32), np.array(blocks, np.int32), pool.table[rows])
