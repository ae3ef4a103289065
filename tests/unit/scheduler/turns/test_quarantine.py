"""Turns that their workers may die of: tried alone, and condemned only by proof."""

from collections.abc import Mapping

import pytest

from services.scheduler.core import Effect, FailTurn, Limits
from tests.unit.scheduler.turns.driver import SECOND, Driver, cancels, failures, only, starts

Held = Mapping[str, tuple[tuple[str, int], ...]]  # worker -> turns and their attempts


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


def tried_alone_after(deaths: int, silences: int) -> Driver:
    """A turn that was lost with w1 so often, and is now alone on its process "z", attempt 3."""
    assert deaths + silences == 2
    d = Driver()
    d.report("w1", incarnation="0")
    d.submit("t")
    for _ in range(silences):
        d.wake(3 * SECOND)
        effects = d.report("w1", incarnation="0")
    for number in range(deaths):
        effects = d.report("w1", incarnation=f"{number + 1}")
    assert starts(effects) == [("w1", "t", 3, "replaced")]
    return d


def test_a_suspect_whose_worker_falls_silent_waits_for_the_proof_that_it_died() -> None:
    d = tried_alone_after(deaths=2, silences=0)
    d.report("w2")
    effects = keep_alive(d, 6, {"w2": ()})
    assert starts(effects) == [] == failures(effects), "w1 may be alive"
    assert d.core.status(d.now_ns).num_turns_waiting == 1
    effects = d.report("w1", incarnation="z") + d.wake()
    assert failures(effects) == [("poisoned", 500)]
    assert starts(effects) == []
    assert d.core.status(d.now_ns).num_turns_waiting == 0


def test_a_suspect_whose_worker_was_only_out_of_reach_is_tried_again() -> None:
    d = tried_alone_after(deaths=2, silences=0)
    d.wake(3 * SECOND)
    effects = d.report("w1", incarnation="2") + d.wake()
    assert failures(effects) == []
    assert starts(effects) == [("w1", "t", 4, "replaced")]
    d.report("w1", ("t", 4), incarnation="2")
    assert failures(d.report("w1", incarnation="z")) == [("poisoned", 500)]


def test_a_suspect_still_held_by_a_worker_that_was_out_of_reach_goes_on_alone_there() -> None:
    d = tried_alone_after(deaths=2, silences=0)
    d.report("w1", ("t", 3), incarnation="2")
    d.wake(3 * SECOND)
    effects = d.report("w1", ("t", 3), incarnation="2") + d.wake()
    assert starts(effects) == [] == failures(effects)
    assert starts(d.submit("other")) == [], "t has made no token"
    d.report("w1", ("t", 3), incarnation="2", generated=1)
    assert starts(d.wake()) == [("w1", "other", 1, "balance")]


@pytest.mark.parametrize("is_silent_first", [False, True])
def test_losses_without_proof_condemn_nobody(is_silent_first: bool) -> None:
    d = tried_alone_after(deaths=0, silences=2)
    if is_silent_first:
        d.wake(3 * SECOND)
    effects = d.report("w1", incarnation="z") + d.wake()
    assert failures(effects) == []
    assert starts(effects) == [("w1", "t", 4, "replaced")], "one worker died of it, perhaps"
    assert starts(d.submit("other")) == [], "it is still a suspect"
    effects = d.report("w1", incarnation="y") + d.wake()
    assert failures(effects) == [], "two, and one of them could be somebody else's"
    assert starts(effects) == [("w1", "t", 5, "replaced")]
    assert failures(d.report("w1", incarnation="x")) == [("poisoned", 500)], "three did"


def test_a_death_is_proven_to_all_that_were_there_when_the_worker_comes_back() -> None:
    d = Driver()
    d.report("w1", incarnation="0")
    d.submit("t")
    for number in range(2):
        d.wake(3 * SECOND)
        effects = d.report("w1", incarnation=f"{number + 1}")
    assert starts(effects) == [("w1", "t", 3, "replaced")]
    assert failures(d.report("w1", incarnation="z")) == [("poisoned", 500)]


def test_a_death_is_not_proven_to_a_turn_that_has_made_tokens_since() -> None:
    d = Driver()
    d.report("w1", incarnation="0")
    d.submit("t")
    d.wake(3 * SECOND)
    assert starts(d.report("w2")) == [("w2", "t", 2, "replaced")]
    d.report("w2", ("t", 2), generated=1)
    d.report("w1", incarnation="1", state="draining")
    for _ in range(2):
        d.wake(3 * SECOND)
        effects = d.report("w2")
    assert starts(effects) == [("w2", "t", 4, "replaced")]
    effects = d.report("w2", incarnation="z") + d.wake()
    assert failures(effects) == [], "one worker died since the token"
    assert len(starts(effects)) == 1


def test_a_suspect_waits_for_the_proof_for_a_while_only() -> None:
    d = tried_alone_after(deaths=2, silences=0)
    d.report("w2")
    assert starts(keep_alive(d, 14, {"w2": ()})) == []
    assert starts(keep_alive(d, 2, {"w2": ()})) == [("w2", "t", 4, "replaced")]
    effects = d.report("w1", incarnation="z") + d.wake()
    assert starts(effects) == [] == failures(effects), "it may be innocent: w2 will tell"


