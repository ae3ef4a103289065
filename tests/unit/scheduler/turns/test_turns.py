"""A turn's life in the scheduler core."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.core import (
    CountTurn,
    Limits,
    NotifyArrival,
    StartTurn,
)
from services.scheduler.core.turns.turn_table import first_attempt
from shared.ids import TurnId
from tests.unit.scheduler.turns.driver import (
    INTERVAL,
    MS,
    SECOND,
    Driver,
    cancels,
    failures,
    only,
    starts,
)


def test_attempts_of_a_new_term_are_above_those_of_any_before() -> None:
    d = Driver(attempt_floor=first_attempt(7))
    d.report("w1")
    assert only(StartTurn, d.submit("t"))[0].start.attempt == first_attempt(7)
    d.core.set_fence(9)
    d.core.set_fence(8)
    assert only(StartTurn, d.submit("u"))[0].start.attempt == first_attempt(9)


def test_a_turn_is_started_announced_and_ended_once() -> None:
    d = Driver()
    d.report("w1")
    effects = d.submit("t", "s")
    assert starts(effects) == [("w1", "t", 1, "balance")]
    arrived = only(NotifyArrival, effects)[0].arrived
    assert (arrived.session_id, arrived.worker_id, arrived.reserved) == ("s", "w1", False)
    assert starts(d.submit("t", "s")) == []
    assert only(CountTurn, d.end("w1", "t")) == [CountTurn("stop")]
    assert only(CountTurn, d.end("w1", "t")) == []
    assert d.core.status(d.now_ns).num_turns_placed == 0


def test_nothing_is_placed_while_learning_and_all_of_it_is_afterwards() -> None:
    d = Driver(Limits(learning_ns=750 * MS))
    d.report("w1", ("old", 4))
    assert starts(d.submit("a")) == [] == starts(d.submit("b", priority=5))
    assert starts(d.submit("old", attempt=4)) == []
    d.report("w2")
    effects = d.wake(750 * MS)
    assert starts(effects) == [("w2", "b", 1, "balance"), ("w1", "a", 1, "balance")]


def test_a_turn_that_misses_two_reports_is_placed_elsewhere_under_a_higher_attempt() -> None:
    d = Driver()
    d.report("w1")
    d.submit("t")
    d.report("w2")
    d.now_ns += INTERVAL
    assert starts(d.report("w1")) == []
    d.now_ns += INTERVAL
    assert starts(d.report("w1")) == [("w2", "t", 2, "replaced")]


def test_a_burst_of_late_reports_loses_nothing() -> None:
    d = Driver()
    d.report("w1")
    d.submit("t")
    assert starts(d.report("w1") + d.report("w1") + d.report("w1")) == []


def test_a_turn_that_was_listed_and_then_misses_two_reports_is_lost_too() -> None:
    d = Driver()
    d.report("w1")
    d.submit("t")
    for _ in range(4):
        d.now_ns += INTERVAL
        assert starts(d.report("w1", ("t", 1))) == []
    d.now_ns += INTERVAL
    assert starts(d.report("w1")) == []
    d.now_ns += INTERVAL
    assert starts(d.report("w1")) == [("w1", "t", 2, "replaced")], "it is the only worker"


def test_a_restarted_worker_loses_its_turns_and_late_reports_of_its_old_self_are_void() -> None:
    d = Driver()
    d.report("w1")
    d.submit("t")
    d.report("w2")
    assert starts(d.report("w1", incarnation="b")) == [("w2", "t", 2, "replaced")]
    assert cancels(d.report("w1", ("t", 1), incarnation="a")) == []


def test_a_zombie_is_cancelled_up_to_its_attempt() -> None:
    d = Driver()
    d.report("w1")
    d.submit("t")
    d.report("w2")
    d.wake(3 * SECOND)
    d.report("w2", ("t", 2))
    assert cancels(d.report("w1", ("t", 1))) == [("w1", "t", 1)]


def test_an_older_attempt_on_its_own_worker_is_left_to_the_newer_one_on_its_way() -> None:
    d = Driver()
    d.report("w1")
    d.submit("t")
    d.report("w1", ("t", 1))
    assert starts(d.submit("t", attempt=3)) == [("w1", "t", 4, "replaced")]
    assert cancels(d.report("w1", ("t", 1))) == []


def test_a_frontend_that_lost_tokens_gets_a_new_attempt() -> None:
    d = Driver()
    d.report("w1")
    d.submit("t")
    assert cancels(d.submit("t", attempt=2)) == [], "the only worker drops the old one by itself"
    d.report("w2")
    effects = d.submit("t", attempt=4)
    assert starts(effects) == [("w2", "t", 5, "replaced")]
    assert cancels(effects) == [("w1", "t", 3)]


def test_a_turn_unknown_here_is_adopted_with_its_worker() -> None:
    d = Driver()
    d.report("w1", ("t", 3))
    assert d.load("w1") == 1
    d.report("w2")
    assert starts(d.submit("t", attempt=3)) == []
    assert starts(d.gone("w1") + d.wake(3 * SECOND))[:1] == [("w2", "t", 4, "replaced")]


def test_an_adopted_turn_nobody_submitted_is_forgotten_with_its_worker() -> None:
    d = Driver()
    d.report("w1", ("t", 3))
    d.report("w1", incarnation="b")
    assert d.core.status(d.now_ns).num_turns_placed == 0
    assert starts(d.submit("t", attempt=2)) == [("w1", "t", 4, "replaced")], "3 may be alive"


def test_a_cancel_reaches_the_worker_and_is_repeated_when_lost() -> None:
    d = Driver()
    d.report("w1")
    d.submit("t")
    effects = d.cancel("t")
    assert cancels(effects) == [("w1", "t", 0)]
    assert only(CountTurn, effects) == [CountTurn("cancelled")]
    assert cancels(d.report("w1", ("t", 1))) == [("w1", "t", 1)]
    assert starts(d.submit("t")) == [], "a late duplicate"


def test_a_cancel_that_overtakes_its_submit_wins() -> None:
    d = Driver()
    d.report("w1")
    assert d.cancel("t") == []
    assert starts(d.submit("t")) == []


def test_an_end_the_frontend_did_not_hear_of_is_run_again() -> None:
    d = Driver()
    d.report("w1")
    d.submit("t", "s")
    d.end("w1", "t")
    effects = d.submit("t", "s")
    assert starts(effects) == [("w1", "t", 2, "replaced")]
    assert only(NotifyArrival, effects) == []


def test_the_end_of_a_lower_attempt_changes_nothing() -> None:
    d = Driver()
    d.report("w1")
    d.submit("t")
    d.report("w2")
    d.report("w1", incarnation="b")
    assert d.end("w1", "t", attempt=1) == []
    assert only(CountTurn, d.end("w2", "t", attempt=2)) == [CountTurn("stop")]


def test_a_turn_waits_for_a_model_that_no_worker_named_yet() -> None:
    """Its frontend has heard of one: this scheduler may be newer than the worker's death."""
    d = Driver()
    d.report("w1")
    assert d.submit("t", model="other")[:-1] == []
    assert failures(d.wake(15 * SECOND)) == [("no_worker", 503)]


