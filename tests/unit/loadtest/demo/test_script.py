"""Who speaks when, and in which order the two sides have their turns."""

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.demo.script import (
    PEOPLE,
    QUICK,
    ROLES,
    SIDES,
    TOOLS,
    TYPING_WPM,
    WHOLE,
    Model,
    Sizes,
    questions,
    sides_in_turns,
    steps,
    typing_s,
)
from shared.hints import SHARE_OF_ONE


@given(st.integers(1, 9), st.integers())
def test_each_round_has_both_sides_and_the_first_one_changes(num: int, seed: int) -> None:
    order = sides_in_turns(num, Random(seed))
    assert len(order) == 2 * num
    for number in range(num):
        pair = order[2 * number : 2 * number + 2]
        assert [each for each, _ in pair] == [number, number]
        assert {side for _, side in pair} == set(SIDES)
    firsts = [side for _, side in order[::2]]
    assert all(one != other for one, other in pairwise(firsts))


def test_either_side_may_begin() -> None:
    assert {sides_in_turns(1, Random(seed))[0][1] for seed in range(20)} == set(SIDES)


@given(st.integers(1, len(PEOPLE)), st.integers())
def test_everybody_asks_once_and_types_as_people_do(num_people: int, seed: int) -> None:
    sizes = Sizes(num_people=num_people, stagger_s=0.5)
    asked = questions(sizes, 3, Random(seed))
    assert sorted(each.who for each in asked) == sorted(PEOPLE[:num_people])
    assert sorted(each.comes_s for each in asked) == [0.5 * place for place in range(num_people)]
    for each in asked:
        assert each.number == 3
        assert each.typing_s == pytest.approx(len(each.text.split()) * 60 / TYPING_WPM)
    assert asked == questions(sizes, 3, Random(seed))


def test_typing_can_be_faster() -> None:
    assert typing_s("a b c d", 8.0) == pytest.approx(typing_s("a b c d") / 8)


@given(st.integers(0, 5))
def test_agents_hand_their_work_around(num_rounds: int) -> None:
    found = list(steps(num_rounds))
    assert [step.role for step in found] == list(ROLES) * (num_rounds + 1)
    assert [step.following for step in found] == [*(step.role for step in found[1:]), None]
    assert [step.is_first for step in found] == [n < len(ROLES) for n in range(len(found))]
    assert all(step.tool == TOOLS.get(step.role, "") for step in found)


def test_the_deployment_is_too_small_for_all_and_large_enough_for_what_is_expected() -> None:
    """Else there is nothing to bring up, or hints take each other's room."""
    model, both_pools = Model(), 2 * Model().pool_tokens
    chat, team = WHOLE.document_tokens, WHOLE.system_tokens + WHOLE.brief_tokens
    assert 2 * WHOLE.num_people * chat > both_pools
    assert WHOLE.num_teams * len(ROLES) * team > both_pools
    assert typing_s("a b c d e") / WHOLE.stagger_s * chat < both_pools * SHARE_OF_ONE
    assert WHOLE.num_teams * 2 * team < both_pools * SHARE_OF_ONE, "who works, and who is next"
    assert model.fetch_s(chat) < model.compute_s(chat)


def test_a_quick_one_is_small() -> None:
    assert QUICK.num_people * QUICK.document_tokens < 2_000
