"""Models of decode steps with adapters: fitted to steps that follow one of them."""

import random
from collections.abc import Callable

import pytest

from services.worker.core.costs.costs import StepCosts
from services.worker.core.costs.step_models import NO_LORA, STEPS_MIN, LoraLoad, StepModels

BASE_NS, ROW_NS = 5e6, 2e4
MB = 1 << 20


def drawn(random: random.Random) -> tuple[int, LoraLoad]:
    """Rows of a step, and its adapters: some share one."""
    rows = random.randint(1, 32)
    ranks = [random.choice([8, 16, 32, 64]) for _ in range(random.randint(0, rows))]
    of_rank = {rank: random.randint(1, ranks.count(rank)) for rank in set(ranks)}
    num_bytes = sum(rank * number for rank, number in of_rank.items()) * MB // 8
    return rows, LoraLoad(len(ranks), max(ranks, default=0), sum(ranks), num_bytes)


@pytest.mark.parametrize("law", ["padded", "unpadded", "distinct"])
def test_the_model_that_the_steps_follow_explains_them_and_the_others_do_not(law: str) -> None:
    models, chance = StepModels(), random.Random(1)
    unit_ns = {"padded": 900.0, "unpadded": 2e3, "distinct": 0.05}[law]
    for _ in range(600):
        rows, load = drawn(chance)
        exact_ns = BASE_NS + ROW_NS * rows + unit_ns * load.units[law]
        models.add(rows, load, int(exact_ns * chance.uniform(0.99, 1.01)))
    solved = models.solve()
    assert solved[law].r2 > 0.97
    assert solved[law].unit_ns == pytest.approx(unit_ns, rel=0.05)
    assert solved[law].row_ns == pytest.approx(ROW_NS, rel=0.25)
    assert all(solved[law].r2 > solved[name].r2 for name in solved if name != law)


def test_models_tell_nothing_of_what_they_have_not_seen() -> None:
    models = StepModels()
    for _ in range(100):
        models.add(4, NO_LORA, 1000)
    assert not models.solve(), "nobody uses adapters"
    one = LoraLoad(1, 8, 8, MB)
    for number in range(int(STEPS_MIN) - 1):
        models.add(4, one, 1000 + number)
    assert not models.solve(), "too few"
    models = StepModels()
    for _ in range(100):
        models.add(4, one, 1000)
    assert not models.solve(), "there is nothing to explain"


def learnt(byte_ns: float, drawing: Callable[[random.Random], tuple[int, LoraLoad]]) -> StepCosts:
    costs, chance = StepCosts(), random.Random(2)
    for number in range(800):
        rows, load = drawing(chance)
        exact_ns = BASE_NS + ROW_NS * rows + byte_ns * load.num_bytes
        if number % 8 == 0:
            costs.on_step(300, rows, int(exact_ns + 300 * 1e4), load)
        else:
            costs.on_step(0, rows, int(exact_ns), load)
    return costs


def test_steps_are_predicted_with_the_adapters_that_they_read() -> None:
    costs = learnt(0.08, drawn)
    for rows, num_bytes in ((4, 0), (16, 40 * MB), (32, 120 * MB)):
        exact_ns = BASE_NS + ROW_NS * rows + 0.08 * num_bytes
        assert costs.step_ns(0, rows, num_bytes) == pytest.approx(exact_ns, rel=0.03)
        prefill_ns = costs.step_ns(300, rows, num_bytes)
        assert prefill_ns == pytest.approx(exact_ns + 3e6, rel=0.05)


def test_where_adapters_cost_nothing_or_are_always_the_same_predictions_are_as_without() -> None:
    free = learnt(0.0, drawn)
    assert free.step_ns(0, 8, 100 * MB) == pytest.approx(free.step_ns(0, 8), rel=1e-3)
    always = learnt(0.08, lambda chance: (chance.randint(1, 32), LoraLoad(1, 8, 8, 50 * MB)))
    exact_ns = BASE_NS + ROW_NS * 8 + 0.08 * 50 * MB
    assert always.step_ns(0, 8, 50 * MB) == pytest.approx(exact_ns, rel=0.02)


def test_adapters_never_make_a_step_shorter() -> None:
    costs = learnt(-0.02, drawn)
    assert costs.step_ns(0, 8, 100 * MB) >= costs.step_ns(0, 8, 0)
