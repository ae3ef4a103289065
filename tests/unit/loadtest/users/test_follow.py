"""A script's turns become due in the order that it tells."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.users.follow import Due, Following
from loadtest.users.graphs import FILES, team
from loadtest.workloads.script import Hint, Part, Script, ScriptedTurn

S = 1_000_000_000


def turn(
    *after: int, wait_s: float = 0.0, hint: Hint | None = None, session: str = "fox"
) -> ScriptedTurn:
    return ScriptedTurn(
        session=session, parts=(Part("p", 3),), num_output=2, after=after,
        wait_ns=round(wait_s * S), hint=hint,
    )  # fmt: skip


def test_a_hint_leads_its_turn_by_no_more_than_the_wait() -> None:
    script = Script(
        name="s",
        turns=(
            turn(),
            turn(0, wait_s=10, hint=Hint(lead_ns=4 * S, expected_in_ns=6 * S)),
            turn(1, wait_s=2, hint=Hint(lead_ns=4 * S)),
        ),
    )
    following = Following(script, faster=2.0)
    assert following.begin() == [Due(0.0, 0, True)]
    assert following.on_end(0, 1.0) == [Due(4.0, 1, False, 3.0), Due(6.0, 1, True)]
    assert following.on_end(1, 7.0) == [Due(7.0, 2, False), Due(8.0, 2, True)]
    assert following.on_end(2, 9.0) == []
    assert following.num_left == 0


def test_a_hint_of_one_instant_comes_before_its_turn() -> None:
    assert Due(1.0, 3, False) < Due(1.0, 3, True)


def test_who_waits_for_several_waits_for_the_last() -> None:
    script = Script(name="s", turns=(turn(), turn(), turn(0, 1), turn(2, hint=Hint(at_start_of=0))))
    following = Following(script, faster=1.0)
    assert [due.turn for due in following.begin()] == [0, 1]
    assert following.on_start(0, 0.5) == [Due(0.5, 3, False)]
    assert following.on_end(1, 1.0) == []
    assert following.on_end(0, 2.0) == [Due(2.0, 2, True)]


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000), st.floats(1.0, 100.0))
def test_a_team_works_to_its_end(seed: int, faster: float) -> None:
    script = team("program", Random(seed))
    following = Following(script, faster)
    due, now_s, done = following.begin(), 0.0, set[int]()
    while due:
        due.sort()
        each = due.pop(0)
        assert each.at_s >= now_s - 1e-9
        now_s = each.at_s
        if each.is_sent:
            assert set(script.turns[each.turn].after) <= done
            due += following.on_start(each.turn, now_s)
            done.add(each.turn)
            due += following.on_end(each.turn, now_s + 0.1)
    assert done == set(range(len(script.turns)))
    assert following.num_left == 0


def test_a_team_is_as_it_is_described() -> None:
    script = team("program", Random(5))
    agents = [turn.agent.removeprefix("team/") for turn in script.turns]
    assert agents[:2] == ["planner", "architect"] and agents[-1] == "planner"
    num_files = len({turn.session for turn in script.turns if turn.agent == "team/engineer"})
    assert FILES[0] <= num_files <= FILES[1]
    tools = [turn for turn in script.turns if turn.hint is not None]
    assert tools and all(turn.agent == "team/engineer" for turn in tools)
    for each in tools:
        assert script.turns[each.after[0]].session == each.session
    firsts = {turn.session: turn for turn in reversed(script.turns)}
    assert all(turn.parts[0].name.startswith("system/") for turn in firsts.values())
    assert team("program", Random(5)) == script
    with pytest.raises(AssertionError):
        assert team("program", Random(6)) == script
