"""Prompts whose history is on its way: when they join a step, and when it is given up."""

from services.worker.core.effects import LoadPages, StageTurn
from services.worker.core.engine.integrity import check_integrity
from services.worker.core.kv.staged import Staged
from services.worker.core.step import StepPlan
from services.worker.core.turns.turn import Turn
from shared.ids import TurnId
from tests.unit.worker.driver import (
    MS,
    Engine,
    deltas,
    keys_of,
    names,
    new_core,
    new_turn,
    of_kind,
    staged_blocks,
)

PROMPT = list(range(100, 117))  # four blocks and a token
STEP_NS = 20 * MS


def teach(engine: Engine) -> None:
    """A decode takes 20 ms, a prompt's token as much more, and a page no time to copy."""
    engine.step_ns = STEP_NS
    for _ in range(10):
        engine.core.costs.on_step(0, 1, STEP_NS)
    engine.core.costs.on_step(1000, 0, STEP_NS + 1000 * STEP_NS)
    engine.core.estimates.prefill_tokens_per_s = 50
    engine.core.estimates.load_bytes_per_s = 1e15


def returning(
    ready_in_ns: list[int], num_decoding: int = 1, *, layerwise: bool = True
) -> tuple[Engine, Turn]:
    """Others decode when a turn comes back, whose layers are promised so."""
    engine = Engine(new_core(32, layerwise=layerwise))
    for number in range(num_decoding):
        engine.submit(new_turn(f"d{number}", [number + 1, 2, 3]))
        engine.step()
    teach(engine)
    engine.core.write_behind.connect(1)
    turn = new_turn("t", PROMPT)
    engine.submit(turn)
    made = staged_blocks(7, of_kind(engine.effects, StageTurn)[-1].keys, 8)
    staged = Staged(7, made.keys, made.pages, made.generations, 1, 1, ready_in_ns)
    assert made.keys == keys_of(PROMPT)
    engine.keep(engine.core.on_staged(turn.request.turn_id, 1, staged, engine.now_ns))
    return engine, turn


def land(engine: Engine, layer: int, *, is_good: bool = True) -> None:
    """The loads of a layer end."""
    runs = [run for each in of_kind(engine.effects, LoadPages) for run in each.loads]
    pages = [page for run in runs if run.layer == layer for page in run.pool_pages]
    good, bad = (pages, []) if is_good else ([], pages)
    engine.keep(engine.core.on_loaded(good, bad, engine.now_ns))


def planned(engine: Engine) -> StepPlan:
    plan = engine.plan()
    assert plan is not None
    return plan


def test_it_joins_when_each_layer_is_promised_before_the_pass_comes_to_it() -> None:
    engine, _ = returning([0, 5 * MS])  # the second of two layers begins 20 ms after the first
    plan = planned(engine)
    assert names(plan.rows()) == ["d0", "t"]
    assert [len(pages) for pages in plan.awaited[1]] == [4, 4]


def test_it_stays_out_while_a_stall_would_cost_the_others_more_than_it_saves() -> None:
    engine, turn = returning([0, 200 * MS], num_decoding=4)
    for _ in range(3):
        assert "t" not in names(engine.step())
    assert turn in engine.core.running, "its layers keep coming"
    engine.now_ns += 180 * MS
    assert "t" in names(planned(engine).rows())


def test_a_layer_that_has_come_is_not_waited_for() -> None:
    engine, _ = returning([0, 300 * MS], num_decoding=4)
    assert "t" not in names(engine.step())
    land(engine, 0)
    assert "t" not in names(engine.step()), "the other one has not"
    land(engine, 1)
    plan = planned(engine)
    assert "t" in names(plan.rows()) and not plan.awaited


def test_alone_it_does_not_occupy_the_device_before_it_must() -> None:
    engine, turn = returning([0, 250 * MS], num_decoding=0)
    assert engine.plan() is None
    deadline_ns = engine.core.next_deadline_ns()
    assert deadline_ns is not None and engine.now_ns < deadline_ns < engine.now_ns + 320 * MS
    engine.submit(new_turn("u", [1, 2]))  # another one that comes meanwhile goes first
    engine.core.on_staged(TurnId("u"), 1, None, engine.now_ns)
    assert names(engine.step()) == ["u"]
    engine.core.on_cancel(TurnId("u"))
    engine.now_ns = max(deadline_ns, engine.now_ns)
    assert names(planned(engine).rows()) == ["t"] and turn.num_planned == len(PROMPT)


