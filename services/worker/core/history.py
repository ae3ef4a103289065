"""A turn's history: what of its prefix is resident, what is brought up, what is let go."""

from typing import TYPE_CHECKING

from services.worker.core.effects import Effect, StageTurn
from services.worker.core.pages import Block
from services.worker.core.staging import PageGathering
from services.worker.core.turn import Turn, TurnState
from shared.blocks import BlockKey
from shared.owners import OwnerKey

if TYPE_CHECKING:
    from services.worker.core.engine import EngineCore


def look_up(core: "EngineCore", turn: Turn, now_ns: int) -> list[Effect]:
    """Acquire what is resident of the turn's prefix, and ask the kvstore for what follows."""
    turn.state = TurnState.WAITING
    num_reusable = turn.num_reusable_blocks
    core.num_prefix_queries += num_reusable
    acquire_resident(core, turn)
    if turn.is_private or not (turn.may_stage and core.writeback.is_connected):
        return []
    keys = [turn.key(index) for index in range(turn.num_shared, num_reusable)]
    if not keys:
        return []
    turn.state = TurnState.STAGING
    turn.staged_from = turn.num_shared
    turn.stage_deadline_ns = now_ns + _patience_ns(core, len(keys))
    return [StageTurn(turn.turn_id, turn.attempt, keys, turn.request_id)]


def _patience_ns(core: "EngineCore", num_blocks: int) -> int:
    """How long the kvstore's answer is worth waiting for: half of what computing would take."""
    limits, speed = core.limits, core.estimates.prefill_tokens_per_s
    if speed == 0.0:
        return limits.stage_timeout_max_ns
    worth_ns = int(0.5e9 * num_blocks * core.block_tokens / speed)
    return min(max(worth_ns, limits.stage_timeout_min_ns), limits.stage_timeout_max_ns)


def acquire_resident(core: "EngineCore", turn: Turn) -> None:
    """Extend the turn's blocks by those whose every layer is here or on its way."""
    for index in range(turn.num_shared, turn.num_reusable_blocks):
        block = core.pool.blocks.get(turn.key(index))
        if block is None or block.lost or not core.pool.is_whole(block):
            return
        core.pool.acquire(block)
        turn.adopt(block)


def num_pages_wanted(core: "EngineCore", turn: Turn) -> int:
    """Pages the turn still needs for all its tokens and the one it will make."""
    num_blocks = len(turn.tokens) // turn.block_tokens + 1
    return (num_blocks - len(turn.blocks)) * core.pool.num_layers


def load_staged(core: "EngineCore", turn: Turn) -> list[Effect]:
    """Adopt the staged blocks that continue what is resident, with a load for each page they
    lack, and let the stage go. Stops early when pages run out: the rest is computed.

    What stood before `staged_from` may have been let go since, to make room; then it is no use.
    """
    staged, turn.staged = turn.staged, None
    if staged is None:
        return []
    loads = PageGathering()
    end = turn.staged_from + staged.num_blocks
    while turn.staged_from <= turn.num_shared < end:
        index = turn.num_shared - turn.staged_from
        block = _acquire_for_load(core, staged.keys[index], turn.owner)
        if block is None:
            break
        core.stager.load(block, staged, index, loads)
        turn.adopt(block)
    return loads.effects(is_prefetch=False) + core.stager.let_go(staged.ticket)


def _acquire_for_load(core: "EngineCore", key: BlockKey, owner: OwnerKey) -> Block | None:
    """The block under `key`, acquired, if there are pages for the layers it lacks."""
    pool = core.pool
    block = pool.blocks.get(key)
    if block is None:
        if pool.num_available < pool.num_layers:
            return None
        block = pool.enter(key, owner)
        pool.acquire(block)
        return block
    if block.lost:
        return None
    pool.acquire(block)
    if pool.num_available < pool.num_layers - block.num_present:
        pool.release([block])
        return None
    return block


def release_holds(core: "EngineCore", turn: Turn) -> list[Effect]:
    """A turn lets go of all its pages and of its stage."""
    effects: list[Effect] = []
    if turn.staged is not None:
        effects += core.stager.let_go(turn.staged.ticket)
        turn.staged = None
    shared, own = turn.drop_blocks()
    core.pool.give_back(own)
    core.pool.release(shared)
    return effects
