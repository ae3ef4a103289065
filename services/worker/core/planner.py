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
from services.worker.core.effects import BlockWrite, Effect, LoadPages, PageLoad, Row, StepPlan
from services.worker.core.history import (
    acquire_resident,
    load_staged,
    num_pages_wanted,
    release_holds,
)
from services.worker.core.turn import Table, Turn, TurnState

if TYPE_CHECKING:
    from services.worker.core.engine import EngineCore


@dataclass(slots=True)
class _Draft:
    """The plan as it grows."""

    now_ns: int
    budget: int
    num_kept: int = 0  # tokens that each prompt keeps back
    rows: list[Row] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)


def plan_rows(core: "EngineCore", now_ns: int) -> tuple[StepPlan | None, list[Effect]]:
    """Decide the rows and writes of the next step; None when there is nothing to run."""
    plan = _Draft(now_ns, core.limits.prefill_tokens_max)
    for turn in list(core.running):
        if turn.state is TurnState.RUNNING and _is_decoding(turn):
            _plan_row(core, turn, 1, plan)
    _plan_prompts(core, decide(core, len(plan.rows), now_ns), plan)
    writes = core.writeback.late_writes() + _plan_writes(core, plan.rows)
    if not plan.rows and not writes:
        return None, plan.effects
    tables = _page_tables(core, plan.rows)
    return StepPlan(plan.rows, tables, writes, core.writeback.epoch), plan.effects


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
    if plan.rows and core.stager.is_loading(turn.table[0, : len(turn.blocks)].tolist()):
        return  # let the others run while the first layer's history arrives
    num_tokens = min(plan.budget, len(turn.tokens) - turn.num_computed - plan.num_kept)
    if num_tokens <= 0:
        return  # all but what it keeps back is computed
    if _plan_row(core, turn, num_tokens, plan):
        plan.budget -= num_tokens


def _plan_row(core: "EngineCore", turn: Turn, num_tokens: int, plan: _Draft) -> bool:
    """Make sure of the pages for `num_tokens` more tokens and add the row."""
    if any(block.lost for block in turn.blocks):
        plan.effects += core.forget_history(turn, plan.now_ns)
        return False
    end = turn.num_computed + num_tokens
    while turn.num_blocks * turn.block_tokens < end:
        pages = core.pool.allocate(core.pool.num_layers)
        if pages is None:
            victim = _victim(core)
            plan.effects += core.preempt(victim, plan.now_ns)
            plan.rows = [row for row in plan.rows if row.turn is not victim]
            if victim is turn:
                return False
            continue
        turn.set_pages(turn.num_blocks, pages)
        turn.num_blocks += 1
    is_loading = any(block.loading for block in turn.blocks)
    awaits = len(turn.blocks) if is_loading else 0
    awaited = core.stager.loading_pages(turn.blocks) if is_loading else []
    is_last = end == len(turn.tokens)
    plan.rows.append(Row(turn, turn.num_computed, end, is_last, awaits, awaited))
    return True


def _victim(core: "EngineCore") -> Turn:
    """The running turn to preempt: of the lowest priority, the one that was admitted last."""
    lowest = min(turn.priority for turn in core.running)
    return next(turn for turn in reversed(core.running) if turn.priority == lowest)


def _admit(core: "EngineCore", turn: Turn, effects: list[Effect]) -> bool:
    """Move a waiting turn into the batch if there are pages for its whole prompt."""
    if any(block.lost for block in turn.blocks):
        effects += release_holds(core, turn)
    acquire_resident(core, turn)
    reserve = len(core.running) * core.pool.num_layers
    is_short = core.pool.num_available < num_pages_wanted(core, turn) + reserve
    if is_short and (core.running or not _make_room(core, turn, effects)):
        return False
    loads: list[PageLoad] = []
    effects += load_staged(core, turn, loads)
    if loads:
        effects.append(LoadPages(loads))
    if turn.first_step_at_ns is None:
        turn.num_cached = turn.num_computed
        core.num_prefix_hits += len(turn.blocks)
    core.waiting.remove(turn)
    core.running.append(turn)
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


def _plan_writes(core: "EngineCore", rows: list[Row]) -> list[BlockWrite]:
    """The blocks that this step fills, each with arena pages while there are some."""
    writes: dict[bytes, BlockWrite] = {}
    for index, row in enumerate(rows):
        turn = row.turn
        if turn.is_private:
            continue
        for number in range(len(turn.blocks), row.end // turn.block_tokens):
            key = turn.key(number)
            if key in core.pool.blocks or key in writes:
                continue
            arena_pages = core.writeback.take_pages()
            if arena_pages is None:
                return list(writes.values())
            writes[key] = BlockWrite(
                key,
                turn.parent_key(number),
                turn.block(number),
                turn.table[:, number].tolist(),
                arena_pages,
                index,
                turn.owner,
            )
    return list(writes.values())


def _page_tables(core: "EngineCore", rows: list[Row]) -> Table:
    """int32 [num_layers, num_rows, max_blocks]; columns past a row's end hold page 0."""
    num_blocks = [-(-row.end // row.turn.block_tokens) for row in rows]
    tables = np.zeros((core.pool.num_layers, len(rows), max(num_blocks, default=0)), np.int32)
    for index, row in enumerate(rows):
        tables[:, index, : num_blocks[index]] = row.turn.table[:, : num_blocks[index]]
    return tables
