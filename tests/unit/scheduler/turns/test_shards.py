"""Schedulers that divide turns: each decides about its own, and all see one load."""

from services.scheduler.core import Effect, Limits, NotifyPeers, merge_effects
from services.scheduler.core.turns.peer_turns import AGREE_NS, CLAIM_NS
from shared.ids import TurnId, WorkerId
from shared.wire.messages import PlacedTurn, TurnsPlaced
from shared.wire.shards import Share
from tests.unit.scheduler.turns.driver import (
    INTERVAL,
    SECOND,
    Driver,
    cancels,
    failures,
    only,
    starts,
)

OURS, THEIRS = "t{}-0000", "t{}-0001"  # by the end of a turn's id
SHARES = Share(0, 2), Share(1, 2)
ALONE = next(name for name in (f"w{i}" for i in range(99)) if SHARES[0].has_worker(WorkerId(name)))
OTHER = next(name for name in (f"w{i}" for i in range(99)) if SHARES[1].has_worker(WorkerId(name)))


def ours(number: int) -> str:
    return OURS.format(number)


def theirs(number: int) -> str:
    return THEIRS.format(number)


def told(effects: list[Effect]) -> list[NotifyPeers]:
    return only(NotifyPeers, merge_effects(effects))


def tell(d: Driver, *turns: tuple[str, str], kept: str | None = None, shard: int = 1) -> None:
    """Another scheduler tells what it placed: turn and worker of each."""
    placed = [PlacedTurn(turn_id=TurnId(t), worker_id=WorkerId(w), num_tokens=50) for t, w in turns]
    message = TurnsPlaced(shard=shard, turns=placed, kept=[WorkerId(kept)] if kept else [])
    d.note(d.core.on_turns_placed(message, d.now_ns))


def test_what_one_places_the_others_count() -> None:
    first, second = (Driver(share=share) for share in SHARES)
    for d in (first, second):
        d.report("w1")
        d.report("w2")
    effects = first.submit(ours(1))
    assert starts(effects) == [("w1", ours(1), 1, "balance")]
    (message,) = told(effects)
    tell(second, *((turn.turn_id, turn.worker_id) for turn in message.turns), shard=0)
    assert starts(second.submit(theirs(1))) == [("w2", theirs(1), 1, "balance")]


def test_one_scheduler_alone_tells_nobody() -> None:
    d = Driver()
    d.report("w1")
    assert told(d.submit("t")) == []


def test_what_was_told_in_vain_counts_until_two_reports_lack_it() -> None:
    d = Driver(share=SHARES[0])
    d.report("w1")
    tell(d, (theirs(1), "w1"))
    assert d.load("w1") == 1
    d.report("w1")
    assert d.load("w1") == 1, "it may be on its way"
    d.report("w1")
    assert d.load("w1") == 0


def test_what_nobody_told_a_report_tells() -> None:
    d = Driver(share=SHARES[0])
    d.report("w1", (theirs(1), 1), (theirs(2), 1))
    tell(d, (theirs(1), "w1"))
    assert d.load("w1") == 2
    d.end("w1", theirs(1))
    assert d.load("w1") == 1
    d.report("w2", (theirs(2), 2))
    assert (d.load("w1"), d.load("w2")) == (0, 1), "it was placed anew"


def test_others_turns_are_theirs() -> None:
    d = Driver(share=SHARES[0])
    d.report("w1", (theirs(1), 7))
    d.report("w2")
    assert cancels(d.cancel(theirs(1))) == [], "it is not known here"
    assert cancels(d.report("w1", (theirs(1), 7))) == []
    effects = d.report("w1") + d.report("w1") + d.wake(3 * SECOND) + d.wake(3 * SECOND)
    assert (starts(effects), failures(effects), cancels(effects)) == ([], [], [])
    assert d.core.status(d.now_ns).num_turns_placed == 0
    effects = d.report("w1", (theirs(1), 7), incarnation="b")
    assert starts(effects) == []


def test_a_dead_worker_has_nobody_s_turns() -> None:
    d = Driver(share=SHARES[0])
    d.report("w1", (theirs(1), 1))
    tell(d, (theirs(2), "w1"))
    assert d.load("w1") == 2
    d.wake(3 * SECOND)
    assert d.load("w1") == 0
    tell(d, (theirs(3), "w1"), (theirs(3), "nobody"), kept="nobody")
    assert d.load("w1") == 0


def test_nobody_tells_of_our_turns_or_in_our_name() -> None:
    d = Driver(share=SHARES[0])
    d.report("w1")
    tell(d, (ours(1), "w1"))
    tell(d, (theirs(1), "w1"), kept="w1", shard=0)
    tell(d, (theirs(1), "w1"), kept="w1", shard=2)
    assert d.load("w1") == 0
    assert starts(d.submit(ours(1))) == [("w1", ours(1), 1, "balance")]


def test_a_turn_of_another_shard_is_refused_with_the_reason() -> None:
    d = Driver(share=SHARES[0])
    d.report("w1")
    effects = d.submit(theirs(1))
    assert failures(effects) == [("misrouted", 503)]
    assert starts(effects) == []


