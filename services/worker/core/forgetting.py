"""A session is deleted while its blocks, and perhaps its turns, are here."""

from collections.abc import Iterable

from services.worker.core.effects import Effect
from services.worker.core.history import History
from services.worker.core.turn import Turn, TurnState
from shared.blocks import BlockKey
from shared.owners import OwnerKey


def forget_session(
    history: History, turns: Iterable[Turn], owner: OwnerKey, keys: list[BlockKey]
) -> tuple[int, list[Effect]]:
    """Nobody finds the blocks that `owner` made, or those of `keys`, from now on, and none of them
    goes below any more. Its turns go on to their ends, on pages that are only theirs.

    Returns:
        How many blocks could be found until now.
    """
    effects: list[Effect] = []
    for turn in turns:
        if turn.owner == owner:
            effects += _make_private(history, turn)
    effects += history.stager.forget(owner)
    pool = history.pool
    found = {key: pool.blocks.get(key) for key in [*pool.owned(owner), *keys]}
    blocks = [block for block in found.values() if block is not None]
    history.writeback.forget(blocks)
    for block in blocks:
        pool.forget(block)
    return len(blocks), effects


def _make_private(history: History, turn: Turn) -> list[Effect]:
    turn.is_private = True
    if turn.state is TurnState.STAGING:
        turn.state = TurnState.WAITING  # the answer, when it comes, is let go
    staged, turn.staged = turn.staged, None
    return [] if staged is None else history.stager.let_go(staged.ticket)
