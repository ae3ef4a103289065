"""Models shared out among sub-clusters (appendix A)."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.partition import (
    NoPartition,
    Partition,
    PartitionModel,
    partition,
    random_partition,
)

MB = 1_000_000


def model(rate: float, static: int, dynamic: int = 0) -> PartitionModel:
    name = f"{rate:g}-{static}-{dynamic}"
    return PartitionModel(model_id=name, rate_rps=rate, static_bytes=static, dynamic_bytes=dynamic)


def some_models(num: int, seed: int) -> list[PartitionModel]:
    """As in appendix A.2: rates exponential, sizes around 100 MB."""
    rng = np.random.default_rng(seed)
    return [
        model(
            float(rng.exponential(100)),
            int(100 * MB * rng.lognormal(0, 0.8)),
            int(50 * MB * rng.lognormal(0, 0.5)),
        )
        for _ in range(num)
    ]


def check(
    found: Partition,
    models: list[PartitionModel],
    num: int,
    rate_max: float,
    memory_max: float,
    memory_weight: float = 1.0,
) -> None:
    """(3) to (9), in plain Python."""
    members = [[m for m, at in zip(models, found.assignment, strict=True) if at == j]
               for j in range(num)]  # fmt: skip
    assert sum(map(len, members)) == len(models)
    rates = [sum(m.rate_rps for m in held) for held in members]
    static = [sum(m.static_bytes for m in held) for held in members]
    peaks = [max((m.dynamic_bytes for m in held), default=0) for held in members]
    assert all(rate <= rate_max * (1 + 1e-9) for rate in rates)
    assert all(s + d <= memory_max for s, d in zip(static, peaks, strict=True))
    spread = [max(abs(x / (sum(xs) / num) - 1) for x in xs) if sum(xs) else 0.0
              for xs in (rates, static)]  # fmt: skip
    assert found.objective == pytest.approx(spread[0] + memory_weight * spread[1], abs=1e-9)


def moved(found: Partition, current: list[int]) -> list[int]:
    pairs = enumerate(zip(found.assignment, current, strict=True))
    return [i for i, (new, old) in pairs if new != old]


def brute_force(
    models: list[PartitionModel],
    num: int,
    rate_max: float,
    memory_max: float,
    current: list[int] | None = None,
    cost_max: float = math.inf,
) -> float | None:
    """The least objective of all assignments; a move costs 2. None if there is none."""
    rate_mean, static_mean = (
        max(sum(getattr(m, name) for m in models) / num, 1e-9)
        for name in ("rate_rps", "static_bytes")
    )
    best = None
    for assignment in itertools.product(range(num), repeat=len(models)):
        members = [[m for m, at in zip(models, assignment, strict=True) if at == j]
                   for j in range(num)]  # fmt: skip
        rates = [sum(m.rate_rps for m in held) for held in members]
        static = [sum(m.static_bytes for m in held) for held in members]
        peaks = [max((m.dynamic_bytes for m in held), default=0) for held in members]
        if max(rates) > rate_max or max(map(sum, zip(static, peaks, strict=True))) > memory_max:
            continue
        if current and 2 * sum(a != b for a, b in zip(assignment, current, strict=True)) > cost_max:
            continue
        objective = max(abs(x / rate_mean - 1) for x in rates)
        objective += max(abs(x / static_mean - 1) for x in static)
        best = objective if best is None else min(best, objective)
    return best


small_models = st.lists(
    st.builds(model, st.integers(1, 20), st.integers(1, 20), st.integers(0, 8)),
    min_size=2,
    max_size=6,
)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(small_models, st.integers(2, 3), st.integers(10, 60), st.integers(10, 60), st.data())
def test_small_problems_are_solved_to_the_optimum(
    models: list[PartitionModel], num: int, rate_max: int, memory_max: int, data: st.DataObject
) -> None:
    current, cost_max = None, math.inf
    if data.draw(st.booleans()):
        places = st.lists(st.integers(0, num - 1), min_size=len(models), max_size=len(models))
        current, cost_max = data.draw(places), float(data.draw(st.integers(0, 6)))
    least = brute_force(models, num, rate_max, memory_max, current, cost_max)
    if least is None:
        with pytest.raises(NoPartition) as refused:
            partition(models, num, rate_max, memory_max, current=current, cost_max=cost_max)
        assert refused.value.proven
        return
    found = partition(models, num, rate_max, memory_max, current=current, cost_max=cost_max)
    check(found, models, num, rate_max, memory_max)
    assert found.optimal
    assert found.objective == pytest.approx(least, abs=1e-5)
    if current is not None:
        assert found.cost == 2 * len(moved(found, current)) <= cost_max


def test_it_is_even_where_random_is_not() -> None:
    models = some_models(120, seed=1)
    bounds = (1.5 * sum(m.rate_rps for m in models) / 6, 4000 * MB)
    found = partition(models, 6, *bounds, time_limit_s=0.5)
    check(found, models, 6, *bounds)
    assert max(found.rate_imbalance, found.memory_imbalance) < 0.02
    rng = np.random.default_rng(1)
    drawn = random_partition(models, 6, *bounds, rng=rng, num_tries=2000)
    check(drawn, models, 6, *bounds)
    assert drawn.solver == "random"
    assert drawn.objective > 5 * found.objective


def test_programs_over_pairs_improve_on_moves_and_swaps() -> None:
    models = some_models(60, seed=3)
    swapped = partition(models, 10, math.inf, math.inf, time_limit_s=1e-6)
    paired = partition(models, 10, math.inf, math.inf, time_limit_s=1.0)
    assert (swapped.solver, paired.solver) == ("greedy", "milp")
    assert paired.objective < 0.8 * swapped.objective
    assert not paired.optimal


def test_the_memory_weight_decides_what_is_even() -> None:
    models = [model(9, 1), model(1, 9), model(5, 5), model(6, 1)]
    for weight in (0.0, 0.3, 100.0):
        check(partition(models, 2, 99, 99, memory_weight=weight), models, 2, 99, 99, weight)
    only_rate = partition(models, 2, 99, 99, memory_weight=0.0)
    only_memory = partition(models, 2, 99, 99, memory_weight=100.0)
    assert only_rate.rate_imbalance < only_memory.rate_imbalance
    assert only_memory.memory_imbalance < only_rate.memory_imbalance


def test_memory_too_tight_for_the_greedy_start_is_left_to_the_program() -> None:
    """Sizes of 7 6 5 4 4 4 fill two bins of 15 only as 7 4 4 and 6 5 4; the rates pull apart."""
    models = [model(r, s) for r, s in ((90, 7), (1, 6), (80, 5), (1, 4), (70, 4), (1, 4))]
    check(partition(models, 2, math.inf, 15), models, 2, math.inf, 15)


def test_swaps_keep_the_bounds_that_bind() -> None:
    """Without any time for programs: the moves and swaps alone."""
    for seed in range(4):
        models = some_models(60, seed)
        memory_max = sum(m.static_bytes for m in models) / 10
        memory_max += 1.02 * max(m.dynamic_bytes for m in models)
        found = partition(models, 10, math.inf, memory_max, time_limit_s=1e-6)
        assert found.solver == "greedy"
        check(found, models, 10, math.inf, memory_max)


def test_dynamic_memory_counts_once_a_sub_cluster() -> None:
    """The two that need 8 to run must share a sub-cluster: 1 + 1 + 8 = 10."""
    models = [model(5, 1, 8), model(5, 1, 8), model(5, 5), model(5, 4)]
    found = partition(models, 2, math.inf, 10)
    check(found, models, 2, math.inf, 10)
    assert found.assignment[0] == found.assignment[1]


def test_the_disruption_bound_limits_what_moves() -> None:
    models = some_models(40, seed=5)
    current = [i % 4 if i % 3 else 0 for i in range(40)]
    costs = [1.0 + i % 3 for i in range(40)]
    results = {
        cost_max: partition(
            models, 4, math.inf, math.inf,
            current=current, move_costs=costs, cost_max=cost_max, time_limit_s=0.6,
        )
        for cost_max in (0.0, 8.0, 40.0, math.inf)
    }  # fmt: skip
    for cost_max, found in results.items():
        assert found.cost == sum(2 * costs[i] for i in moved(found, current)) <= cost_max
        check(found, models, 4, math.inf, math.inf)
    assert list(results[0.0].assignment) == current
    # How good each is depends on how far the solver came in its time.
    staying, *moving = [found.objective for found in results.values()]
    assert max(moving) < 0.8 * staying


def test_new_models_cost_their_loading_and_may_be_all_that_is_allowed() -> None:
    models = some_models(8, seed=6)
    current = [0, 0, 0, 1, 1, 1, -1, -1]
    found = partition(models, 2, math.inf, math.inf, current=current, cost_max=2.0)
    assert found.cost == 2.0
    assert moved(found, current) == [6, 7]
    with pytest.raises(NoPartition) as refused:
        partition(models, 2, math.inf, math.inf, current=current, cost_max=1.5)
    assert refused.value.bound == "cost_max"


def test_a_refusal_names_the_bound() -> None:
    models = [model(10, 10, 5), model(10, 10), model(10, 30)]
    for rate_max, memory_max, bound, words in (
        (14.0, 99.0, "rate_max", "30 rps are more than 2 sub-clusters"),
        (99.0, 27.0, "memory_max", "need 55 bytes"),
        (99.0, 29.0, "memory_max", "10-30-0: 30 bytes"),
    ):
        with pytest.raises(NoPartition, match=words) as refused:
            partition(models, 2, rate_max, memory_max)
        assert (refused.value.bound, refused.value.proven) == (bound, True)
        assert refused.value.http_status == 503
    with pytest.raises(NoPartition, match="40 rps are more than a") as refused:
        partition([model(40, 1), model(1, 1)], 2, 30, 99)
    assert refused.value.bound == "rate_max"
    with pytest.raises(NoPartition, match="no assignment within the bounds is possible") as refused:
        partition([model(1, 6)] * 3, 2, 99, 10)
    assert (refused.value.bound, refused.value.proven) == (None, True)


def test_a_disruption_bound_that_keeps_an_overload_is_blamed() -> None:
    models = [model(10, 1), model(10, 1), model(1, 1)]
    with pytest.raises(NoPartition, match=r"at a cost of 1; one of [24] is known") as refused:
        partition(models, 2, 15, 99, current=[0, 0, 1], cost_max=1.0)
    assert (refused.value.bound, refused.value.proven) == ("cost_max", True)
    found = partition(models, 2, 15, 99, current=[0, 0, 1], cost_max=2.0)
    assert found.cost == 2.0


def test_edges() -> None:
    assert partition([], 3, 1, 1).assignment == ()
    assert partition([model(1, 1)] * 3, 1, 3, 3).assignment == (0, 0, 0)
    with pytest.raises(NoPartition):
        partition([model(1, 2, 3), model(1, 2)], 1, 3, 5)
    found = partition([model(1, 1)] * 2, 4, 1, 1)
    assert len(set(found.assignment)) == 2
    idle = partition([model(0, 3), model(0, 3), model(0, 6)], 2, 1, 99)
    assert (idle.rate_imbalance, idle.memory_imbalance) == (0.0, 0.0)


def test_arguments_that_make_no_sense() -> None:
    models = [model(1, 1), model(2, 2)]
    for wrong in (
        {"current": [0]}, {"current": [0, 2]}, {"current": [0, 1], "move_costs": [1.0, -1.0]},
        {"memory_weight": -1.0},
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"sub-cluster|memory_weight"):
            partition(models, 2, 9, 9, **wrong)
    with pytest.raises(ValueError, match="hold nothing"):
        partition(models, 0, 9, 9)
    with pytest.raises(ValueError, match="not negative"):
        partition([model(-1, 1)], 2, 9, 9)


def test_random_keeps_the_bounds_and_follows_its_seed() -> None:
    models = some_models(12, seed=7)
    memory_max = 0.6 * sum(m.static_bytes + m.dynamic_bytes for m in models)
    first, second = (
        random_partition(
            models, 2, math.inf, memory_max, rng=np.random.default_rng(3), num_tries=300
        )
        for _ in range(2)
    )
    assert first == second
    check(first, models, 2, math.inf, memory_max)
    with pytest.raises(NoPartition) as refused:
        random_partition([model(1, 6)] * 3, 2, 9, 10, rng=np.random.default_rng(1), num_tries=50)
    assert not refused.value.proven
