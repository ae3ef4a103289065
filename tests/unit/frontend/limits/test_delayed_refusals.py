"""Answers that are held back."""

from services.frontend.core.limits import delayed_refusals as refusals
from services.frontend.core.limits.delayed_refusals import (
    ANSWER_NS,
    HELD_MAX,
    HOLD_NS_MAX,
    DelayedRefusals,
)
from shared.ids import TenantId
from tests.tables import largest_table

ME, OTHER = (TenantId("a"), "x"), (TenantId("a"), "y")
SECOND = 1_000_000_000


def test_the_more_somebody_asks_the_later_it_is_answered() -> None:
    held = DelayedRefusals()
    assert [held.hold(ME, 0) for _ in range(4)] == [0, ANSWER_NS, 2 * ANSWER_NS, 3 * ANSWER_NS]
    assert held.hold(OTHER, 0) == 0
    assert held.hold(ME, SECOND) == 0, "it has waited"
    for _ in range(5000):
        assert held.hold(ME, SECOND) <= HOLD_NS_MAX


def test_no_more_are_held_than_there_is_room_for() -> None:
    held = DelayedRefusals()
    holds = [held.hold(ME, 0) for _ in range(HELD_MAX + 10)]
    assert held.num_held == sum(hold > 0 for hold in holds) == HELD_MAX
    held.release()
    assert held.hold(ME, 0) > 0


def test_who_cannot_be_made_to_wait_is_not_always_answered() -> None:
    held = DelayedRefusals()
    due = [held.is_due(ME, at_ns) for at_ns in range(0, SECOND, SECOND // 1000)]
    assert sum(due) == 32 and held.is_due(OTHER, 0)


def test_senders_are_forgotten() -> None:
    held = DelayedRefusals()
    for number in range(refusals.SENDERS_MAX + 10):
        held.hold((TenantId("a"), str(number)), 0)
    assert largest_table(held) == refusals.SENDERS_MAX