def test_a_suspect_without_proof_is_tried_beside_another_one() -> None:
    d = Driver()
    d.report("w1")
    d.submit("t")
    d.submit("s")
    assert starts(kill(d, "w1", "a", 2)) == [("w1", "t", 3, "replaced")]
    d.wake(3 * SECOND)
    assert starts(d.report("w2") + d.wake()) == [("w2", "s", 3, "replaced")]
    held: Held = {"w2": (("s", 3),), "w3": (), "w4": (), "w5": ()}
    assert starts(keep_alive(d, 11, held)) == []
    assert starts(keep_alive(d, 2, held)) == [("w3", "t", 4, "replaced")]


def test_a_suspect_that_waits_for_the_proof_can_be_cancelled() -> None:
    d = tried_alone_after(deaths=2, silences=0)
    d.wake(3 * SECOND)
    d.cancel("t")
    effects = d.report("w1", incarnation="z") + d.wake()
    assert starts(effects) == [] == failures(effects)


def test_a_suspect_is_given_up_after_as_many_losses_as_others() -> None:
    d = Driver(Limits(learning_ns=0, losses_max=3))
    d.report("w1")
    d.submit("t")
    for _ in range(2):
        d.wake(3 * SECOND)
        d.report("w1")
        d.wake()
    effects = d.wake(3 * SECOND)
    assert failures(effects) == [("worker_lost", 503)]
    assert only(FailTurn, effects)[0].failed.retry_after_s > 0


def test_a_suspect_is_tried_elsewhere_than_where_it_did_not_arrive() -> None:
    """A worker that reports and hears nothing is the one without turns, again and again."""
    d = Driver()
    d.report("deaf")
    d.submit("t")
    kill(d, "deaf", "a", 2)
    d.report("w2")
    d.submit("x")
    held: Held = {"w2": (("x", 1),)}
    first = starts(report_for(d, 2, held))
    assert first == [], "w2 has a turn"
    effects = report_for(d, 8, held)
    assert starts(effects)[0][:2] == ("w2", "t"), "emptied for it"
    d.report("w2", ("t", 4), generated=1)
    assert d.core.status(d.now_ns).num_turns_waiting == 0


def report_for(d: Driver, seconds: int, held: Held) -> list[Effect]:
    """As `keep_alive`, beside a worker that has none of what it was sent."""
    effects: list[Effect] = []
    for _ in range(seconds):
        effects += d.report("deaf", incarnation="a1") + keep_alive(d, 1, held)
    return effects


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


def keep_alive(d: Driver, seconds: int, held: Held) -> list[Effect]:
    """Let time pass while these workers report what they hold."""
    effects: list[Effect] = []
    for _ in range(seconds):
        for worker, turns in held.items():
            effects += d.report(worker, *turns)
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
    held = {"w2": (("x", 1),), "w3": (("y", 1),)}
    assert starts(keep_alive(d, 7, held)) == [], "w1 is dead, and the others have turns"
    effects = keep_alive(d, 2, held)
    assert starts(effects) == [("w2", "s", 3, "replaced"), ("w3", "x", 3, "replaced")]
    assert cancels(effects)[0] == ("w2", "x", 1)
    d.end("w2", "x", 1)
    assert d.core.status(d.now_ns).num_turns_placed == 3, "what was moved is not over"
    d.report("w2", ("s", 3), generated=1)
    assert starts(d.submit("new")) == [("w2", "new", 1, "balance")]


def test_a_suspect_whose_time_has_come_is_next_when_another_s_trial_ends() -> None:
    d = Driver()
    d.report("w1")
    d.submit("s")
    d.submit("r")
    d.report("w1", incarnation="a0")
    d.report("w2")
    d.report("w3")
    assert len(starts(d.submit("x") + d.submit("y"))) == 2
    held: dict[str, tuple[tuple[str, int], ...]] = {"w2": (("x", 1),), "w3": (("y", 1),)}
    (first,) = (start for start in starts(keep_alive(d, 9, held)) if start[1] in "rs")
    other = "r" if first[1] == "s" else "s"
    held = {"w2": ((first[1], first[2]),), "w3": (("x", 3), ("y", 1))}
    assert starts(keep_alive(d, 9, held)) == [], "the first has not shown what it is"
    d.report("w2", (first[1], first[2]), generated=1)
    assert other in [turn for _, turn, _, _ in starts(keep_alive(d, 2, held))]


def test_a_suspect_waits_for_a_worker_as_long_as_others_do() -> None:
    d = Driver()
    d.report("w1")
    d.submit("s")
    kill(d, "w1", "a")
    effects = keep_alive(d, 16, {})
    assert failures(effects) == [], "w1 fell silent after 2.5 s"
    assert failures(keep_alive(d, 3, {})) == [("no_worker", 503)]


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
    assert starts(d.wake()) == [("w1", "t", 1, "reserved")]