def test_a_turn_waits_for_a_worker_that_may_come_back() -> None:
    d = Driver()
    d.report("w1", state="loading")
    assert starts(d.submit("t")) == []
    assert d.core.status(d.now_ns).num_turns_waiting == 1
    d.now_ns += SECOND
    assert starts(d.report("w1")) == [("w1", "t", 1, "balance")]


def test_a_turn_waits_no_longer_than_told() -> None:
    d = Driver()
    d.report("w1", state="loading")
    d.submit("t")
    assert failures(d.wake(14 * SECOND)) == []
    assert failures(d.wake(SECOND)) == [("no_worker", 503)]
    assert d.core.status(d.now_ns).num_turns_waiting == 0


def test_a_waiting_turn_found_running_is_not_started_again() -> None:
    d = Driver()
    d.report("w1")
    d.submit("t")
    d.report("w1", ("t", 1))
    d.wake(3 * SECOND)
    assert d.core.status(d.now_ns).num_turns_waiting == 1
    assert starts(d.report("w1", ("t", 1))) == []
    assert d.core.status(d.now_ns).num_turns_placed == 1


def test_too_many_turns_are_refused() -> None:
    d = Driver(Limits(learning_ns=0, turns_max=2))
    d.report("w1")
    assert [failures(d.submit(t)) for t in "abc"] == [[], [], [("overloaded", 503)]]


