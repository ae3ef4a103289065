"""What must hold of an engine core at any moment, and at the end."""

from collections import Counter
from collections.abc import Collection

from services.worker.core.effects import BlockWrite
from services.worker.core.engine import EngineCore
from services.worker.core.pages import NO_KEY, NO_PAGE, Block
from services.worker.core.step import StepPlan
from services.worker.core.turn import Turn
from services.worker.engine.tables import BlockTables
from shared.owners import OwnerKey


def held_turns(core: EngineCore) -> list[Turn]:
    """Every turn that may hold pages, each once."""
    return [*core.running, *core.waiting]


def check_pages(core: EngineCore) -> None:
    """Every page is in exactly one place, and each block's counts are right."""
    pool = core.pool
    turns = held_turns(core)
    private = [block for turn in turns for block in turn.blocks[turn.num_shared :]]
    blocks = [*pool.blocks.values(), *pool.forgotten.values(), *private]
    places: Counter[int] = Counter(pool._free[: pool.num_free].tolist())
    for block in blocks:
        pages = [page for page in pool.pages_of(block) if page != NO_PAGE]
        assert len(pages) == block.num_present, "a block's pages are miscounted"
        places.update(pages)
    assert places == Counter(range(pool.num_pages)), "a page is lost or in two places"
    rows = Counter([*pool._free_rows, *(block.row for block in blocks)])
    assert rows == Counter(range(len(pool.table))), "a row is lost or of two blocks"
    assert all(block.key is NO_KEY for block in private), "a turn's own block can be found"
    refs = Counter(id(block) for turn in turns for block in turn.blocks[: turn.num_shared])
    for key, block in pool.blocks.items():
        assert block.key == key
        assert block.refs == refs.pop(id(block), 0), "a block's users are miscounted"
        _check_block(core, block)
    for block in pool.forgotten.values():
        assert block.refs == refs.pop(id(block), 0), "a block's users are miscounted"
        assert block.refs or block.loading, "a forgotten block without use is kept"
        assert pool.blocks.get(block.key) is not block and not block.group
    assert not refs, "a turn runs on a block that is not cached"
    takeable = [block for block in pool.blocks.values() if block.group]
    assert pool.num_clean == sum(block.num_present for block in takeable), "num_clean is wrong"


def _check_block(core: EngineCore, block: Block) -> None:
    is_idle = block.refs == 0 and block.backed and not block.loading
    assert bool(block.group) == is_idle, "takeable, or not, against the rules"
    assert block.num_present > 0 and not (is_idle and block.lost), "a block without use is kept"
    if block.refs or not block.backed:
        assert core.pool.is_whole(block), "a page in use or not yet below was taken"
    pages = core.pool.pages_of(block)
    flights = [page for page in pages if page in core.stager._flights]
    assert block.loading == len(flights), "a page under way was taken"


def check_turns(core: EngineCore, plan: StepPlan | None) -> None:
    """Each turn is in one queue, and only what is in flight outlives its end."""
    turns = held_turns(core)
    assert len({id(turn) for turn in turns}) == len(turns), "a turn is queued twice"
    ended = {id(turn) for turn in core._ended_in_flight.values()}
    live = {id(turn) for turn in core.turns.values()}
    assert live | ended == {id(turn) for turn in turns} and not live & ended
    assert plan is not None or not ended, "an ended turn lingers"
    assert len(core.running) <= core.limits.turns_running_max
    blocks = (*core.pool.blocks.values(), *core.pool.forgotten.values())
    loading = sum(block.loading for block in blocks)
    assert core.stager.num_loading == loading, "a load targets no cached block"


def check_plan(core: EngineCore, plan: StepPlan, tables: BlockTables) -> None:
    """A step's rows are distinct, within their limits, and write only pages of their own."""
    planned = core._in_flight
    assert planned is not None
    turns, rows = planned.turns, plan.rows()
    assert len({id(turn) for turn in turns}) == len(turns), "a turn has two rows"
    assert [row.turn_id for row in rows] == [turn.turn_id for turn in turns]
    slots: list[int] = plan.slots.tolist()
    assert slots == [turn.slot for turn in turns] and len(set(slots)) == len(slots)
    assert rows, "an empty step"
    assert plan.num_prefill_tokens <= core.limits.prefill_tokens_max
    shared = Counter(
        page
        for block in (*core.pool.blocks.values(), *core.pool.forgotten.values())
        for page in core.pool.pages_of(block)
        if page != NO_PAGE
    )
    positions: list[int] = plan.positions().tolist()
    expected = [turn.tokens[at] for turn, row in zip(turns, rows, strict=True)
                for at in range(row.start, row.end)]  # fmt: skip
    assert positions == [at for row in rows for at in range(row.start, row.end)]
    assert plan.tokens.tolist() == expected
    for turn, row in zip(turns, rows, strict=True):
        assert 0 <= row.start < row.end <= len(turn.tokens)
        assert row.is_sampled == (row.end == len(turn.tokens))
        num_blocks = -(-row.end // core.block_tokens)
        held = tables.pages[:, turn.slot, :num_blocks]
        rows_of = [block.row for block in turn.blocks[:num_blocks]]
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
    waiting += core.writeback._committing.values()
    waiting += [each.block for each in core.writeback._storing.values() if not each.is_void]
    assert not any(block.owner in owners for block in waiting), "on its way below"
    assert not any(wish.owner in owners for wish in core.stager._wishes), "expected still"


def check_empty(core: EngineCore) -> None:
    """All work is done: nothing is held for anybody."""
    assert not core.turns and not held_turns(core) and not core._ended_in_flight
    assert not core.stager._flights and not core.stager._tickets and not core.stager._wishes
    assert core.stager._num_prefetching == 0 and not core.stager._expected
    assert all(block.refs == 0 for block in core.pool.blocks.values())
    assert not core.pool.forgotten and not core._asked
    assert not core.writeback._storing, "a write never ended"
    assert not core.writeback._committing, "a commit was never settled"
