"""Running turns go on elsewhere without a gap: what they run on is prefetched there first, and in
any doubt they stay where they are.
"""

import pytest

from services.scheduler.core import CancelTurn, DropPrefetch, Effect, SendPrefetch, StartTurn
from services.scheduler.core.turns.moves import (
    COMING_MAX,
    LACKING_MAX,
    LEAVING_MAX,
    PREPARE_NS,
    STAY_NS,
)
from shared.ids import ModelId, TurnId, WorkerId
from shared.wire.messages import ModelRoom, TurnPrefetched
from tests.unit.scheduler.turns.driver import (
    MS,
    SECOND,
    Driver,
    adapter_of,
    cancels,
    only,
    starts,
)

BLOCK = 64
NUM_TOKENS = 10 * BLOCK
TARGET_MS = 11.5  # steps take 10 ms and 0.05 ms a turn, unless a worker reports others


def room(num_turns: int = 0, free: int = 1000, of: int = 1000) -> ModelRoom:
    return ModelRoom(
        model_id=ModelId("m"), num_turns=num_turns, num_blocks=of, num_blocks_free=free
    )


def prefetched(d: Driver, turn: str, worker: str = "w2", num_blocks: int = 12) -> list[Effect]:
    message = TurnPrefetched(
        turn_id=TurnId(turn), worker_id=WorkerId(worker), num_blocks=num_blocks
    )
    return d.note(d.core.on_turn_prefetched(message, d.now_ns))


def moving_to(effects: list[Effect]) -> list[tuple[str, str]]:
    """Worker and turn of every prefetch for one that runs."""
    return [
        (each.worker_id, each.prefetch.running.turn_id)
        for each in only(SendPrefetch, effects)
        if each.prefetch.running is not None
    ]


def dropped(effects: list[Effect]) -> list[str]:
    """Workers that need prefetch nothing more."""
    return [each.worker_id for each in only(DropPrefetch, effects)]


def running(d: Driver, *names: str, generated: int = 5, state: str = "ready") -> list[Effect]:
    """`w1` reports these turns, which have made tokens."""
    refs = [(name, 1) for name in names]
    return d.report("w1", *refs, generated=generated, state=state, room=room(len(names)))


def with_turns(*names: str, policy: str = "cost") -> Driver:
    """These turns run on `w1`; `w2` has nothing."""
    d = Driver(policy=policy)
    d.report("w1", room=room())
    for name in names:
        assert starts(d.submit(name, num_tokens=NUM_TOKENS))
    d.report("w2", room=room())
    running(d, *names)
    return d


def ending(*names: str) -> Driver:
    """As `with_turns`, and `w1` stops: what it has is about to move to `w2`."""
    d = with_turns(*names)
    assert moving_to(running(d, *names, state="draining")) == [("w2", name) for name in names[::-1]]
    return d