def test_a_turn_that_is_lost_again_and_again_is_given_up() -> None:
    d = Driver(Limits(learning_ns=0, losses_max=3))
    d.report("w1")
    d.submit("t")
    assert len(starts(d.submit("t", attempt=2))) == 1
    assert len(starts(d.submit("t", attempt=4))) == 1
    assert failures(d.submit("t", attempt=6)) == [("worker_lost", 503)]


def test_a_turn_that_goes_on_outlives_a_hundred_workers() -> None:
    d = Driver()
    d.report("w1", incarnation="0")
    d.submit("t")
    for number in range(1, 101):
        d.report("w1", ("t", number), incarnation=str(number - 1), generated=number)
        effects = d.report("w1", incarnation=str(number))
        assert starts(effects) == [("w1", "t", number + 1, "replaced")]
        assert only(StartTurn, effects)[0].start.was_lost
    assert only(CountTurn, d.end("w1", "t", 101)) == [CountTurn("stop")]


def test_attempts_of_a_later_scheduler_are_above_those_of_an_earlier_one() -> None:
    d = Driver(attempt_floor=1_000)
    d.report("w1")
    assert starts(d.submit("t")) == [("w1", "t", 1_000, "balance")]
    d.report("w2")
    assert starts(d.report("w1", incarnation="b")) == [("w2", "t", 1_001, "replaced")]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                ["submit", "cancel", "end", "report", "restart", "drain", "gone", "wake", "expect"]
            ),
            st.integers(0, 3),
            st.integers(0, 2),
        ),
        max_size=60,
    )
)
def test_whatever_comes_attempts_grow_and_the_counts_agree(
    script: list[tuple[str, int, int]],
) -> None:
    d = Driver()
    attempts: dict[TurnId, int] = {}
    incarnations = [0, 0, 0]
    for what, turn, number in script:
        t, w = f"t{turn}", f"w{number}"
        incarnations[number] += what == "restart"
        state = "draining" if what == "drain" else "ready"
        if what in ("report", "restart", "drain"):
            held = ((t, attempts.get(TurnId(t), 0) or 1),) if turn else ()
            effects = d.report(w, *held, incarnation=str(incarnations[number]), state=state)
        elif what == "expect":
            effects = d.expect(f"s{turn}")[1]
        elif what == "submit":
            effects = d.submit(t, f"s{turn}")
        elif what == "cancel":
            effects = d.cancel(t)
        elif what == "end":
            effects = d.end(w, t, attempts.get(TurnId(t), 1))
        elif what == "gone":
            effects = d.gone(w)
        else:
            effects = d.wake((turn + 1) * 700 * MS)
        for start in only(StartTurn, effects):
            turn_id = start.start.turn_id
            assert start.start.attempt > attempts.get(turn_id, 0)
            attempts[turn_id] = start.start.attempt
        status = d.core.status(d.now_ns)
        assert sum(worker.num_turns for worker in status.workers) == status.num_turns_placed
        assert sum(w.num_reservations for w in status.workers) == status.num_reservations
        dead = [worker for worker in status.workers if worker.state == "dead"]
        assert all(worker.num_turns == worker.num_reservations == 0 for worker in dead)


@pytest.mark.parametrize("state", ["draining", "loading"])
def test_only_ready_workers_get_turns(state: str) -> None:
    d = Driver()
    d.report("w1", state=state)
    d.report("w2")
    assert [starts(d.submit(t))[0][0] for t in "abc"] == ["w2"] * 3
