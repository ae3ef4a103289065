"""Other systems' placement, and how the simulated cluster moves running turns."""

from collections import Counter

import pytest

from loadtest.cluster.migration import GAP, MOVES_MAX, Migration
from loadtest.policies.placement import SYSTEMS
from services.scheduler.core import SendPrefetch, StartTurn
from shared.ids import FrontendId, HostId, ModelId, TurnId, WorkerId
from shared.wire.messages import (
    ModelRoom,
    TurnEnd,
    TurnRef,
    TurnsEnded,
    TurnsSubmit,
    TurnSubmit,
    WorkerReport,
)
from tests.unit.scheduler.turns.driver import Driver, only
from tests.unit.scheduler.turns.test_placement import place


def three(system: str) -> Driver:
    d = Driver(policy=SYSTEMS[system].make, attempt_floor=4096)
    for number in range(3):
        d.report(f"w{number}", host=f"h{number}")
    return d


@pytest.mark.parametrize("system", ["recompute", "sticky", "remote"])
def test_other_systems_ignore_hints(system: str) -> None:
    d = three(system)
    placement, effects = d.expect("s")
    assert placement.worker_id is None and not only(SendPrefetch, effects)


def test_a_sticky_session_stays_however_busy_its_home_and_however_long_it_was_away() -> None:
    d = three("sticky")
    assert place(d.submit("t1", "s")) == ("w0", "balance")
    d.end("w0", "t1", attempt=9999)
    d.wake(2 * d.limits.affinity_ns)
    for worker in ("w1", "w2"):
        d.report(worker, host="h" + worker[1])
    d.report("w0", *[(f"x{n}", 1) for n in range(20)], host="h0", waiting_tokens=9000)
    assert place(d.submit("t2", "s")) == ("w0", "affinity")
    d.report("w0", host="h0", state="draining")
    assert place(d.submit("t3", "s"))[0] != "w0"


@pytest.mark.parametrize("system", ["recompute", "remote"])
def test_a_session_without_a_home_goes_where_least_is_to_do(system: str) -> None:
    d = three(system)
    d.submit("t1", "s")
    d.end("w0", "t1", attempt=9999)
    d.report("w0", ("x", 1), host="h0")
    assert place(d.submit("t2", "s", kv_at={"h0": 30}))[0] == "w1"


def test_random_is_drawn_by_the_turn_and_nothing_else() -> None:
    drawn = []
    for order in ((0, 1, 2), (2, 1, 0)):
        d = Driver(policy=SYSTEMS["random"].make)
        for number in order:
            d.report(f"w{number}")
        drawn.append([place(d.submit(f"t{number}"))[0] for number in range(30)])
    assert drawn[0] == drawn[1] and min(Counter(drawn[0]).values()) > 4


# Consolidation (Punica, section 5.1).


def two_of_eight_seats(*, blocks_free: dict[str, int]) -> Driver:
    d = Driver(policy=SYSTEMS["consolidate"].make)
    for worker in ("w1", "w2"):
        room = ModelRoom(
            model_id=ModelId("m"), num_blocks=100, num_blocks_free=blocks_free.get(worker, 100)
        )
        d.report(worker, seats=8, room=room)
    return d


def placed(d: Driver, turn: str) -> str | None:
    starts = only(StartTurn, d.submit(turn))
    return starts[0].worker_id if starts else None


def test_turns_fill_the_largest_batch_then_the_highest_id_then_wait_in_order() -> None:
    d = two_of_eight_seats(blocks_free={})
    placements = [placed(d, f"t{n}") for n in range(18)]
    assert placements == 8 * ["w2"] + 8 * ["w1"] + 2 * [None], "none waits for a seat on a worker"
    for ended, at, begins in (("t8", "w1", "t16"), ("t0", "w2", "t17")):
        d.end(at, ended)
        started = only(StartTurn, d.wake(0))
        assert [(each.start.turn_id, each.worker_id) for each in started] == [(begins, at)]


def test_a_batch_without_memory_for_the_prompt_is_passed_over() -> None:
    d = two_of_eight_seats(blocks_free={"w2": 40})
    assert [placed(d, "t1"), placed(d, "t2")] == ["w2", "w2"]
    d = two_of_eight_seats(blocks_free={})
    d.report("w2", ("x", 1), seats=8, room=ModelRoom(
        model_id=ModelId("m"), num_turns=1, num_blocks=100, num_blocks_free=1
    ))  # fmt: skip
    assert placed(d, "t1") == "w1"


# Migration.


def report_of(worker: str, *turns: str, generated: int = 5, attempt: int = 1) -> WorkerReport:
    refs = [TurnRef(turn_id=TurnId(t), attempt=attempt, num_generated=generated) for t in turns]
    return WorkerReport(
        worker_id=WorkerId(worker), incarnation="1", seq=1, host_id=HostId(f"h-{worker}"),
        state="ready", models=[], turns=refs,
    )  # fmt: skip


def submitted(*turns: str) -> Migration:
    """Each turn's prompt is longer than the one before."""
    migration = Migration(block_tokens=64)
    submits = [
        TurnSubmit(
            turn_id=TurnId(turn), frontend_id=FrontendId("f"), model_id=ModelId("m"),
            num_prompt_tokens=100 * number + 100,
        )
        for number, turn in enumerate(turns)
    ]  # fmt: skip
    migration.on_submit(TurnsSubmit(turns=submits))
    return migration


TURNS = [f"t{number}" for number in range(GAP)]


def test_the_shortest_running_turn_leaves_an_overloaded_worker_with_its_kv() -> None:
    migration = submitted(*TURNS)
    assert migration.on_report(report_of("w0", *TURNS)) is None, "no other worker is known"
    migration.on_report(report_of("w1"))
    assert migration.on_report(report_of("w0", *TURNS, generated=0)) is None, "none runs yet"
    moved = migration.on_report(report_of("w0", *TURNS, generated=30, attempt=7))
    assert moved is not None
    (submit,) = moved.turns
    assert (submit.turn_id, submit.attempt) == ("t0", 8)
    assert migration.on_moved(TurnId("t0")) == {"h-w0": 130 // 64 + 1}
    assert migration.on_moved(TurnId("t1")) is None, "it has not moved"


def test_a_turn_moves_a_few_times_at_most_and_not_after_its_end() -> None:
    migration = submitted("t0")
    others = [f"x{number}" for number in range(GAP)]  # which no submit was seen of
    migration.on_report(report_of("w1"))
    for number in range(MOVES_MAX):
        moved = migration.on_report(report_of("w0", "t0", *others, attempt=number + 1))
        assert moved is not None and moved.turns[0].attempt == number + 2
        old = TurnEnd(turn_id=TurnId("t0"), attempt=number + 1, reason="cancelled")
        migration.on_ended(TurnsEnded(turns=[old]))
        migration.on_moved(TurnId("t0"))
    assert migration.on_report(report_of("w0", "t0", *others)) is None
    fresh = submitted("t0")
    fresh.on_report(report_of("w1"))
    fresh.on_ended(TurnsEnded(turns=[TurnEnd(turn_id=TurnId("t0"), attempt=1, reason="stop")]))
    assert fresh.on_report(report_of("w0", "t0", *others)) is None


def test_evenly_loaded_workers_keep_their_turns() -> None:
    migration = submitted(*TURNS)
    migration.on_report(report_of("w1", "x"))
    assert migration.on_report(report_of("w0", *TURNS)) is None