def test_a_promise_that_is_missed_by_more_than_computing_takes_is_cut_off() -> None:
    engine, _turn = returning([10 * MS, 10 * MS])
    engine.now_ns += 10 * MS
    land(engine, 0)
    plan = planned(engine)
    assert "t" in names(plan.rows())
    index = plan.turn_ids.index(TurnId("t"))
    assert plan.patience_ns[index] == STEP_NS, "a step of the other's"
    engine.finish(plan, failed={index})
    assert not [delta for delta in deltas(engine.effects) if delta.turn_id == "t"]
    assert "t" not in names(engine.step()), "what came too late for a pass is waited for outside"
    engine.now_ns += 400 * MS  # computing 16 tokens takes less
    (row,) = [row for row in engine.step() if row.turn_id == "t"]
    assert row.start == 0, "and computed in the end"
    land(engine, 1)
    check_integrity(engine.core)


def test_what_comes_late_after_all_is_used() -> None:
    engine, _turn = returning([0, 10 * MS])
    plan = planned(engine)
    engine.finish(plan, failed={plan.turn_ids.index(TurnId("t"))})
    engine.step()
    land(engine, 0)
    land(engine, 1)
    (row,) = [row for row in engine.step() if row.turn_id == "t"]
    assert row.start == 16
    check_integrity(engine.core)


def test_one_lost_page_is_enough_whatever_else_is_to_come() -> None:
    engine, _turn = returning([0, 200 * MS], num_decoding=4)
    engine.step()
    runs = [run for each in of_kind(engine.effects, LoadPages) for run in each.loads]
    engine.keep(engine.core.on_loaded([], runs[0].pool_pages[:1], engine.now_ns))
    (row,) = [row for row in engine.step() if row.turn_id == "t"]
    assert row.start == 0


def test_what_others_went_before_of_is_waited_for_as_long_as_it_comes() -> None:
    engine, _turn = returning([0, 200 * MS], num_decoding=4)
    engine.step()
    engine.now_ns += 650 * MS  # overdue, but a layer has come since it was promised
    land(engine, 0)
    rows = engine.step()
    assert [row.start for row in rows if row.turn_id == "t"] in ([], [16])


def test_what_comes_no_more_is_waited_for_once() -> None:
    engine, turn = returning([0, 200 * MS], num_decoding=4)
    engine.step()
    land(engine, 0)  # then the link is cut
    engine.now_ns = turn.cache.prefix.give_up_at_ns + 10 * MS
    (row,) = [row for row in engine.step() if row.turn_id == "t"]
    assert row.start == 0


def test_what_does_not_come_is_computed_as_soon_as_that_is_known() -> None:
    engine, _turn = returning([0, 200 * MS], num_decoding=4)
    engine.step()
    land(engine, 0)
    land(engine, 1, is_good=False)
    (row,) = [row for row in engine.step() if row.turn_id == "t"]
    assert row.start == 0


def test_alone_it_is_waited_for_until_computing_is_better() -> None:
    engine, _turn = returning([0, 250 * MS], num_decoding=0)
    assert engine.plan() is None
    deadline_ns = engine.core.next_deadline_ns()
    assert deadline_ns is not None
    engine.now_ns = deadline_ns
    plan = planned(engine)
    engine.finish(plan, failed={0})
    assert engine.plan() is None
    deadline_ns = engine.core.next_deadline_ns()
    assert deadline_ns is not None
    engine.now_ns = deadline_ns
    assert engine.step()[0].start == 0


def test_without_layerwise_loading_it_waits_for_all_of_its_history() -> None:
    engine, _turn = returning([0, 5 * MS], layerwise=False)
    assert "t" not in names(engine.step())
    land(engine, 0)
    assert "t" not in names(engine.step())
    land(engine, 1)
    assert "t" in names(planned(engine).rows())


def test_the_next_step_is_planned_by_when_the_stalled_one_will_land() -> None:
    engine, _turn = returning([0, 20 * MS])
    planned(engine)
    (flight,) = engine.core.flights
    assert flight.stall_ns > 0
    assert flight.ends_at_ns >= engine.now_ns + STEP_NS + flight.stall_ns
