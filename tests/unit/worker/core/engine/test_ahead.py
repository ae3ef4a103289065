"""A step is planned while another one is in flight."""

from services.worker.core.engine.integrity import check_integrity
from services.worker.core.step import StepPlan
from shared.ids import TurnId
from shared.wire.messages import SamplingParams
from tests.unit.worker.driver import (
    END_TOKEN,
    MS,
    PLAIN_TOKEN,
    Engine,
    deltas,
    ends,
    new_core,
    new_turn,
)

PROMPT = [5, 6, 7, 8, 5, 6]


def two_plans(engine: Engine) -> tuple[StepPlan, StepPlan]:
    """A step, and the one planned behind it while it is in flight."""
    first, second = engine.plan(), engine.plan()
    assert first is not None and second is not None
    assert engine.core.plan_at_ns() is None, "two in flight are enough"
    return first, second


def test_a_token_that_is_not_chosen_yet_is_carried_over() -> None:
    engine = Engine()
    engine.submit(new_turn("t", PROMPT))
    first, second = two_plans(engine)
    assert first.carried.tolist() == [] and second.carried.tolist() == [0]
    assert first.following.tolist() == [] and second.following.tolist() == [0]
    ((_, start, end, is_sampled),) = second.rows()
    assert (start, end, is_sampled) == (len(PROMPT), len(PROMPT) + 1, True)
    numbers = [each.num_generated for plan in (first, second) for each in plan.sampling if each]
    assert numbers == [0, 1]
    engine.finish(first, 3)
    engine.finish(second, 4)
    assert [delta.tokens for delta in deltas(engine.effects)] == [[3], [4]]
    assert engine.core.turns[TurnId("t")].tokens == [*PROMPT, 3, 4]
    plan = engine.plan()
    assert plan is not None and plan.tokens.tolist() == [4] and not len(plan.carried)


def test_nothing_is_planned_behind_a_token_that_is_the_last_whatever_it_is() -> None:
    cases = [(1000, 1), (len(PROMPT) + 1, 9)]
    for max_model_len, max_tokens in cases:
        engine = Engine(new_core(max_model_len=max_model_len))
        engine.submit(new_turn("t", PROMPT, sampling=SamplingParams(max_tokens=max_tokens)))
        plan = engine.plan()
        assert plan is not None and engine.plan() is None
        engine.finish(plan)
        assert deltas(engine.effects)[-1].finish == "length"


def test_a_prompt_goes_on_behind_a_chunk_in_flight() -> None:
    engine = Engine(new_core(prefill_tokens_max=4))
    engine.submit(new_turn("t", PROMPT))
    first, second = two_plans(engine)
    assert [(row.start, row.end) for plan in (first, second) for row in plan.rows()] == [
        (0, 4),
        (4, 6),
    ]
    engine.finish(first)
    assert not deltas(engine.effects)
    engine.finish(second)
    assert len(deltas(engine.effects)) == 1


def test_what_comes_behind_an_end_is_void_and_the_pages_stay_until_it_is_over() -> None:
    engine = Engine()
    engine.submit(new_turn("t", PROMPT))
    num_free = engine.core.pool.num_free
    first, second = two_plans(engine)
    engine.finish(first, END_TOKEN)
    assert [delta.finish for delta in deltas(engine.effects)] == ["stop"]
    assert not ends(engine.effects) and engine.core.is_busy and not engine.core.turns
    assert engine.core.pool.num_available < num_free
    assert engine.plan() is None
    engine.finish(second)
    assert len(deltas(engine.effects)) == 1, "nothing is said after the end"
    assert [end.reason for end in ends(engine.effects)] == ["stop"]
    assert engine.core.pool.num_available == engine.core.pool.num_pages
    assert not engine.core.is_busy
    check_integrity(engine.core)


def test_a_turn_cancelled_in_two_steps_keeps_its_pages_until_both_have_landed() -> None:
    engine = Engine()
    engine.submit(new_turn("t", [*PROMPT, 1]))
    first, second = two_plans(engine)
    assert engine.core.on_cancel(TurnId("t")) == []
    engine.submit(new_turn("t", PROMPT, attempt=2))
    assert engine.finish(first) == []
    assert [end.attempt for end in ends(engine.finish(second))] == [1]
    check_integrity(engine.core)
    # The eighth token was not taken, so its block is not that of the tokens that are known.
    assert all(len(block.key) for block in engine.core.pool.blocks.values())
    assert len(engine.core.pool.blocks) == 1


