"""How long tools take: properties of what is learned."""

from statistics import median_low

import pytest
from hypothesis import given
from hypothesis import strategies as st

from symphony_client.core.durations import SAMPLES_MAX, Durations
from symphony_client.core.running_tools import RUNNING_MAX, RunningTools

SECONDS = st.floats(0.0, 1e6)
LASTED = st.lists(SECONDS, min_size=1, max_size=2 * SAMPLES_MAX)
QUANTILES = st.floats(0.0, 1.0)


def learned(lasted: list[float], now_s: float = 0.0, **limits: float) -> Durations:
    durations = Durations(**limits)  # type: ignore[arg-type]
    for seconds in lasted:
        durations.learn("x", seconds, now_s)
    return durations


def expected(durations: Durations, now_s: float = 0.0, **more: float) -> float:
    found = durations.expected("x", now_s, **more)
    assert found is not None
    return found


@given(LASTED, QUANTILES)
def test_it_is_one_of_the_last_that_were_seen(lasted: list[float], quantile: float) -> None:
    assert expected(learned(lasted), quantile=quantile) in lasted[-SAMPLES_MAX:]


@given(LASTED)
def test_of_equal_weights_it_is_the_median(lasted: list[float]) -> None:
    assert expected(learned(lasted)) == median_low(lasted[-SAMPLES_MAX:])


@given(LASTED, QUANTILES, QUANTILES)
def test_a_higher_quantile_is_no_shorter(lasted: list[float], one: float, other: float) -> None:
    durations = learned(lasted)
    low, high = sorted((one, other))
    assert expected(durations, quantile=low) <= expected(durations, quantile=high)


@given(LASTED, SECONDS, SECONDS)
def test_what_has_taken_longer_takes_no_shorter(
    lasted: list[float], one: float, other: float
) -> None:
    durations = learned(lasted)
    short, long = sorted((one, other))
    assert expected(durations, elapsed_s=long) >= long
    assert expected(durations, elapsed_s=short) <= max(expected(durations, elapsed_s=long), long)


@given(st.floats(0.0, 10.0), st.lists(st.floats(1e3, 1e9), min_size=1, max_size=7))
def test_a_minority_that_hangs_changes_nothing(usual: float, hung: list[float]) -> None:
    assert expected(learned([usual] * (len(hung) + 1) + hung)) == usual


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=15), st.floats(1e4, 1e6))
def test_what_was_long_ago_weighs_less(old: list[float], now_s: float) -> None:
    durations = learned(old, half_life_s=100.0)
    durations.learn("x", 5.0, now_s)
    assert expected(durations, now_s) == 5.0


@given(st.lists(st.tuples(st.text(max_size=3), SECONDS), max_size=200))
def test_names_are_bounded_and_the_latest_is_known(seen: list[tuple[str, float]]) -> None:
    durations = Durations(names_max=4)
    for name, seconds in seen:
        durations.learn(name, seconds, 0.0)
        assert durations.expected(name, 0.0) is not None
        assert len(durations) <= 4


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_what_is_no_duration_is_not_learned(seconds: float) -> None:
    assert learned([seconds]).expected("x", 0.0) is None


def test_a_clock_that_went_back_does_no_harm() -> None:
    assert expected(learned([1.0], now_s=1e6)) == 1.0


def test_the_turn_comes_when_the_last_tool_is_done() -> None:
    durations = Durations()
    durations.learn("short", 2.0, 0.0)
    durations.learn("long", 10.0, 0.0)
    tools = RunningTools(durations)
    assert tools.left_s(0.0) is None
    tools.start("unknown", "c", 0.0)
    assert tools.left_s(0.0) is None
    tools.start("short", "a", 0.0)
    assert tools.left_s(0.0) == 2.0  # no sooner, whatever the other does
    tools.start("long", "b", 1.0)
    assert tools.left_s(1.0) == 10.0
    assert tools.left_s(4.0) == 7.0
    assert tools.end("b", 5.0)
    assert tools.left_s(5.0) == 0.0  # the short one is overdue
    assert tools.end("a", 6.0) and not tools.end("a", 6.0)
    assert durations.expected("short", 6.0, quantile=1.0) == 6.0
    assert tools.end("c", 7.0, is_learned=False)
    assert durations.expected("unknown", 7.0) is None
    assert not len(tools)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3 * RUNNING_MAX)), max_size=60))
def test_running_tools_are_bounded(events: list[tuple[bool, int]]) -> None:
    tools = RunningTools(Durations())
    for is_start, number in events:
        if is_start:
            tools.start("x", str(number), 0.0)
        else:
            tools.end(str(number), 1.0)
        assert len(tools) <= RUNNING_MAX


def test_of_too_many_tools_the_oldest_is_given_up() -> None:
    tools = RunningTools(Durations())
    for number in range(RUNNING_MAX + 1):
        tools.start("x", str(number), 0.0)
    assert len(tools) == RUNNING_MAX
    assert not tools.end("0", 1.0) and tools.end("1", 1.0)