def test_a_worker_that_another_keeps_is_left_alone_while_that_is_told() -> None:
    d = Driver(limits=Limits(learning_ns=0, placement_wait_ns=60 * SECOND), share=SHARES[0])
    d.report("w1")
    tell(d, kept="w1")
    assert starts(d.submit(ours(1))) == []
    effects = list[Effect]()
    for _ in range(3):
        effects += d.wake(INTERVAL) + d.report("w1")
    tell(d, kept="w1")
    for _ in range(3):
        effects += d.wake(INTERVAL) + d.report("w1")
    assert starts(effects) == []
    for _ in range(2):
        effects += d.wake(INTERVAL) + d.report("w1")
    assert starts(effects) == [("w1", ours(1), 1, "balance")]


def lose_twice(d: Driver, worker: str, turn: str) -> list[Effect]:
    """A turn that was with two deaths of its worker: a suspect."""
    d.report(worker, incarnation="0")
    d.submit(turn)
    effects = list[Effect]()
    for number in (1, 2):
        effects = d.report(worker, incarnation=str(number))
    return effects


def test_a_suspect_is_tried_where_nobody_has_anything_and_the_others_are_told() -> None:
    d = Driver(share=SHARES[0])
    effects = lose_twice(d, ALONE, ours(1))
    assert [start[:2] for start in starts(effects)] == [(ALONE, ours(1))]
    assert [message.kept for message in told(effects)] == [[ALONE]]
    (attempt,) = [start[2] for start in starts(effects)]
    again = d.report(ALONE, (ours(1), attempt), incarnation="2")
    assert [message.kept for message in told(again)] == [[ALONE]], "told again and again"
    over = d.report(ALONE, (ours(1), attempt), incarnation="2", generated=1)
    assert told(over) == [], "it is innocent"


def test_a_suspect_waits_for_others_turns_to_end() -> None:
    d = Driver(share=SHARES[0])
    d.report(ALONE, incarnation="0")
    d.submit(ours(1))
    d.report(ALONE, incarnation="1")
    beside = (theirs(1), 1), (theirs(2), 1)
    effects = d.report(ALONE, *beside, incarnation="2")
    assert starts(effects) == [], "it would not be alone"
    for _ in range(14):
        effects += d.wake(INTERVAL) + d.report(ALONE, *beside, incarnation="2")
    assert starts(effects) == []
    assert [ALONE] in [message.kept for message in told(effects)], "nothing more is to come there"
    d.end(ALONE, theirs(1))
    effects = d.end(ALONE, theirs(2)) + d.wake()
    assert [start[:2] for start in starts(effects)] == [(ALONE, ours(1))]


def test_who_was_not_alone_is_not_condemned() -> None:
    d = Driver(share=SHARES[0])
    (start,) = starts(lose_twice(d, ALONE, ours(1)))
    tell(d, (theirs(1), ALONE))  # sent before it heard that the worker is kept
    effects = d.report(ALONE, incarnation="3")
    assert failures(effects) == []
    (start,) = starts(effects)
    effects = d.report(ALONE, (ours(1), start[2]), incarnation="3")
    assert failures(d.report(ALONE, incarnation="4") + d.wake()) == [("poisoned", 500)]


def test_two_schedulers_try_their_suspects_on_different_workers() -> None:
    for share in SHARES:
        d = Driver(share=share)
        first = (ALONE, OTHER)[share.index]
        turn = (ours(1), theirs(1))[share.index]
        d.report("x", incarnation="0")
        d.submit(turn)
        d.report("x", incarnation="1")
        for worker in (ALONE, OTHER):
            d.report(worker)
        effects = d.report("x", incarnation="2")
        assert [start[:2] for start in starts(effects)] == [(first, turn)]


def test_who_was_beside_and_went_elsewhere_since_was_beside() -> None:
    d = Driver(share=SHARES[0])
    lose_twice(d, ALONE, ours(1))
    tell(d, (theirs(1), ALONE))
    tell(d, (theirs(1), "x"))  # it was lost there as well, and placed anew
    d.report("x", (theirs(1), 2))
    assert failures(d.report(ALONE, incarnation="3") + d.wake()) == []


def test_a_worker_that_several_may_want_for_their_suspects_is_agreed_on() -> None:
    """Both hear of the only worker's restart at once."""
    first, second = (Driver(share=share) for share in SHARES)
    here = lose_twice(first, OTHER, ours(1))
    assert starts(here) == [], "the other may want it, too"
    (message,) = told(here)
    assert message.kept == [OTHER]
    there = lose_twice(second, OTHER, theirs(1))
    assert starts(there) == [(OTHER, theirs(1), 3, "replaced")], (
        "it is this one's to try suspects on"
    )
    tell(first, (theirs(1), OTHER), kept=OTHER)
    assert starts(first.wake(AGREE_NS)) == []
    first.end(OTHER, theirs(1))
    assert [start[:2] for start in starts(first.wake(CLAIM_NS))] == [(OTHER, ours(1))]


def test_of_several_that_keep_a_worker_the_lowest_has_it() -> None:
    shares = Share(0, 3), Share(2, 3)
    worker = next(
        name for name in (f"w{i}" for i in range(99)) if Share(1, 3).has_worker(WorkerId(name))
    )
    drivers = [Driver(share=share) for share in shares]
    turns = ["t-0000", "t-0002"]
    for d, turn in zip(drivers, turns, strict=True):
        assert starts(lose_twice(d, worker, turn)) == []
    tell(drivers[0], kept=worker, shard=2)
    tell(drivers[1], kept=worker, shard=0)
    (start,) = starts(drivers[0].wake(AGREE_NS))
    assert start[:2] == (worker, turns[0])
    assert starts(drivers[1].wake(AGREE_NS)) == []
