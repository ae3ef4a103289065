"""Turns that make way for urgent ones, and go on where they were."""

from dataclasses import replace

import pytest

from services.worker.core.effects import CommitBlocks, StageImage, StageSession, StageTurn
from services.worker.core.engine.integrity import check_integrity
from services.worker.core.turns.turn import Turn
from shared.hints import HINT_HOLD_NS
from shared.ids import SessionId
from shared.wire.messages import SamplingParams
from tests.unit.worker.core.adapters.test_adapters import answer, replace_adapter
from tests.unit.worker.driver import (
    MS,
    Engine,
    announce,
    deltas,
    names,
    new_core,
    new_turn,
    of_kind,
)

S = SessionId("s")
URGENT = 2


def connected(num_blocks: int = 16, seats: int = 2) -> Engine:
    """With room to write into, below a kvstore that has nothing."""
    core = new_core(
        num_blocks, lease_target_blocks=8, stage_timeout_max_ns=0, stage_timeout_min_ns=0,
        turns_running_max=seats,
    )  # fmt: skip
    engine = Engine(core)
    core.write_behind.connect(1)
    core.write_behind.refill(engine.now_ns)
    core.on_leased(list(range(32)))
    return engine


def turn_of(name: str, first: int, priority: int = 0, num_tokens: int = 9) -> Turn:
    """Of a session of its own; it ends after twelve more tokens."""
    return new_turn(
        name,
        list(range(first, first + num_tokens)),
        priority=priority,
        sampling=SamplingParams(max_tokens=12),
        session_id=SessionId(name),
    )


def write(engine: Engine) -> None:
    """All that was begun to be copied below is there."""
    engine.core.plan_at_ns()
    commits = of_kind(engine.store_all(), CommitBlocks)
    engine.core.on_committed([each.key for commit in commits for each in commit.writes])
    check_integrity(engine.core)


def step(engine: Engine) -> list[str]:
    ran = names(engine.step())
    write(engine)
    return ran


def running(engine: Engine) -> list[str]:
    return [turn.request.turn_id for turn in engine.core.running]


def full(**sizes: int) -> tuple[Engine, Turn, Turn]:
    """Two turns that decode, in all the seats."""
    engine = connected(**sizes)
    first, second = turn_of("first", 100), turn_of("second", 200)
    for turn in (first, second):
        engine.submit(turn)
    for _ in range(3):
        step(engine)
    assert running(engine) == ["first", "second"]
    return engine, first, second


def test_for_a_seat_the_last_admitted_waits_and_others_run_on() -> None:
    engine, _, second = full()
    engine.submit(turn_of("urgent", 300, URGENT))
    assert step(engine) == ["first", "urgent"]
    assert second.is_paused and list(engine.core.waiting) == [second]
    assert second.cache.num_blocks == 0, "it holds nothing"
    assert engine.core.num_waiting_tokens == 0, "nor is any of it to be computed"
    assert engine.core.planner.pausing.num_pauses == 1


def test_of_several_the_lowest_priority_waits() -> None:
    engine, first, second = full()
    second.request = replace(second.request, priority=1)
    engine.submit(turn_of("urgent", 300, URGENT))
    step(engine)
    assert list(engine.core.waiting) == [first]


def test_it_goes_on_where_it_was_and_computes_nothing_again() -> None:
    engine, _, second = full()
    engine.submit(turn_of("urgent", 300, URGENT))
    step(engine)
    num_tokens = len(second.tokens)
    while "second" not in running(engine):
        step(engine)
    assert (second.num_computed, len(second.tokens)) == (num_tokens, num_tokens + 1)
    while engine.core.turns:
        step(engine)
    said = [delta for delta in deltas(engine.effects) if delta.turn_id == "second"]
    assert [delta.index for delta in said] == list(range(12))


def test_urgent_ones_and_those_that_are_as_urgent_pause_nobody() -> None:
    for priority, others in ((1, 0), (URGENT, URGENT)):
        engine, first, second = full()
        for turn in (first, second):
            turn.request = replace(turn.request, priority=others)
        engine.submit(turn_of("late", 300, priority))
        assert step(engine) == ["first", "second"]


def test_nobody_waits_where_there_is_room() -> None:
    engine = connected(seats=3)
    for name, first in (("first", 100), ("second", 200)):
        engine.submit(turn_of(name, first))
        step(engine)
    engine.submit(turn_of("urgent", 300, URGENT))
    step(engine)
    assert running(engine) == ["first", "second", "urgent"]


def test_nobody_waits_without_a_place_below() -> None:
    engine, _, _ = full()
    engine.core.write_behind.disconnect()
    engine.submit(turn_of("urgent", 300, URGENT))
    assert step(engine) == ["first", "second"]


def test_for_pages_as_many_wait_as_are_needed() -> None:
    engine, _, second = full(num_blocks=10, seats=8)
    assert engine.core.pool.num_free < 5 * 2
    engine.submit(turn_of("urgent", 300, URGENT, num_tokens=10))
    step(engine)
    assert running(engine) == ["first", "urgent"] and second.is_paused


