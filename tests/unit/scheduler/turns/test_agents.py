"""Places for agents' turns in sessions that nobody knows yet."""

import pytest

from services.scheduler.core import DropPrefetch, NotifyFrontends, SendPrefetch, StartTurn
from shared.blocks import BLOCK_TOKENS, KEY_BYTES
from shared.wire.messages import AgentPrefix, AgentRef, prefix_session
from tests.unit.scheduler.placement.test_least_cost import fill, two_hosts
from tests.unit.scheduler.turns.driver import Driver, adapter_of, only

CODER = AgentRef(agent="coder", workflow_id="w")
PREFIX = AgentPrefix(agent=CODER, keys="5a" * KEY_BYTES * 40)
NAME = prefix_session(CODER)


def expecting(d: Driver | None = None) -> tuple[Driver, str]:
    d = d or two_hosts()
    placement, effects = d.expect(NAME, prefix=PREFIX)
    (told,) = only(SendPrefetch, effects)
    assert (told.worker_id, told.prefetch.keys) == (placement.worker_id, PREFIX.keys)
    assert not only(NotifyFrontends, effects), "no frontend knows of the session"
    assert placement.worker_id is not None
    return d, placement.worker_id


def test_a_new_session_s_turn_goes_where_its_agent_s_beginning_is_brought_up() -> None:
    d, place = expecting()
    busy = "w2" if place == "w1" else "w1"
    fill(d, place, 1, "a" if place == "w1" else "b")  # so that it would go elsewhere
    (start,) = only(StartTurn, d.submit("t", "new", agent=CODER, num_tokens=3000))
    assert (start.worker_id, start.reason, start.start.expected_as) == (place, "reserved", NAME)
    assert busy != place
    assert d.core.status(d.now_ns).num_reservations == 0
    (start,) = only(StartTurn, d.submit("u", "newer", agent=CODER))
    assert (start.worker_id, start.start.expected_as) == (busy, None), "one place, one turn"


@pytest.mark.parametrize("who", ["another workflow", "another model", "no session", "no agent"])
def test_nobody_else_takes_that_place(who: str) -> None:
    d, _ = expecting()
    agent = AgentRef(agent="coder", workflow_id="other" if who == "another workflow" else "w")
    effects = d.submit(
        "t",
        None if who == "no session" else "new",
        agent=None if who == "no agent" else agent,
        adapter=adapter_of("a") if who == "another model" else None,
    )
    (start,) = only(StartTurn, effects)
    assert start.start.expected_as is None
    assert not only(DropPrefetch, effects)
    assert d.core.status(d.now_ns).num_reservations == 1


def test_a_session_that_has_a_history_goes_where_that_is() -> None:
    d = two_hosts()
    d.submit("t", "s", agent=AgentRef(agent="coder", workflow_id="w"))
    d, _ = expecting(d)
    (start,) = only(StartTurn, d.submit("u", "s", agent=CODER))
    assert start.start.expected_as is None
    (start,) = only(StartTurn, d.submit("v", "told", agent=CODER, kv_at={"a": 9}))
    assert start.start.expected_as is None


def test_the_place_is_kept_where_the_agent_ran_last_and_its_host_is_told() -> None:
    d = two_hosts()
    fill(d, "w1", 1, "a")
    earlier = AgentRef(agent="coder", workflow_id="earlier")
    (start,) = only(StartTurn, d.submit("t", "s", agent=earlier, num_tokens=50 * BLOCK_TOKENS))
    assert start.worker_id == "w2"
    fill(d, "w1", 0, "a")
    d, place = expecting(d)
    assert place == "w2", "though the other one has nothing to do"
    (told,) = only(SendPrefetch, d.expect(NAME, prefix=PREFIX)[1])
    assert told.prefetch.kv_at == {"b": 40}


def test_what_the_agent_left_of_another_adapter_is_nowhere_for_this_one() -> None:
    d = two_hosts()
    earlier = AgentRef(agent="coder", workflow_id="earlier")
    num_tokens = 50 * BLOCK_TOKENS
    d.submit("t", "s", agent=earlier, num_tokens=num_tokens, adapter=adapter_of("a"))
    (told,) = only(SendPrefetch, d.expect(NAME, prefix=PREFIX)[1])
    assert told.prefetch.kv_at == {}
