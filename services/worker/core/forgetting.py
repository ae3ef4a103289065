"""A session is deleted while its blocks, and perhaps its turns, are here."""

from typing import TYPE_CHECKING

from services.worker.core.effects import Effect
from services.worker.core.turn import Turn, TurnState
from shared.blocks import BlockKey
from shared.owners import OwnerKey

if TYPE_CHECKING:
    from services.worker.core.engine import EngineCore


def forget_session(
    core: "EngineCore", owner: OwnerKey, keys: list[BlockKey]
) -> tuple[int, list[Effect]]:
    """Nobody finds the blocks that `owner` made, or those of `keys`, from now on, and none of them
    goes below any more. Its turns go on to their ends, on pages that are only theirs.

    Returns:
        How many blocks could be found until now.
    """
    effects: list[Effect] = []
    for turn in (*core.running, *core.waiting):
        if turn.owner == owner:
            effects += _make_private(core, turn)
    effects += core.stager.forget(owner)
    found = {key: core.pool.blocks.get(key) for key in [*core.pool.owned(owner), *keys]}
    blocks = [block for block in found.values() if block is not None]
    core.writeback.forget(blocks)
    for block in blocks:
        core.pool.forget(block)
    return len(blocks), effects


def _make_private(core: "EngineCore", turn: Turn) -> list[Effect]:
    turn.is_private = True
    if turn.state is TurnState.STAGING:
        turn.state = TurnState.WAITING  # the answer, when it comes, is let go
    staged, turn.staged = turn.staged, None
    return [] if staged is None else core.stager.let_go(staged.ticket)
