"""When a dead child starts again, and when the deployment gives up."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli.supervisor.supervision import GiveUp, RestartLimits, StartAt, Supervision

LIMITS = RestartLimits(pause_ns=100, pause_max_ns=500, stable_ns=10_000, quick_deaths_max=5)


def ready_house(*names: str) -> Supervision:
    supervision = Supervision(LIMITS, essential=frozenset("a"))
    for name in names:
        supervision.on_started(name, 0)
    supervision.on_ready()
    return supervision


def test_a_death_during_the_start_is_final() -> None:
    supervision = Supervision(LIMITS)
    supervision.on_started("worker-0", 0)
    assert supervision.on_exit("worker-0", 5) == [GiveUp("worker-0", 1)]


def test_pauses_double_up_to_the_limit_and_then_the_deployment_gives_up() -> None:
    supervision = ready_house("a")
    now_ns, pauses = 0, []
    for _ in range(4):
        [effect] = supervision.on_exit("a", now_ns)
        assert isinstance(effect, StartAt)
        pauses.append(effect.at_ns - now_ns)
        assert supervision.due(effect.at_ns - 1) == []
        assert supervision.due(effect.at_ns) == ["a"]
        now_ns = effect.at_ns
        supervision.on_started("a", now_ns)
        assert supervision.next_at_ns() is None
    assert pauses == [100, 200, 400, 500]
    assert supervision.on_exit("a", now_ns) == [GiveUp("a", 5)]


def test_the_deployment_goes_on_without_a_child_that_is_not_essential() -> None:
    supervision = ready_house("a", "b")
    now_ns, told = 0, []
    for _ in range(100):
        [effect] = supervision.on_exit("b", now_ns)
        assert isinstance(effect, StartAt)
        told.append(effect.is_failing)
        assert supervision.failing() == (["b"] if effect.is_failing else [])
        assert effect.at_ns - now_ns <= LIMITS.pause_max_ns
        now_ns = effect.at_ns
        supervision.on_started("b", now_ns)
        assert supervision.failing() == []
    assert told == [False] * 4 + [True] * 96
    [effect] = supervision.on_exit("b", now_ns + LIMITS.stable_ns)
    assert effect == StartAt("b", now_ns + LIMITS.stable_ns + 100)


def test_a_long_life_forgives_earlier_deaths() -> None:
    supervision = ready_house("a")
    for _ in range(3):
        supervision.on_exit("a", 0)
        supervision.on_started("a", 0)
    assert supervision.on_exit("a", LIMITS.stable_ns) == [StartAt("a", LIMITS.stable_ns + 100)]


def test_children_are_counted_apart() -> None:
    supervision = ready_house("a", "b")
    for _ in range(4):
        supervision.on_exit("a", 0)
        supervision.on_started("a", 0)
    assert supervision.on_exit("b", 0) == [StartAt("b", 100)]
    assert supervision.next_at_ns() == 100


def test_without_restart_the_dead_stay_dead() -> None:
    supervision = Supervision(LIMITS, restart=False)
    supervision.on_started("a", 0)
    supervision.on_ready()
    assert supervision.on_exit("a", 5) == []
    assert supervision.due(10**12) == []


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 30_000)), max_size=40))
def test_every_death_is_answered_by_one_restart_or_the_end(deaths: list[tuple[str, int]]) -> None:
    supervision = ready_house(*"abc")
    now_ns = 0
    for name, life_ns in deaths:
        now_ns += life_ns
        [effect] = supervision.on_exit(name, now_ns)
        if isinstance(effect, GiveUp):
            assert (effect.name, effect.num_deaths) == ("a", LIMITS.quick_deaths_max)
            return
        assert 0 < effect.at_ns - now_ns <= LIMITS.pause_max_ns
        now_ns = effect.at_ns
        assert supervision.due(now_ns) == [name]
        supervision.on_started(name, now_ns)


@pytest.mark.parametrize("num", [1, 3])
def test_restarts_that_are_due_come_in_the_order_of_the_start(num: int) -> None:
    names = list("xyz")[:num]
    supervision = ready_house(*names)
    for name in reversed(names):
        supervision.on_exit(name, 0)
    assert supervision.due(1000) == names