def test_what_follows_a_failed_row_is_void_and_the_turn_starts_again_when_it_has_landed() -> None:
    engine = Engine()
    engine.submit(new_turn("t", PROMPT))
    first, second = two_plans(engine)
    engine.finish(first, failed={0})
    turn = engine.core.turns[TurnId("t")]
    assert turn in engine.core.running and engine.plan() is None
    engine.finish(second, 4)
    assert not deltas(engine.effects) and not turn.num_computed and not turn.num_planned
    assert not engine.core.pool.blocks, "nobody is to run on what followed"
    (row,) = engine.step(3)
    assert row.start == 0 and deltas(engine.effects)[-1].tokens == [3]


def test_a_broken_row_ends_its_turn_once() -> None:
    engine = Engine()
    engine.submit(new_turn("t", PROMPT))
    first, second = two_plans(engine)
    engine.finish(first, broken={0: "no numbers"})
    engine.finish(second, broken={0: "no numbers"})
    assert [delta.code for delta in deltas(engine.effects)] == ["poisoned"]
    assert [end.reason for end in ends(engine.effects)] == ["error"]
    check_integrity(engine.core)


def test_a_step_that_broke_only_behind_a_failed_row_ends_nothing() -> None:
    engine = Engine()
    engine.submit(new_turn("t", PROMPT))
    first, second = two_plans(engine)
    engine.finish(first, failed={0})
    engine.finish(second, broken={0: "garbage in, garbage out"})
    assert not ends(engine.effects)
    assert engine.step(3) and deltas(engine.effects)[-1].tokens == [3]


def test_pages_that_a_twin_makes_needless_are_kept_from_others_while_a_step_reads_them() -> None:
    engine = Engine()
    for name in "ab":
        engine.submit(new_turn(name, PROMPT))
    first, second = two_plans(engine)
    num_free = engine.core.pool.num_free
    engine.finish(first)
    (flight,) = engine.core.flights
    assert len(flight.retired) == 1 and engine.core.pool.num_free == num_free
    check_integrity(engine.core)
    engine.finish(second)
    assert engine.core.pool.num_free == num_free + engine.core.pool.num_layers


def test_nobody_is_preempted_before_the_step_in_flight_has_landed() -> None:
    engine = Engine(new_core(num_blocks=5))
    for first_token in (1, 2):
        engine.submit(new_turn(str(first_token), [first_token, *PROMPT]))
    first, second = two_plans(engine)  # the eighth token of each fills its second block
    engine.finish(first)
    third = engine.plan()  # the ninth needs a third block, and there is one
    assert third is not None and third.turn_ids == ["1"]
    engine.finish(second)
    assert engine.core.plan_at_ns() is None, "nothing more is planned ahead"
    assert not engine.core.planner.num_preemptions
    engine.finish(third)
    assert engine.core.plan_at_ns() == 0
    fourth = engine.plan()
    assert fourth is not None and fourth.turn_ids == ["1"]
    fifth = engine.plan()
    assert fifth is not None
    for plan in (fourth, fifth):
        engine.finish(plan)
    check_integrity(engine.core)


def test_the_next_step_is_planned_shortly_before_the_one_in_flight_ends() -> None:
    engine = Engine()
    for _ in range(10):
        engine.core.costs.on_step(0, 1, 50 * MS)
        engine.core.costs.on_step(100, 1, 250 * MS)
    assert engine.core.plan_at_ns() == 0
    engine.submit(new_turn("t", PROMPT))
    started_ns = engine.now_ns
    first = engine.plan()
    assert first is not None
    predicted_ns = engine.core.costs.step_ns(first.num_prefill_tokens, first.num_decodes)
    at_ns = engine.core.plan_at_ns()
    assert at_ns is not None
    assert started_ns + 0.8 * predicted_ns < at_ns < started_ns + predicted_ns - 2 * MS
    engine.submit(new_turn("late", [PLAIN_TOKEN] * 3))
    engine.now_ns = at_ns
    second = engine.plan()
    assert second is not None and second.turn_ids == ["t", "late"], "it came in time"


def test_without_planning_ahead_a_step_has_to_land_first() -> None:
    engine = Engine(new_core(steps_ahead_max=0))
    engine.submit(new_turn("t", PROMPT))
    assert engine.plan() is not None
    assert engine.core.plan_at_ns() is None