@pytest.mark.parametrize("policy", ["cost", "balance"])
def test_turns_of_a_worker_that_ends_are_prefetched_elsewhere_and_go_on_there(policy: str) -> None:
    d = with_turns("t", policy=policy)
    effects = running(d, "t", state="draining")
    (prefetch,) = only(SendPrefetch, effects)
    assert prefetch.prefetch.kv_at == {"h": NUM_TOKENS // BLOCK}, "where it ran so far"
    assert not starts(effects) and not cancels(effects), "it runs on meanwhile"
    assert not moving_to(running(d, "t", state="draining")), "it is on its way"
    effects = prefetched(d, "t")
    assert starts(effects) == [("w2", "t", 2, "migrated")]
    assert cancels(effects) == [("w1", "t", 1)]
    (start,) = only(StartTurn, effects)
    assert start.start.expected_as == prefetch.prefetch.session_id, "its prefetch goes by that name"
    order = [type(each) for each in effects if isinstance(each, StartTurn | CancelTurn)]
    assert order == [StartTurn, CancelTurn], "a scheduler that dies between leaves it running"
    assert not dropped(effects)
    assert d.load("w1") == 0 and d.load("w2") == 1


def test_the_end_of_the_attempt_before_does_not_end_a_turn_that_has_moved() -> None:
    d = ending("t")
    prefetched(d, "t")
    d.end("w1", "t", attempt=1)
    assert d.load("w2") == 1, "its frontend says whether that was the end: it answers the pull"
    d.end("w2", "t", attempt=2)
    assert d.load("w2") == 0


def test_a_worker_that_missed_the_cancel_is_told_again() -> None:
    d = ending("t")
    prefetched(d, "t")
    assert cancels(running(d, "t", state="draining")) == [("w1", "t", 1)]


def test_the_newest_turn_of_a_worker_without_blocks_moves_one_at_a_time() -> None:
    d = Driver(policy="cost")
    d.report("w1", room=room())
    for name in ("old", "mid", "new"):
        d.submit(name, num_tokens=NUM_TOKENS)
        d.now_ns += MS
    d.report("w2", room=room())
    refs = [(name, 1) for name in ("old", "mid", "new")]
    assert not moving_to(d.report("w1", *refs, generated=5, room=room(3, free=3)))
    assert moving_to(d.report("w1", *refs, generated=5, room=room(3, free=2))) == [("w2", "new")]


def test_a_worker_without_blocks_sends_no_turn_where_there_are_hardly_more() -> None:
    d = with_turns("t")
    others = [(f"o{number}", 1) for number in range(10)]
    needed = NUM_TOKENS // BLOCK + 5
    for free, moves in ((needed + 15, False), (needed + 30, True)):
        d.report("w2", *others, room=room(10, free=free))
        effects = d.report("w1", ("t", 1), generated=5, room=room(1, free=0))
        assert bool(moving_to(effects)) is moves


def test_a_turn_whose_target_breaks_moves_to_where_it_is_met() -> None:
    d = Driver(policy="cost")
    d.report("w1", room=room())
    d.submit("t", num_tokens=NUM_TOKENS, slo_tpot_ms=TARGET_MS)
    d.report("w2", room=room())
    assert not moving_to(running(d, "t")), "steps of one turn are short enough"
    others = [f"o{number}" for number in range(40)]
    assert moving_to(running(d, "t", *others)) == [("w2", "t")]
    assert starts(prefetched(d, "t")) == [("w2", "t", 2, "migrated")]


@pytest.mark.parametrize(("num_there", "target_there_ms"), [(38, None), (1, 10.07)])
def test_a_turn_does_not_move_where_its_target_would_break_too_or_anothers(
    num_there: int, target_there_ms: float | None
) -> None:
    d = Driver(policy="cost")
    d.report("w2", room=room())
    there = [f"p{number}" for number in range(num_there)]
    for name in there:
        d.submit(name, slo_tpot_ms=target_there_ms)
    d.report("w1", room=room())
    assert [worker for worker, *_ in starts(d.submit("t", slo_tpot_ms=TARGET_MS))] == ["w1"]
    d.report("w2", *[(name, 1) for name in there], room=room(num_there))
    others = [f"o{number}" for number in range(40)]
    assert not moving_to(running(d, "t", *others))


@pytest.mark.parametrize("target_ms", [0.0, 1e-300, 365 * 24 * 3.6e6, float("nan"), -1.0])
def test_targets_that_mean_nothing_move_nothing_for_ever(target_ms: float) -> None:
    d = Driver(policy="cost")
    d.report("w1", room=room())
    d.submit("t", num_tokens=NUM_TOKENS, slo_tpot_ms=target_ms)
    d.report("w2", room=room())
    assert not moving_to(running(d, "t"))


def test_only_policies_that_move_turns_do_so_without_need() -> None:
    d = with_turns("t", policy="balance")
    d.report("w2", room=room())
    assert not moving_to(d.report("w1", ("t", 1), generated=5, room=room(1, free=0)))


def test_a_turn_that_is_not_prefetched_in_time_stays_and_is_not_tried_again_soon() -> None:
    d = with_turns("t")
    lacking = room(1, free=0)
    assert moving_to(d.report("w1", ("t", 1), generated=5, room=lacking))
    effects: list[Effect] = []
    for _ in range(2 * (PREPARE_NS + STAY_NS) // SECOND):
        effects += d.report("w2", room=room())
        effects += d.report("w1", ("t", 1), generated=5, room=lacking)
        effects += d.wake(SECOND)
    assert len(moving_to(effects)) == 1, "once more, much later"
    assert not starts(effects) and not cancels(effects)
    assert dropped(effects) == ["w2", "w2"]


def test_a_turn_of_a_worker_that_ends_moves_even_if_nothing_was_prefetched() -> None:
    d = ending("t")
    effects: list[Effect] = []
    for _ in range(PREPARE_NS // SECOND + 1):
        effects += d.report("w2", room=room())
        effects += running(d, "t", state="draining")
        effects += d.wake(SECOND)
    assert starts(effects) == [("w2", "t", 2, "migrated")]


@pytest.mark.parametrize("num_lacking", [LACKING_MAX, LACKING_MAX + 1])
def test_a_turn_moves_only_if_little_is_to_be_computed_again(num_lacking: int) -> None:
    d = with_turns("t")
    d.report("w1", ("t", 1), generated=5, room=room(1, free=0))
    effects = prefetched(d, "t", num_blocks=NUM_TOKENS // BLOCK - num_lacking)
    if num_lacking <= LACKING_MAX:
        assert starts(effects)
    else:
        assert not starts(effects) and dropped(effects) == ["w2"]


def test_a_turn_stays_if_there_is_no_room_any_more() -> None:
    d = with_turns("t")
    d.report("w1", ("t", 1), generated=5, room=room(1, free=0))
    d.report("w2", ("o", 1), room=room(1, free=1))
    effects = prefetched(d, "t")
    assert not starts(effects) and dropped(effects) == ["w2"]


def test_a_turn_moves_once_its_adapter_is_there() -> None:
    d = Driver(policy="cost")
    d.report("w1", room=room())
    d.submit("t", num_tokens=NUM_TOKENS, adapter=adapter_of("a"))
    d.report("w2", room=room())
    running(d, "t", state="draining")
    assert not starts(prefetched(d, "t")), "its adapter is still loading"
    assert starts(d.report("w2", adapters="a", room=room())) == [("w2", "t", 2, "migrated")]


def test_a_turn_that_ends_or_is_cancelled_on_its_way_moves_nowhere() -> None:
    for is_cancelled in (False, True):
        d = ending("t")
        assert dropped(d.cancel("t") if is_cancelled else d.end("w1", "t")) == ["w2"]
        assert not starts(prefetched(d, "t"))


def test_a_turn_whose_worker_dies_on_its_way_is_placed_again() -> None:
    d = ending("t")
    effects = d.report("w1", incarnation="b", room=room())
    assert [turn for _, turn, *_ in starts(effects)] == ["t"]
    assert dropped(effects) == ["w2"]
    assert not starts(prefetched(d, "t")), "it is where it was placed"


def test_a_turn_stays_if_the_other_worker_dies_or_ends() -> None:
    d = with_turns("t")
    d.report("w1", ("t", 1), generated=5, room=room(1, free=0))
    d.report("w2", state="draining", room=room())
    effects = prefetched(d, "t")
    assert not starts(effects) and not cancels(effects)
    assert d.load("w1") == 1


def test_a_turn_is_placed_once_more_if_both_workers_die() -> None:
    d = ending("t")
    prefetched(d, "t")
    d.report("w3", room=room())
    d.report("w1", incarnation="b", state="draining", room=room())
    effects = d.report("w2", incarnation="b", state="draining", room=room())
    assert starts(effects) == [("w3", "t", 3, "replaced")]


def test_only_so_many_move_at_a_time() -> None:
    names = [f"t{number}" for number in range(12)]
    d = with_turns(*names)
    effects = running(d, *names, state="draining")
    assert len(moving_to(effects)) == COMING_MAX, "to one worker"
    first = moving_to(effects)[0][1]
    assert len(moving_to(prefetched(d, first))) == 1, "one place is free again"
    d = with_turns(*names)
    for worker in ("w3", "w4"):
        d.report(worker, room=room())
    refs = [(name, 1) for name in names]
    effects = []
    for _ in range(5):
        effects += d.report("w1", *refs, generated=5, room=room(12, free=0))
    assert len(moving_to(effects)) == LEAVING_MAX


def test_there_may_be_nowhere_to_go() -> None:
    d = Driver(policy="cost")
    d.report("w1", room=room())
    d.submit("t", num_tokens=NUM_TOKENS)
    running(d, "t")
    assert not moving_to(running(d, "t", state="draining"))
    assert not moving_to(d.report("w1", ("t", 1), generated=5, room=room(1, free=0)))


def test_what_is_not_known_here_does_not_move() -> None:
    d = Driver(policy="cost")
    d.report("w2", room=room())
    effects = running(d, "of an earlier scheduler", state="draining")
    assert not moving_to(effects), "its frontend will submit it again"
    assert not starts(prefetched(d, "of an earlier scheduler"))
    assert not starts(prefetched(d, "of nobody"))


def test_a_turn_that_is_nearly_over_stays() -> None:
    for max_tokens, moves in ((20, False), (500, True)):
        d = Driver(policy="cost")
        d.report("w1", room=room())
        d.submit("t", num_tokens=NUM_TOKENS, max_tokens=max_tokens)
        d.report("w2", room=room())
        effects = d.report("w1", ("t", 1), generated=5, room=room(1, free=0))
        assert bool(moving_to(effects)) is moves


def test_what_another_worker_has_of_it_moves_no_turn() -> None:
    d = ending("t")
    d.report("w3", room=room())
    assert not starts(prefetched(d, "t", worker="w3"))
    assert starts(prefetched(d, "t", worker="w2"))


def test_a_turn_that_has_moved_does_not_move_on_soon() -> None:
    d = ending("t")
    prefetched(d, "t")
    d.report("w3", room=room())
    for after_ns, moves in ((STAY_NS - SECOND, False), (SECOND, True)):
        d.now_ns += after_ns
        d.report("w3", room=room())
        effects = d.report("w2", ("t", 2), generated=6, room=room(1, free=0))
        assert bool(moving_to(effects)) is moves


def test_others_follow_one_that_has_left() -> None:
    names = ["t1", "t2", "t3"]
    d = with_turns(*names)
    effects: list[Effect] = []
    for _ in range(3):
        effects += d.report("w1", *[(n, 1) for n in names], generated=5, room=room(3, free=0))
    assert [name for _, name in moving_to(effects)] == ["t3", "t2"]
    prefetched(d, "t3")
    effects = d.report("w1", ("t1", 1), ("t2", 1), generated=5, room=room(2, free=0))
    assert [name for _, name in moving_to(effects)] == ["t1"]
