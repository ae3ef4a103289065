"""The check that production makes finds what it is for."""

from collections.abc import Callable

import pytest

from services.worker.core.engine.engine import EngineCore
from services.worker.core.engine.integrity import check_integrity
from services.worker.core.kv.pages import NO_PAGE, Block
from tests.unit.worker.driver import Engine, new_turn

PROMPT = list(range(100, 110))


def first(core: EngineCore) -> Block:
    return next(iter(core.pool.blocks.values()))


def lose_page(core: EngineCore) -> None:
    core.pool.num_free -= 1


def double_page(core: EngineCore) -> None:
    core.pool.table[first(core).row, 0] = core.pool.unused()[0][0]


def lose_row(core: EngineCore) -> None:
    core.pool.unused()[1].pop()


def take_from_a_turn(core: EngineCore) -> None:
    core.pool.table[first(core).row, 1] = NO_PAGE


def miscount_users(core: EngineCore) -> None:
    first(core).refs += 1


def miscount_clean(core: EngineCore) -> None:
    core.pool.num_takeable += 1


def share_an_own_block(core: EngineCore) -> None:
    turn = core.running[0]
    turn.cache.own.insert(0, turn.cache.prefix.blocks.pop())


@pytest.mark.parametrize(
    "harm",
    [
        lose_page,
        double_page,
        lose_row,
        take_from_a_turn,
        miscount_users,
        miscount_clean,
        share_an_own_block,
    ],
)
def test_what_does_not_add_up_is_found(harm: Callable[[EngineCore], None]) -> None:
    engine = Engine()
    engine.submit(new_turn("t", PROMPT))
    engine.step()
    check_integrity(engine.core)
    harm(engine.core)
    with pytest.raises(AssertionError):
        check_integrity(engine.core)
