"""A session is deleted while its blocks, and perhaps its turns, are here."""

from collections.abc import Iterable

from services.worker.core.effects import Effect
from services.worker.core.turns.history import History
from services.worker.core.turns.turn import Turn
from shared.blocks import BlockKey
from shared.owners import OwnerKey


def forget_session(
    history: History, turns: Iterable[Turn], owner: OwnerKey, keys: list[BlockKey]
) -> tuple[int, list[Effect]]:
    """The blocks that `owner` made, and those of `keys`, cannot be found from now on, and none of
    them is offloaded any more. Its turns go on to their ends, on pages that are only theirs.

    Returns:
        How many blocks could be found until now.
    """
    effects: list[Effect] = []
    for turn in turns:
        if turn.request.owner == owner:
            turn.cache.is_private = True
            effects += history.residency.unstage(turn.cache.prefix)
    residency = history.residency
    effects += residency.stager.forget(owner)
    pool = residency.pool
    found = {key: pool.blocks.get(key) for key in [*pool.owned(owner), *keys]}
    blocks = [block for block in found.values() if block is not None]
    history.write_behind.forget(blocks)
    residency.forget(blocks)
    return len(blocks), effects
