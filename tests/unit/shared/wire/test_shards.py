"""Who has which turn, and that all who must know agree."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.ids import DEFAULT_TENANT, SessionId, TenantId, TurnId, WorkerId, new_id
from shared.wire.messages import AgentRef, TurnSubmit, prefix_session
from shared.wire.shards import Share, by_shard, expected_as, session_shard, turn_id_in, turn_shard

nums = st.integers(1, 64)


@given(st.text(), st.text(max_size=20), st.text(), nums)
def test_a_session_s_turns_are_where_its_place_is_kept(
    name: str, tenant: str, session: str, num: int
) -> None:
    turn_id = turn_id_in(name, TenantId(tenant), SessionId(session))
    shard = session_shard(TenantId(tenant), SessionId(session), num)
    assert turn_shard(turn_id, num) == shard
    assert [Share(i, num).has_turn(turn_id) for i in range(num)].index(True) == shard


@given(st.text(), st.text(), nums)
def test_every_turn_and_worker_is_one_shard_s(turn: str, worker: str, num: int) -> None:
    shares = [Share(index, num) for index in range(num)]
    assert sum(share.has_turn(TurnId(turn)) for share in shares) == 1
    assert sum(share.has_worker(WorkerId(worker)) for share in shares) == 1


def test_shards_have_about_the_same() -> None:
    for turns in (
        [TurnId(new_id("turn")) for _ in range(8000)],
        [turn_id_in("t", DEFAULT_TENANT, SessionId(f"s{i}")) for i in range(8000)],
    ):
        counts = Counter(turn_shard(turn, 8) for turn in turns)
        assert 850 < min(counts.values()) <= max(counts.values()) < 1150


def test_tenants_sessions_of_one_name_are_not_one() -> None:
    ids = {turn_id_in("t", TenantId(f"tenant {i}"), SessionId("chat")) for i in range(100)}
    assert len(ids) > 90


def test_an_agent_s_first_turn_is_where_it_is_expected() -> None:
    agent, session = AgentRef(agent="engineer", workflow_id="w"), SessionId("s")
    assert expected_as(session, agent, is_new=True) == prefix_session(agent)
    assert expected_as(session, agent, is_new=False) == session
    assert expected_as(session, None, is_new=True) == session
    assert expected_as(None, agent, is_new=True) is None


def test_submits_go_to_their_shards_in_order() -> None:
    turns = [TurnId(f"t{number}-000{number % 3}") for number in range(7)]
    submits = [
        TurnSubmit(turn_id=turn, frontend_id="f", model_id="m", num_prompt_tokens=1)  # type: ignore[arg-type]
        for turn in turns
    ]
    found = by_shard(submits, 3)
    assert {shard: [each.turn_id for each in its] for shard, its in found.items()} == {
        number: turns[number::3] for number in range(3)
    }


def test_there_is_no_shard_beyond_the_last() -> None:
    with pytest.raises(ValueError, match="no shard 2 of 2"):
        Share(2, 2)
