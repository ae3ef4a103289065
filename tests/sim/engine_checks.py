"""What must hold of an engine core at any moment, and at the end."""

from collections import Counter
from collections.abc import Collection

from services.worker.core.effects import BlockWrite, StepPlan
from services.worker.core.engine import EngineCore
from services.worker.core.pages import NO_PAGE, CachedBlock
from services.worker.core.turn import Turn
from shared.owners import OwnerKey


def held_turns(core: EngineCore) -> list[Turn]:
    """Every turn that may hold pages, each once."""
    return [*core.running, *core.waiting]


def check_pages(core: EngineCore) -> None:
    """Every page is in exactly one place, and each block's counts are right."""
    pool = core.pool
    places = Counter(pool._free)
    for block in (*pool.blocks.values(), *pool.forgotten.values()):
        places.update(page for page in block.pages if page != NO_PAGE)
    for turn in held_turns(core):
        places.update(turn.private_pages())
    assert places == Counter(range(pool.num_pages)), "a page is lost or in two places"
    refs = Counter(id(block) for turn in held_turns(core) for block in turn.blocks)
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


def _check_block(core: EngineCore, block: CachedBlock) -> None:
    is_idle = block.refs == 0 and block.backed and not block.loading
    assert bool(block.group) == is_idle, "takeable, or not, against the rules"
    assert block.num_present > 0 and not (is_idle and block.lost), "a block without use is kept"
    if block.refs or not block.backed:
        assert NO_PAGE not in block.pages, "a page in use or not yet below was taken"
    flights = [page for page in block.pages if page in core.stager._flights]
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


def check_plan(core: EngineCore, plan: StepPlan) -> None:
    """A step's rows are distinct, within their limits, and write only pages of their own."""
    assert len({id(row.turn) for row in plan.rows}) == len(plan.rows), "a turn has two rows"
    assert plan.rows or plan.writes, "an empty step"
    num_prefill = sum(row.end - row.start for row in plan.rows if row.end - row.start > 1)
    assert num_prefill <= core.limits.prefill_tokens_max
    shared = Counter(
        page
        for block in (*core.pool.blocks.values(), *core.pool.forgotten.values())
        for page in block.pages
        if page != NO_PAGE
    )
    for index, row in enumerate(plan.rows):
        assert 0 <= row.start < row.end <= len(row.turn.tokens)
        assert row.sample == (row.end == len(row.turn.tokens))
        num_blocks = -(-row.end // core.block_tokens)
        tables = plan.page_tables[:, index, row.start // core.block_tokens : num_blocks]
        shared.update(tables.ravel().tolist())
        written: list[int] = tables.ravel().tolist()
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
    assert not any(block.owner in owners for block in waiting), "on its way below"
    assert not any(wish.owner in owners for wish in core.stager._wishes), "expected still"


def check_empty(core: EngineCore) -> None:
    """All work is done: nothing is held for anybody."""
    assert not core.turns and not held_turns(core) and not core._ended_in_flight
    assert not core.stager._flights and not core.stager._tickets and not core.stager._wishes
    assert core.stager._num_prefetching == 0 and not core.stager._expected
    assert all(block.refs == 0 for block in core.pool.blocks.values())
    assert not core.pool.forgotten and not core._asked
    assert not core.writeback._committing, "a commit was never settled"
