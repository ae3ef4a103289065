"""Which tracker has to do with what."""

from collections import Counter

import pytest

from shared.ids import DEFAULT_TENANT, SessionId, TenantId, TurnId
from shared.wire.messages import AgentRef, AgentTurnLeft, TurnArrived
from shared.wire.subjects import (
    ADVISORY_GET,
    AGENT_TURN_LEFT,
    SHARD_ADVISORY_GET,
    SHARD_AGENT_TURN_LEFT,
    SHARD_TURN_ARRIVED,
    TURN_ARRIVED,
)
from shared.wire.tracker_shards import arrival_wires, at_shard, left_wire, shard_of

T = DEFAULT_TENANT
KNOWN = [30, 49, 8, 37]
NAMES = [f"{kind}-{number}" for kind in ("session", "order/17/engineer") for number in range(2000)]


@pytest.mark.parametrize("num_shards", [2, 3, 4, 7, 64])
def test_names_are_spread_evenly(num_shards: int) -> None:
    found = Counter(shard_of(T, name, num_shards) for name in NAMES)
    share = len(NAMES) / num_shards
    assert len(found) == num_shards
    assert all(abs(num - share) < 5 * share**0.5 for num in found.values()), found


def test_every_process_and_release_finds_the_same() -> None:
    """These stand for what others have: they change only with what is said between releases."""
    assert [shard_of(T, name, 64) for name in ("s", "fox", "order-17", "ä\ud800")] == KNOWN
    assert {shard_of(T, name, 1) for name in NAMES} == {0}


def test_tenants_are_spread_as_names_are_and_do_not_run_into_them() -> None:
    tenants = [TenantId(f"tenant-{number}") for number in range(100)]
    assert len({shard_of(tenant, "s", 8) for tenant in tenants}) == 8
    assert shard_of(TenantId("a"), "bc", 1 << 60) != shard_of(TenantId("ab"), "c", 1 << 60)


def test_one_shard_is_told_by_the_wires_of_all() -> None:
    agent = AgentRef(agent="a", workflow_id="w")
    session = SessionId("s")
    arrived = TurnArrived(session_id=session, turn_id=TurnId("t"), agent=agent)
    assert arrival_wires(arrived, 1) == [(TURN_ARRIVED, (), arrived)]
    assert left_wire(AgentTurnLeft(agent=agent, session_id=session), 1) == (AGENT_TURN_LEFT, ())
    assert at_shard(ADVISORY_GET, T, session, 1) == (ADVISORY_GET, ())


def test_the_shards_of_session_and_workflow_are_told_once() -> None:
    session = SessionId("s")
    at_session = str(shard_of(T, session, 2))
    arrived = TurnArrived(session_id=session, turn_id=TurnId("t"))
    assert arrival_wires(arrived, 2) == [(SHARD_TURN_ARRIVED, (at_session,), arrived)]
    num_told = Counter[int]()
    for number in range(40):
        agent = AgentRef(agent="a", workflow_id=f"w{number}")
        at_workflow = str(shard_of(T, agent.workflow_id, 2))
        told = arrival_wires(TurnArrived(session_id=session, turn_id=TurnId("t"), agent=agent), 2)
        assert {subject for subject, _, _ in told} == {SHARD_TURN_ARRIVED}
        parts = {message.part: ids for _, ids, message in told}
        if at_session == at_workflow:
            assert parts == {"all": (at_session,)}
        else:
            assert parts == {"session": (at_session,), "workflow": (at_workflow,)}
        num_told[len(told)] += 1
        left = AgentTurnLeft(agent=agent, session_id=session)
        assert left_wire(left, 2) == (SHARD_AGENT_TURN_LEFT, (at_workflow,))
    assert num_told[1] > 8 and num_told[2] > 8
    assert at_shard(ADVISORY_GET, T, session, 2) == (SHARD_ADVISORY_GET, (at_session,))
