"""Who speaks when, and in which order the two sides have their turns."""

import json
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.cluster.measured import LINK_SHARE
from loadtest.demo.deployment import settings_of
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
from shared.profiles import load_profile


@given(st.integers(1, 9), st.integers())
def test_between_two_rounds_of_a_side_is_one_of_the_other(num: int, seed: int) -> None:
    order = sides_in_turns(num, Random(seed))
    assert [number for number, _ in order] == [number for number in range(num) for _ in SIDES]
    assert all(one[1] != other[1] for one, other in pairwise(order))


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
    both_arenas = 2 * model.arena_tokens
    chat, team = WHOLE.document_tokens, WHOLE.system_tokens + WHOLE.brief_tokens
    assert 2 * WHOLE.num_people * chat > max(both_pools, both_arenas)
    assert WHOLE.num_teams * len(ROLES) * team > max(both_pools, both_arenas)
    assert typing_s("a b c d e") / WHOLE.stagger_s * chat < both_pools * SHARE_OF_ONE
    assert WHOLE.num_teams * team < both_pools * SHARE_OF_ONE, "who is next"
    assert WHOLE.num_teams * 2 * team < both_pools, "who works, and who is next"


def test_history_takes_what_it_takes_on_machines_of_today() -> None:
    """Pages and rates are scaled alike, and no rate is below what is on sale."""
    model = Model()
    assert 25e9 / 8 * LINK_SHARE <= model.peer_bytes_per_s <= 100e9 / 8
    assert 3e9 <= model.disk_read_bytes_per_s <= 7e9
    assert 25e9 <= model.bus_bytes_per_s <= 64e9
    true = load_profile(model.profile)
    assert replace(
        model.scaled, name=true.name, num_layers=true.num_layers,
        kv_bytes_per_token=model.scaled.kv_bytes_per_token * model.scale,
    ) == true  # fmt: skip
    settings = settings_of(model)
    constants = json.loads(settings["SYMPHONY_DEVELOPMENT"])
    token_bytes = model.scaled.kv_bytes_per_token
    for scaled, true_rate in (
        (float(constants["link_mb_s"]) * 1e6, model.bus_bytes_per_s),
        (float(constants["disk_read_mb_s"]) * 1e6, model.disk_read_bytes_per_s),
        (float(settings["SYMPHONY_DISK_BYTES_PER_S"]), model.disk_write_bytes_per_s),
        (float(settings["SYMPHONY_PEER_BYTES_PER_S"]), model.peer_bytes_per_s),
    ):
        assert 16_000 * token_bytes / scaled == pytest.approx(
            model.move_s(16_000, true_rate), rel=1e-3
        )


def test_a_quick_one_is_small() -> None:
    assert QUICK.num_people * QUICK.document_tokens < 2_000