def test_nobody_waits_where_that_does_not_do() -> None:
    engine, _, _ = full(num_blocks=10, seats=8)
    urgent = new_turn("urgent", list(range(300, 339)), priority=URGENT, session_id=S)
    engine.submit(urgent)
    step(engine)
    assert running(engine) == ["first", "second"], "with the one to come it needs more than all"


def test_pages_of_what_is_not_below_yet_are_no_room() -> None:
    engine, _, _ = full(num_blocks=10, seats=8)
    for turn in engine.core.running:
        for block in turn.cache.prefix.blocks:
            block.backed = False
    engine.submit(turn_of("urgent", 300, URGENT, num_tokens=22))
    assert names(engine.step()) == ["first", "second"]


def test_beside_a_step_in_flight_it_waits_for_that() -> None:
    engine, _, second = full()
    ahead = engine.plan()
    assert ahead is not None
    engine.submit(turn_of("urgent", 300, URGENT))
    beside = engine.plan()
    assert beside is None or "urgent" not in names(beside.rows())
    assert not second.is_paused
    engine.finish(ahead)
    assert engine.core.plan_at_ns() is None, "no other is planned before all have landed"
    if beside is not None:
        engine.finish(beside)
    assert "urgent" in step(engine)


def test_one_that_made_way_stands_before_its_like_and_behind_its_betters() -> None:
    engine, _, second = full()
    for name, first, priority in (("like", 400, 0), ("better", 500, 1), ("urgent", 300, URGENT)):
        engine.submit(turn_of(name, first, priority))
    step(engine)
    assert [turn.request.turn_id for turn in engine.core.waiting] == ["better", "second", "like"]
    assert second.is_paused


def test_one_that_made_way_asks_below_for_what_others_took() -> None:
    engine, _, second = full()
    engine.submit(turn_of("urgent", 300, URGENT))
    step(engine)
    for block in list(engine.core.pool.blocks.values()):
        if not block.refs and block.backed:
            engine.core.pool.drop(block)
    num_before = len(of_kind(engine.effects, StageTurn))
    while second.is_paused:
        step(engine)
    asked = of_kind(engine.effects, StageTurn)[num_before:]
    assert [(each.turn_id, len(each.keys)) for each in asked] == [("second", 3)], "and its tail"


def test_nobody_waits_for_one_whose_adapter_is_on_its_way() -> None:
    engine, first, second = full()
    engine.submit(turn_of("like", 400))
    engine.submit(replace_adapter(turn_of("urgent", 300, URGENT), "x", 2))
    (asked,) = of_kind(engine.effects, StageImage)
    for _ in range(3):
        assert step(engine) == ["first", "second"]
    answer(engine, asked)
    assert step(engine) == ["first", "second"], "it is loaded"
    assert engine.core.planner.pausing.num_pauses == 0
    engine.load_all(engine.effects)
    while not second.is_paused:
        assert "urgent" not in step(engine)[:-1]
    assert running(engine) == ["first", "urgent"] and not first.is_paused
    assert engine.core.planner.pausing.num_pauses == 1


def test_others_wait_for_the_pages_of_its_adapter_too() -> None:
    engine, first, second = full(num_blocks=10, seats=8)
    engine.submit(replace_adapter(turn_of("urgent", 300, URGENT, num_tokens=3), "x", 3))
    answer(engine, *of_kind(engine.effects, StageImage))
    assert not engine.core.adapters.images["x"].chain.coming, "there is no room for it"
    assert engine.plan() is None and first.is_paused and second.is_paused
    assert len(engine.core.adapters.images["x"].chain.coming) == 3


def test_one_that_ran_goes_behind_its_betters_whatever_stopped_it() -> None:
    engine, first, _ = full()
    engine.submit(turn_of("better", 500, 1))
    engine.core.planner.recompute(first, engine.now_ns)
    assert [turn.request.turn_id for turn in engine.core.waiting] == ["better", "first"]


def test_one_that_gave_up_its_history_may_ask_for_it_when_it_goes_on() -> None:
    engine, first, _ = full()
    first.cache.prefix.may_ask = False  # what was on its way came too late
    engine.core.planner.pausing.pause(first)
    assert first.cache.prefix.may_ask


@pytest.mark.parametrize(
    ("priority", "arrives_in_ns", "is_at_once"),
    [(1, HINT_HOLD_NS // 2, False), (2, HINT_HOLD_NS // 2, True), (2, 2 * HINT_HOLD_NS, False)],
)
def test_what_an_urgent_session_needs_comes_up_at_once(
    priority: int, arrives_in_ns: int, *, is_at_once: bool
) -> None:
    engine = connected()
    arrives_at_ns = engine.now_ns + arrives_in_ns
    fields = {"expires_at_ns": arrives_at_ns + 1000 * MS, "num_tokens": 4}
    effects = announce(engine, S, priority=priority, arrives_at_ns=arrives_at_ns, **fields)
    assert bool(of_kind(effects, StageSession)) is is_at_once
