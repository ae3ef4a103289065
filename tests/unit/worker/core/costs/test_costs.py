import pytest

from services.worker.core.costs.costs import StepCosts

BASE_NS, ROW_NS, TOKEN_NS = 10_000_000, 50_000, 94_000


def taught(base_ns: int = BASE_NS, num_steps: int = 40) -> StepCosts:
    costs = StepCosts()
    teach(costs, base_ns, num_steps)
    return costs


def teach(costs: StepCosts, base_ns: int, num_steps: int) -> None:
    for number in range(num_steps):
        rows = 5 + number % 7
        costs.on_step(0, rows, base_ns + rows * ROW_NS)
        if number % 4 == 0:
            costs.on_step(300, rows, base_ns + rows * ROW_NS + 300 * TOKEN_NS)


def test_nothing_is_known_before_enough_steps_of_both_kinds_ran() -> None:
    costs = StepCosts()
    for _ in range(20):
        costs.on_step(0, 4, BASE_NS)
    assert not costs.is_known
    costs.on_step(300, 4, 3 * BASE_NS)
    assert costs.is_known


def test_the_law_of_the_steps_is_found() -> None:
    costs = taught()
    assert costs.step_ns(0, 20) == pytest.approx(BASE_NS + 20 * ROW_NS, rel=1e-3)
    mixed_ns = BASE_NS + 8 * ROW_NS + 500 * TOKEN_NS
    assert costs.step_ns(500, 8) == pytest.approx(mixed_ns, rel=1e-3)


def test_equal_batches_tell_of_no_slope() -> None:
    costs = StepCosts()
    for _ in range(20):
        costs.on_step(0, 8, BASE_NS)
    assert costs.step_ns(0, 1) == costs.step_ns(0, 50) == pytest.approx(BASE_NS)


def test_one_odd_step_tells_of_no_slope() -> None:
    costs = StepCosts()
    for _ in range(50):
        costs.on_step(0, 8, BASE_NS)
    costs.on_step(0, 9, 2 * BASE_NS)
    assert costs.step_ns(0, 20) < 1.1 * BASE_NS


def test_a_larger_batch_is_never_taken_for_faster() -> None:
    costs = StepCosts()
    for rows in (2, 9, 3, 8):
        costs.on_step(0, rows, BASE_NS - rows * ROW_NS)
    assert costs.step_ns(0, 100) == costs.step_ns(0, 1)


def test_old_steps_are_forgotten() -> None:
    costs = taught()
    teach(costs, 2 * BASE_NS, 400)
    assert costs.step_ns(0, 8) == pytest.approx(2 * BASE_NS + 8 * ROW_NS, rel=0.05)


def test_steps_of_decodes_do_not_wash_out_what_prompts_cost() -> None:
    costs = taught()
    for _ in range(5000):
        costs.on_step(0, 8, BASE_NS + 8 * ROW_NS)
    mixed_ns = BASE_NS + 8 * ROW_NS + 500 * TOKEN_NS
    assert costs.step_ns(500, 8) == pytest.approx(mixed_ns, rel=0.01)


def test_a_prompt_of_several_chunks_takes_a_step_for_each() -> None:
    costs = taught()
    decode_ns = BASE_NS + 8 * ROW_NS
    exact_ns = 3 * decode_ns + 250 * TOKEN_NS
    assert costs.prefill_ns(250, 8, 100) == pytest.approx(exact_ns, rel=0.05)


def test_wrong_predictions_widen_the_margin() -> None:
    costs = taught()
    before_ns = costs.prefill_ns(300, 8, 512)
    for number in range(20):
        wrong = (0.5, 1.5)[number % 2]
        costs.on_step(300, 8, int(wrong * (BASE_NS + 8 * ROW_NS + 300 * TOKEN_NS)))
    assert costs.error > 0.2
    assert costs.prefill_ns(300, 8, 512) > 1.5 * before_ns


def test_a_step_that_took_no_time_is_ignored() -> None:
    costs = StepCosts()
    costs.on_step(0, 8, 0)
    costs.on_step(1000, 8, -1)
    assert costs.step_ns(1000, 8) == 0


def test_where_prompts_never_end_the_decodes_are_learned_beside_them() -> None:
    """Else a worker that is so full knows only what decodes took when it was empty, and whoever
    places turns by that sends it more."""
    costs = StepCosts()
    for number in range(40):
        costs.on_step(0, 1 + number % 3, BASE_NS)
    for number in range(1500):
        rows, tokens = 20 + number % 80, 40 + 37 * number % 200
        costs.on_step(tokens, rows, BASE_NS + rows * ROW_NS + tokens * TOKEN_NS)
    token_ns, base_ns, row_ns = costs.figures_ns
    assert (token_ns, row_ns) == pytest.approx((TOKEN_NS, ROW_NS), rel=0.1)
    assert base_ns == pytest.approx(BASE_NS, rel=0.1)
    assert costs.mean_rows > 40


def test_where_steps_of_decodes_alone_come_now_and_then_prompts_tell_nothing_of_them() -> None:
    """Prompts are not quite linear: a short one takes less than its share."""
    costs = taught()
    exact_ns = costs.step_ns(0, 8)
    for number in range(200):
        costs.on_step(30, 8, BASE_NS + 8 * ROW_NS)
        if number % 2:
            costs.on_step(0, 8, BASE_NS + 8 * ROW_NS)
    assert costs.step_ns(0, 8) == pytest.approx(exact_ns, rel=0.01)
