"""What must hold of an engine core at any moment, and at the end."""

from collections import Counter
from collections.abc import Collection

from services.worker.core.effects import BlockWrite
from services.worker.core.engine.engine import EngineCore
from services.worker.core.kv.pages import NO_PAGE
from services.worker.core.step import StepPlan
from services.worker.core.turns.turn import Turn
from services.worker.device.tables import BlockTables
from shared.hints import HINTED_SHARE
from shared.owners import OwnerKey


def held_turns(core: EngineCore) -> list[Turn]:
    """Every turn that may hold pages, each once."""
    return [*core.running, *core.waiting]


def check_turns(core: EngineCore) -> None:
    """Each turn is in one queue, and only what is in flight outlives its end."""
    turns = held_turns(core)
    assert len({id(turn) for turn in turns}) == len(turns), "a turn is queued twice"
    leaving = {id(turn) for turn in core.landing.leaving}
    live = {id(turn) for turn in core.turns.values()}
    in_flight = [turn for planned in core.flights for turn in planned.turns]
    assert live | leaving == {id(turn) for turn in turns} and not live & leaving
    assert leaving <= {id(turn) for turn in in_flight}, "a turn that ended lingers"
    for turn in turns:
        assert turn.num_flights == in_flight.count(turn), "its steps in flight are miscounted"
        assert turn.num_computed <= turn.num_planned <= turn.length
        assert turn.num_flights or (not turn.num_sampling and not turn.is_void)
    assert len(core.running) <= core.limits.turns_running_max


def check_plan(core: EngineCore, plan: StepPlan, tables: BlockTables) -> None:
    """A step's rows are distinct, within their limits, and write only pages of their own."""
    planned = core.flights[-1]
    assert planned.plan is plan
    turns, rows = planned.turns, plan.rows()
    assert len({id(turn) for turn in turns}) == len(turns), "a turn has two rows"
    assert [row.turn_id for row in rows] == [turn.request.turn_id for turn in turns]
    slots: list[int] = plan.slots.tolist()
    assert slots == [turn.slot for turn in turns] and len(set(slots)) == len(slots)
    assert rows, "an empty step"
    assert plan.num_prefill_tokens <= core.limits.prefill_tokens_max
    tails = [turn.cache.tail for turn in turns if turn.cache.tail is not None]
    assert all(tail.is_forgotten and tail.refs == 1 for tail in tails), "others may find it"
    others = [*core.pool.blocks.values(), *core.pool.forgotten.values()]
    shared = Counter(
        page
        for block in others
        if block not in tails
        for page in core.pool.pages_of(block)
        if page != NO_PAGE
    )
    positions: list[int] = plan.positions().tolist()
    expected = [turn.tokens[at] if at < len(turn.tokens) else 0
                for turn, row in zip(turns, rows, strict=True)
                for at in range(row.start, row.end)]  # fmt: skip
    assert positions == [at for row in rows for at in range(row.start, row.end)]
    assert plan.tokens.tolist() == expected
    carried = {turn.request.turn_id for turn, row in zip(turns, rows, strict=True)
               if row.end == len(turn.tokens) + 1}  # fmt: skip
    assert carried == {plan.turn_ids[row] for row in plan.carried.tolist()}
    for turn, row in zip(turns, rows, strict=True):
        assert 0 <= row.start < row.end == turn.num_planned <= len(turn.tokens) + 1
        assert row.is_sampled == (row.end == turn.length - row.is_sampled)
        num_blocks = -(-row.end // core.block_tokens)
        held = tables.pages[:, turn.slot, :num_blocks]
        rows_of = [turn.cache.held(index).row for index in range(num_blocks)]
        assert (core.pool.table[rows_of] == held.T).all(), "the executor was not told of a page"
        written: list[int] = held[:, row.start // core.block_tokens :].ravel().tolist()
        shared.update(written)
        assert all(shared[page] == 1 for page in written), "writes into a page that others read"


def check_forgotten(
    core: EngineCore, below: Collection[BlockWrite], owners: Collection[OwnerKey]
) -> None:
    """Nobody finds anything that a deleted session made, here or below, and nothing of it is on its
    way there.
    """
    assert not any(block.owner in owners for block in core.pool.blocks.values()), "findable here"
    assert not any(write.owner in owners for write in below), "findable below"
    waiting = [late.block for late in core.writeback._unwritten]
    waiting += [late.block for late in core.writeback._committing.values()]
    waiting += [each.block for each in core.writeback._storing.values() if not each.is_void]
    assert not any(block.owner in owners for block in waiting), "on its way below"
    assert not any(prefetch.owner in owners for prefetch in core.stager._prefetches), (
        "expected still"
    )


def check_hints(core: EngineCore) -> None:
    """What hints keep adds up, and leaves room."""
    hints = [hint for each in core.stager.hints._hints.values() for hint in each.values()]
    num_kept = sum(hint.num_pages for hint in hints)
    shares = core.stager.hints.shares
    assert shares.num_held == num_kept <= HINTED_SHARE * core.pool.num_pages
    assert shares._num_of.total() == num_kept


def check_empty(core: EngineCore) -> None:
    """All work is done: nothing is held for anybody."""
    assert not core.turns and not held_turns(core) and not core.flights and not core.landing.leaving
    assert not len(core.stager.flights) and not core.stager._tickets and not core.stager._prefetches
    assert core.stager.flights.num_prefetching == 0 and not core.stager._expected
    assert all(block.refs == 0 for block in core.pool.blocks.values())
    assert not core.pool.forgotten
    assert not core.stager.flights._num_demanded.any(), "loads are miscounted"
    assert not core.announcements.expecting._asked and not core.announcements.expecting._waiting
    check_hints(core)
    assert not core.writeback._storing, "a write never ended"
    assert not core.writeback._committing, "a commit was never settled"
