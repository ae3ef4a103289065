"""A turn's life in the scheduler core."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.core import (
    CancelTurn,
    CountTurn,
    Effect,
    FailTurn,
    Limits,
    NotifyArrival,
    StartTurn,
)
from shared.ids import TurnId
from tests.unit.scheduler.core.driver import INTERVAL, MS, SECOND, Driver, only


def starts(effects: list[Effect]) -> list[tuple[str, str, int, str]]:
    """Worker, turn, attempt and reason of every start."""
    return [
        (e.worker_id, e.start.turn_id, e.start.attempt, e.reason) for e in only(StartTurn, effects)
    ]


def cancels(effects: list[Effect]) -> list[tuple[str, str, int]]:
    """Worker, turn and attempt of every cancel."""
    return [(e.worker_id, e.cancel.turn_id, e.cancel.attempt) for e in only(CancelTurn, effects)]


def failures(effects: list[Effect]) -> list[tuple[str, int]]:
    """Code and HTTP status of every failure."""
    return [(e.failed.code, e.failed.http_status) for e in only(FailTurn, effects)]


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


def kill(d: Driver, worker: str, incarnation: str, times: int = 1) -> list[Effect]:
    """Restart a worker so often; what follows at last, admissions included."""
    effects: list[Effect] = []
    for number in range(times):
        effects = d.report(worker, incarnation=f"{incarnation}{number}") + d.wake()
    return effects


def test_a_turn_that_kills_its_worker_even_alone_is_poisoned() -> None:
    d = Driver()
    d.report("w1")
    d.submit("t")
    assert starts(kill(d, "w1", "a", 2)) == [("w1", "t", 3, "replaced")]
    assert failures(kill(d, "w1", "b")) == [("poisoned", 500)]
    effects = d.submit("t")
    assert failures(effects) == [("poisoned", 500)], "the frontend did not hear"
    assert starts(effects) == []
    assert starts(d.submit("other")) == [("w1", "other", 1, "balance")], "the worker is free again"


def test_a_suspect_has_its_worker_for_itself_until_its_first_token() -> None:
    d = Driver()
    d.report("w1")
    d.submit("a")
    d.submit("b")
    assert starts(kill(d, "w1", "a", 2)) == [("w1", "a", 3, "replaced")]
    assert starts(d.submit("new")) == [], "it waits as the other suspect does"
    for _ in range(20):
        d.report("w1", ("a", 3), incarnation="a1")
        effects = d.wake(SECOND)
        assert not starts(effects) and not failures(effects), "however long that takes"
    d.report("w1", ("a", 3), incarnation="a1", generated=1)
    assert starts(d.wake()) == [("w1", "new", 1, "balance")], "b waits for a worker without turns"
    d.end("w1", "a", 3)
    assert starts(d.wake()) == []
    d.end("w1", "new", 1)
    assert starts(d.wake()) == [("w1", "b", 3, "replaced")]


def test_suspects_go_first_where_nothing_runs() -> None:
    d = Driver()
    d.report("w1")
    d.submit("a")
    kill(d, "w1", "a")
    d.wake(3 * SECOND)
    d.submit("urgent", priority=9)
    effects = kill(d, "w1", "b")
    assert starts(effects) == [("w1", "a", 3, "replaced")]
    effects = d.end("w1", "a", 3) + d.wake()
    assert starts(effects) == [("w1", "urgent", 1, "balance")]


def keep_alive(d: Driver, seconds: int, held: dict[str, tuple[str, int]]) -> list[Effect]:
    """Let time pass while these workers report what they hold."""
    effects: list[Effect] = []
    for _ in range(seconds):
        for worker, turn in held.items():
            effects += d.report(worker, turn)
        effects += d.wake(SECOND)
    return effects


def test_a_worker_is_emptied_for_a_suspect_that_has_waited_long_enough() -> None:
    d = Driver()
    d.report("w1")
    d.submit("s")
    kill(d, "w1", "a")
    d.report("w2")
    d.report("w3")
    assert starts(d.submit("x") + d.submit("y")) == [
        ("w2", "x", 1, "balance"), ("w3", "y", 1, "balance")
    ]  # fmt: skip
    held = {"w2": ("x", 1), "w3": ("y", 1)}
    assert starts(keep_alive(d, 17, held)) == [], "w1 is dead, and the others have turns"
    effects = keep_alive(d, 2, held)
    assert starts(effects) == [("w2", "s", 3, "replaced"), ("w3", "x", 3, "replaced")]
    assert cancels(effects)[0] == ("w2", "x", 1)
    d.end("w2", "x", 1)
    assert d.core.status(d.now_ns).num_turns_placed == 3, "what was moved is not over"
    d.report("w2", ("s", 3), generated=1)
    assert starts(d.submit("new")) == [("w2", "new", 1, "balance")]


def test_only_half_of_the_workers_are_kept_from_others() -> None:
    d = Driver()
    for turn in "abcd":
        d.report("w1")
        d.submit(turn)
    kill(d, "w1", "a")
    for worker in ("w2", "w3", "w4"):
        d.report(worker)
    on = {turn: worker for worker, turn, _, _ in starts(kill(d, "w1", "b"))}
    assert len(on) == len(set(on.values())) == 2
    assert {w for w, *_ in starts(d.submit("e") + d.submit("f"))} == (
        {"w1", "w2", "w3", "w4"} - set(on.values())
    )


def test_a_place_kept_for_a_session_on_a_worker_that_tries_a_suspect_is_not_taken() -> None:
    d = Driver()
    d.report("w1")
    d.submit("s")
    d.expect("session")
    kill(d, "w1", "a", 2)
    assert starts(d.submit("t", "session")) == []
    d.end("w1", "s", 3)
    assert starts(d.wake()) == [("w1", "t", 1, "balance")]


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
