"""Advice on the number of GPUs, on a cluster with the flat top of section 3.5."""

import math
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.core.batching.scaling import (
    SECOND_NS,
    ScalingAdvice,
    ScalingAdvisor,
    ScalingLimits,
)

INTERVAL_NS = 5 * SECOND_NS
LIMITS = ScalingLimits(gpus_max=10_000)


def tell(advisor: ScalingAdvisor, load: float, num_gpus: int, now_ns: int) -> ScalingAdvice:
    """One interval of a cluster where a GPU serves 1000 requests an interval, never fewer under
    overload, and is busy in proportion below. `load` is in GPUs."""
    good = min(load, num_gpus)
    busy = good / num_gpus if num_gpus else 0.0
    advisor.on_interval(round(1000 * good), round(1000 * (load - good)), busy, num_gpus, now_ns)
    return advisor.advice(now_ns)


def follow(
    load: float, num_gpus: int, limits: ScalingLimits = LIMITS, num_intervals: int = 40
) -> Iterator[tuple[int, ScalingAdvice]]:
    """GPUs and advice, interval by interval, where advice is followed at once."""
    advisor = ScalingAdvisor(num_gpus, limits)
    for n in range(num_intervals):
        advice = tell(advisor, load, num_gpus, n * INTERVAL_NS)
        yield num_gpus, advice
        num_gpus += advice.add - advice.remove


def steady(load: float, num_gpus: int, limits: ScalingLimits = LIMITS) -> ScalingAdvice:
    """The first advice after the warm-up."""
    return next(a for _, a in list(follow(load, num_gpus, limits, 3))[2:])


def test_overload_asks_for_what_is_missing() -> None:
    advice = steady(load=15.0, num_gpus=10)
    assert (advice.add, advice.remove, advice.idle_share) == (5, 0, 0.0)
    assert advice.bad_rate == pytest.approx(1 / 3)
    assert steady(load=15.2, num_gpus=10).add == 6


def test_idle_gpus_are_offered_back_less_the_headroom() -> None:
    assert steady(3.0, 10, ScalingLimits(gpus_max=99, headroom=0.0)).remove == 7
    advice = steady(3.0, 10, ScalingLimits(gpus_max=99, headroom=0.25))
    assert (advice.add, advice.remove) == (0, 6)
    assert advice.idle_share == pytest.approx(0.7)


def test_a_few_bad_requests_are_no_reason() -> None:
    advice = steady(10.05, 10)
    assert (advice.add, advice.remove) == (0, 0)
    assert advice.bad_rate == pytest.approx(0.05 / 10.05)
    assert steady(10.2, 10).add == 1


def test_bounds_hold() -> None:
    limits = ScalingLimits(gpus_min=4, gpus_max=12)
    assert steady(50.0, 10, limits).add == 2
    assert steady(0.0, 10, limits).remove == 6
    assert steady(50.0, 4, limits).add == 8
    _, before_the_warm_up = next(follow(9.5, 2, limits))
    assert before_the_warm_up.add == 2
    _, above_the_most = next(follow(50.0, 15, limits))
    assert above_the_most.remove == 3


def test_nothing_good_asks_for_all_there_is() -> None:
    advisor = ScalingAdvisor(4, ScalingLimits(gpus_max=64))
    for n in range(4):
        advisor.on_interval(0, 100, 0.0, 4, n * INTERVAL_NS)
    assert advisor.advice(3 * INTERVAL_NS).add == 60


def test_a_cluster_of_no_gpus_asks_for_some() -> None:
    limits = ScalingLimits(gpus_min=0, gpus_max=8)
    assert [n for n, _ in follow(3.0, 0, limits)][-1] == 4  # 3 at work, 10% headroom


