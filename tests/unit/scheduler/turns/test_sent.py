"""Turns that their frontends send at once to the worker that keeps their place."""

from services.scheduler.core import (
    CancelTurn,
    Effect,
    Limits,
    NotifyArrival,
    NotifyFrontends,
    StartTurn,
)
from shared.ids import TurnId
from shared.wire.messages import TurnCancel
from tests.unit.scheduler.turns.driver import SECOND, Driver, only


def starts(effects: list[Effect]) -> list[tuple[str, int, str, bool]]:
    found = only(StartTurn, effects)
    return [(e.worker_id, e.start.attempt, e.reason, e.is_sent) for e in found]


def cancels(effects: list[Effect]) -> list[tuple[str, TurnCancel]]:
    return [(e.worker_id, e.cancel) for e in only(CancelTurn, effects)]


def expecting(attempt_floor: int = 4096) -> Driver:
    """A place for session s on w1; w2 has nothing to do."""
    d = Driver(attempt_floor=attempt_floor)
    d.report("w1")
    d.report("w2")
    _, effects = d.expect("s")
    (told,) = only(NotifyFrontends, effects)
    placed = told.placed
    assert (placed.worker_id, placed.session_id, placed.model_id) == ("w1", "s", "m")
    assert placed.expires_in_ns == 60 * SECOND
    return d


def arrivals(effects: list[Effect]) -> list[tuple[str | None, bool]]:
    return [(e.arrived.worker_id, e.arrived.reserved) for e in only(NotifyArrival, effects)]


def test_it_is_there_and_nothing_is_sent_again() -> None:
    d = expecting()
    effects = d.submit("t", "s", sent_to="w1")
    assert starts(effects) == [("w1", 1, "reserved", True)]
    assert arrivals(effects) == [("w1", True)]
    assert d.load("w1") == 1, "the place is used up"
    assert d.submit("t", "s") == []
    assert only(CancelTurn, d.report("w1", ("t", 1))) == []


def test_one_that_did_not_get_there_is_placed_under_the_scheduler_s_own_number() -> None:
    d = expecting()
    d.submit("t", "s", sent_to="w1")
    effects: list[Effect] = []
    while not starts(effects):
        effects += d.wake(SECOND)
        effects += d.report("w1") + d.report("w2")
    assert starts(effects) == [("w2", 4096, "replaced", False)]


def test_a_worker_that_does_not_take_turns_any_more_has_to_stop() -> None:
    d = expecting()
    d.report("w1", state="draining")  # the place moves
    effects = d.submit("t", "s", sent_to="w1")
    assert starts(effects) == [("w2", 4096, "reserved", False)]
    assert cancels(effects) == [("w1", TurnCancel(turn_id=TurnId("t"), attempt=1))]


def test_a_worker_that_nobody_knows_is_not_told() -> None:
    d = expecting()
    effects = d.submit("t", "other", sent_to="w9")
    assert len(starts(effects)) == 1 and cancels(effects) == []
    assert not starts(effects)[0][3]


def test_a_report_may_be_faster_than_the_submit() -> None:
    d = expecting()
    d.report("w1", ("t", 1))
    effects = d.submit("t", "s", sent_to="w1")
    assert starts(effects) == [] and arrivals(effects) == [("w1", True)]
    assert d.load("w1") == 1, "the place is used up"


def test_while_a_scheduler_learns_it_waits_for_the_report() -> None:
    d = Driver(Limits(learning_ns=SECOND), attempt_floor=4096)
    assert starts(d.submit("t", "s", sent_to="w1")) == []
    d.report("w1", ("t", 1))
    assert starts(d.wake(2 * SECOND)) == []
    assert d.load("w1") == 1


def test_one_whose_frontend_gave_up_the_first_attempt_is_started_anew() -> None:
    d = Driver(attempt_floor=4096)
    d.submit("t", "s", sent_to="w1")
    d.submit("t", "s", attempt=2)
    assert starts(d.report("w1")) == [("w1", 4096, "balance", False)]


def test_one_of_no_session_costs_nobody_anything() -> None:
    d = expecting()
    d.report("w1", ("t", 1))
    assert d.submit("t", sent_to="w1") == []
    assert [started[0] for started in starts(d.submit("u", sent_to="w9"))] == ["w2"]