def test_no_advice_before_the_warm_up_nor_without_readings() -> None:
    advisor = ScalingAdvisor(10, LIMITS)
    assert advisor.advice(0) == ScalingAdvice(0, 0, 0.0, 0.0)
    assert tell(advisor, 30.0, 10, 0).add == 0
    assert tell(advisor, 30.0, 10, INTERVAL_NS).add == 0
    assert tell(advisor, 30.0, 10, 2 * INTERVAL_NS).add == 20
    assert advisor.advice(2 * INTERVAL_NS + LIMITS.window_ns).add == 20
    assert advisor.advice(2 * INTERVAL_NS + LIMITS.window_ns + 1).add == 0


def test_a_burst_of_one_interval_is_smoothed() -> None:
    advisor = ScalingAdvisor(10, LIMITS)
    for n in range(20):
        tell(advisor, 9.5, 10, n * INTERVAL_NS)
    advice = tell(advisor, 20.0, 10, 20 * INTERVAL_NS)
    assert 1 <= advice.add <= 3


def test_gpus_that_came_are_not_asked_for_again() -> None:
    advisor = ScalingAdvisor(10, LIMITS)
    for n in range(20):
        tell(advisor, 30.0, 10, n * INTERVAL_NS)
    advice = tell(advisor, 30.0, 30, 20 * INTERVAL_NS)
    assert (advice.add, advice.remove) == (0, 0)
    assert advice.bad_rate == pytest.approx(0.0, abs=1e-9)


def test_gpus_that_went_are_missed_at_once() -> None:
    advisor = ScalingAdvisor(30, LIMITS)
    for n in range(20):
        tell(advisor, 29.0, 30, n * INTERVAL_NS)
    assert tell(advisor, 29.0, 15, 20 * INTERVAL_NS).add == 14


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.floats(0, 500),
    st.integers(1, 600),
    st.floats(0, 0.5),
    st.floats(0.001, 0.05),
)
def test_under_constant_load_it_settles_at_once_and_never_flaps(
    load: float, start: int, headroom: float, bad_rate_max: float
) -> None:
    limits = ScalingLimits(gpus_max=1000, headroom=headroom, bad_rate_max=bad_rate_max)
    path = list(follow(load, start, limits, num_intervals=60))
    sizes = [num for num, _ in path]
    end = sizes[-1]
    assert sizes[6:] == [end] * (len(sizes) - 6)
    ups = sum(b > a for a, b in pairwise(sizes))
    downs = sum(b < a for a, b in pairwise(sizes))
    assert ups == 0 or downs == 0
    assert load <= end / (1 - bad_rate_max) + 0.01
    roomiest = max(1, math.ceil(load / (1 - headroom) + 0.01))
    assert end <= max(roomiest, math.ceil(load) if start < load else roomiest)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.floats(0, 300), st.floats(0, 300), st.integers(1, 300))
def test_after_a_change_of_load_it_goes_straight_to_its_new_size(
    before: float, after: float, start: int
) -> None:
    advisor, num_gpus, sizes = ScalingAdvisor(start, LIMITS), start, []
    for n in range(160):
        advice = tell(advisor, before if n < 20 else after, num_gpus, n * INTERVAL_NS)
        num_gpus += advice.add - advice.remove
        sizes.append(num_gpus)
    sizes = sizes[19:]
    steps = [b - a for a, b in pairwise(sizes) if a != b]
    assert all(step > 0 for step in steps) or all(step < 0 for step in steps)
    assert len(set(sizes[-40:])) == 1
    assert after * (1 - LIMITS.bad_rate_max) <= sizes[-1] + 0.01


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="no number of GPUs"):
        ScalingAdvisor(1, ScalingLimits(gpus_min=5, gpus_max=4))
    with pytest.raises(ValueError, match="shares below 1"):
        ScalingAdvisor(1, ScalingLimits(gpus_max=4, headroom=1.0))
    with pytest.raises(ValueError, match="negative count"):
        ScalingAdvisor(1, LIMITS).on_interval(-1, 0, 0.0, 1, 0)
