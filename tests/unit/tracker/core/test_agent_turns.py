"""Agents' turns in the tracker: what follows them is expected as if it had been announced."""

import pytest

from services.tracker.core import (
    AgentTurns,
    Count,
    Drop,
    Expect,
    Limits,
    Record,
    SendVerdicts,
    TrackerCore,
)
from services.tracker.core.agents import AgentFollower, AgentLimits
from services.tracker.core.outcomes import FIRST_CHANCE
from shared.blocks import KEY_BYTES
from shared.ids import (
    DEFAULT_TENANT,
    FrontendId,
    HostId,
    ModelId,
    SessionId,
    TenantId,
    TurnId,
    WorkerId,
)
from shared.wire.messages import (
    AdapterRef,
    Advisory,
    AdvisoryKey,
    AgentPrefix,
    AgentRef,
    AgentTurnLeft,
    ExpectSession,
    TurnArrived,
    prefix_session,
)

SECOND = 1_000_000_000


class Driver:
    """A tracker that has seen a and b call each other in one workflow, ten seconds a turn."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.agents = AgentTurns(AgentFollower(AgentLimits()))
        self.core = TrackerCore(limits or Limits(), self.agents)
        self.now_ns = SECOND
        self.num_turns = 0
        for agent in "abababab":
            self.begin(agent)
            self.now_ns += 10 * SECOND
            self.end(agent)

    def begin(self, agent: str, tenant: str = DEFAULT_TENANT) -> list[ExpectSession]:
        self.num_turns += 1
        arrived = TurnArrived(
            session_id=SessionId(f"s-{agent}"),
            turn_id=TurnId(f"t{self.num_turns}"),
            tenant=TenantId(tenant),
            agent=AgentRef(agent=agent, workflow_id="w"),
        )
        effects = self.core.on_turn_arrived(arrived, self.now_ns)
        return [effect.message for effect in effects if isinstance(effect, Expect)]

    def end(self, agent: str, *tools: str) -> list[ExpectSession]:
        left = AgentTurnLeft(
            agent=AgentRef(agent=agent, workflow_id="w"),
            session_id=SessionId(f"s-{agent}"),
            tools=list(tools),
        )
        effects = self.core.on_agent_turn_left(left, self.now_ns)
        return [effect.message for effect in effects if isinstance(effect, Expect)]


def test_the_turn_that_follows_is_expected_when_it_will_come() -> None:
    driver = Driver()
    (expected,) = driver.begin("a")
    assert expected.session_id == "s-b"
    assert 8 * SECOND < expected.arrives_in_ns < 12 * SECOND
    key = AdvisoryKey(session_id=SessionId("s-b"))
    driver.core.on_placed(key, WorkerId("w1"), driver.now_ns)
    driver.now_ns += 10 * SECOND
    driver.begin("b")
    assert driver.core.get(key).state == "used"


def test_a_turn_s_own_arrival_does_not_use_up_what_it_announces() -> None:
    driver = Driver()
    for _ in range(20):  # from now on every turn is followed by one of its own session
        driver.begin("a")
        driver.now_ns += 5 * SECOND
        driver.end("a")
    driver.begin("a")
    assert driver.core.get(AdvisoryKey(session_id=SessionId("s-a"))).over_at_ns is None


def test_who_calls_a_tool_is_expected_back() -> None:
    driver = Driver()
    for _ in range(4):
        driver.begin("a")
        driver.now_ns += SECOND
        driver.end("a", "ls")
        driver.now_ns += 100 * SECOND
    driver.begin("a")
    driver.end("a", "ls")
    record = driver.core.get(AdvisoryKey(session_id=SessionId("s-a")))
    assert record.over_at_ns is None
    assert 80 * SECOND < record.arrives_at_ns - driver.now_ns < 120 * SECOND


def test_turns_of_no_agent_announce_nothing() -> None:
    driver = Driver()
    arrived = TurnArrived(session_id=SessionId("s-a"), turn_id=TurnId("t"))
    effects = driver.core.on_turn_arrived(arrived, driver.now_ns)
    assert not [effect for effect in effects if isinstance(effect, Expect)]


def test_another_tenant_s_workflow_is_another_one() -> None:
    assert not Driver().begin("a", tenant="other")


def test_agents_have_no_more_advisories_than_their_tenant_may_have() -> None:
    driver = Driver(Limits(tenant_advisories_max=1))
    driver.core.on_wake(driver.now_ns + 3600 * SECOND)
    driver.now_ns += 1000 * SECOND
    driver.begin("a")
    driver.begin("c")
    assert driver.core.num_live == 1


def in_new(
    driver: Driver, agent: str, workflow: str, *, is_reserved: bool = False
) -> list[Expect | Drop]:
    """An agent's turn in a session of its own, of another workflow."""
    driver.num_turns += 1
    arrived = TurnArrived(
        session_id=SessionId(f"{workflow}-{agent}"),
        turn_id=TurnId(f"t{driver.num_turns}"),
        reserved=is_reserved,
        agent=AgentRef(agent=agent, workflow_id=workflow),
    )
    effects = driver.core.on_turn_arrived(arrived, driver.now_ns)
    return [effect for effect in effects if isinstance(effect, Expect | Drop)]


def leave(
    driver: Driver,
    agent: str,
    session: str,
    keys: str,
    tenant: str = DEFAULT_TENANT,
    adapter: AdapterRef | None = None,
) -> None:
    left = AgentTurnLeft(
        agent=AgentRef(agent=agent, workflow_id="earlier"),
        session_id=SessionId(session),
        tenant=TenantId(tenant),
        model_id=ModelId("m"),
        adapter=adapter,
        keys=keys,
    )
    driver.core.on_agent_turn_left(left, driver.now_ns)


SYSTEM = "5a" * KEY_BYTES
OF_B = AgentRef(agent="b", workflow_id="new")


def test_an_agent_without_a_session_and_of_no_known_beginning_is_only_counted() -> None:
    driver = Driver()
    before = driver.agents.num_without_session
    leave(driver, "b", "one", SYSTEM)
    for session, keys in (("two", "no hex"), ("three", SYSTEM[:5])):
        leave(driver, "b", session, keys)
        leave(driver, "b", session, SYSTEM, tenant="other")
    assert not in_new(driver, "a", "new")
    assert driver.agents.num_without_session == before + 1


def test_an_agent_in_an_unknown_session_is_expected_by_what_its_prompts_begin_with() -> None:
    driver = Driver()
    for session in ("one", "two"):
        leave(driver, "b", session, SYSTEM + "00" * KEY_BYTES * len(session))
    (expected,) = in_new(driver, "a", "new")
    assert isinstance(expected, Expect)
    told = expected.message
    assert told.prefix == AgentPrefix(agent=OF_B, keys=SYSTEM + "00" * 3 * KEY_BYTES)
    assert (told.session_id, told.model_id) == (prefix_session(OF_B), "m")
    assert 8 * SECOND < told.arrives_in_ns < 12 * SECOND
    assert driver.agents.num_of_prefix == 1
    driver.core.on_placed(AdvisoryKey(session_id=told.session_id), WorkerId("w1"), driver.now_ns)
    driver.now_ns += 10 * SECOND
    in_new(driver, "b", "new", is_reserved=True)
    assert driver.core.get(AdvisoryKey(session_id=told.session_id)).state == "used"


def test_an_agent_in_an_unknown_session_is_expected_on_the_adapter_of_its_last_ones() -> None:
    driver, adapter = Driver(), AdapterRef(adapter_hash="a" * 32, name="fox", lora_rank=8)
    for session in ("one", "two"):
        leave(driver, "b", session, SYSTEM)
    for session in ("three", "four"):
        leave(driver, "b", session, SYSTEM, adapter=adapter)
    (expected,) = in_new(driver, "a", "new")
    assert isinstance(expected, Expect)
    assert (expected.message.model_id, expected.message.adapter) == ("m", adapter)


def test_a_turn_that_came_before_its_place_gives_that_back() -> None:
    driver = Driver()
    for session in ("one", "two"):
        leave(driver, "b", session, SYSTEM)
    in_new(driver, "a", "new")
    key = AdvisoryKey(session_id=prefix_session(OF_B))
    assert Drop(key) in in_new(driver, "b", "new")
    assert driver.core.get(key).state == "late"


def test_a_turn_that_its_client_announced_too_gives_the_foreseen_place_back() -> None:
    driver = Driver()
    for session in ("one", "two"):
        leave(driver, "b", session, SYSTEM)
    in_new(driver, "a", "new")
    driver.core.on_submit(Advisory(session_id=SessionId("new-b")), driver.now_ns)
    key = AdvisoryKey(session_id=prefix_session(OF_B))
    dropped = [each for each in in_new(driver, "b", "new", is_reserved=True) if each == Drop(key)]
    assert dropped == [Drop(key)], "the session's own place was the one that was used"
    assert driver.core.get(key).over_at_ns is not None
    assert driver.core.get(AdvisoryKey(session_id=SessionId("new-b"))).state == "used"


def test_what_was_foreseen_while_nobody_led_is_announced_by_who_leads_then() -> None:
    driver = calm()
    driver.core = TrackerCore(Limits(), driver.agents, is_spare=True)
    assert not driver.begin("a")
    driver.now_ns += 2 * SECOND
    told = [each for each in driver.core.on_lead(driver.now_ns) if isinstance(each, Expect)]
    assert [each.message.session_id for each in told] == ["s-b"]
    assert 6 * SECOND < told[0].message.arrives_in_ns < 10 * SECOND


def test_a_beginning_that_changed_is_not_told_yet() -> None:
    driver = Driver()
    for session in ("one", "two"):
        leave(driver, "b", session, SYSTEM)
    in_new(driver, "a", "new")
    record = driver.core.get(AdvisoryKey(session_id=prefix_session(OF_B)))
    assert record.is_up_to_date
    record.prefix = AgentPrefix(agent=OF_B, keys="00" * KEY_BYTES)
    assert not record.is_up_to_date


@pytest.mark.parametrize("why", ["its turn came", "the last leader has said it"])
def test_what_needs_no_announcement_any_more_gets_none(why: str) -> None:
    driver = calm()
    driver.core = TrackerCore(Limits(), driver.agents, is_spare=True)
    driver.begin("a")
    if why == "its turn came":
        driver.begin("b")
    else:
        driver.now_ns += 5 * SECOND
    told = [
        each.message.session_id
        for each in driver.core.on_lead(driver.now_ns)
        if isinstance(each, Expect)
    ]
    assert "s-b" not in told


def key(agent: str) -> AdvisoryKey:
    return AdvisoryKey(session_id=SessionId(f"s-{agent}"))


def calm(limits: Limits | None = None) -> Driver:
    """Nothing is announced any more, and all is learned."""
    driver = Driver(limits)
    driver.now_ns += 1000 * SECOND
    driver.core.on_wake(driver.now_ns)
    assert driver.core.num_live == 0
    return driver


def announce(driver: Driver, **fields: object) -> Record:
    advisory = Advisory(session_id=SessionId("s-b"), **fields)  # type: ignore[arg-type]
    return driver.core.on_submit(advisory, driver.now_ns)[0]


def test_what_is_given_up_is_announced_again_at_the_turn_s_end() -> None:
    driver = Driver()
    driver.now_ns += 1000 * SECOND
    for number, agent in enumerate("ab" * 18):  # some take so long that hints live for long
        driver.begin(agent)
        driver.now_ns += (10 if number < 32 else 80) * SECOND
        driver.end(agent)
    driver.now_ns += 1000 * SECOND
    driver.core.on_wake(driver.now_ns)
    driver.begin("a")
    expires_at_ns = driver.core.get(key("b")).expires_at_ns
    driver.now_ns = expires_at_ns - 1
    driver.core.on_wake(driver.now_ns)
    assert driver.core.get(key("b")).over_at_ns is None
    driver.now_ns += 1
    driver.core.on_wake(driver.now_ns)
    assert driver.core.get(key("b")).state == "expired"
    driver.now_ns += 1
    driver.end("a")
    assert driver.core.get(key("b")).over_at_ns is None, "announced again"


def test_nothing_is_announced_for_longer_than_places_are_kept() -> None:
    limits = AgentLimits(arrival_max_ns=20 * SECOND, slack_ns=5 * SECOND)
    driver = Driver()
    driver.agents = AgentTurns(AgentFollower(limits))
    driver.core = TrackerCore(Limits(), driver.agents)
    for each_s in (10, 10, 10, 10, 10, 500) * 3:
        for agent in "ab":
            driver.begin(agent)
            driver.now_ns += each_s * SECOND
            driver.end(agent)
    driver.begin("a")
    assert driver.core.get(key("b")).expires_at_ns <= driver.now_ns + 25 * SECOND


def test_who_announces_what_was_foreseen_is_told_what_became_of_it() -> None:
    driver = calm()
    driver.begin("a")
    driver.now_ns += SECOND
    record = announce(driver, frontend_id=FrontendId("f"), place="p", model_id=ModelId("m"))
    assert record.num_merged == 0, "a first advisory costs what a first one does"
    assert (record.created_at_ns, record.arrives_at_ns) == (driver.now_ns, 0), "at any time"
    assert not record.origin.is_own and record.source.application == "m"
    assert announce(driver, frontend_id=FrontendId("f"), place="p").num_merged == 1
    driver.begin("b")
    effects = driver.core.on_wake(driver.now_ns + SECOND)
    (told,) = [each.message.verdicts for each in effects if isinstance(each, SendVerdicts)]
    assert [(each.place, each.num_used) for each in told] == [("p", 1)]


def test_what_a_client_said_counts_more_than_what_is_foreseen() -> None:
    driver = calm()
    told = announce(driver, ordered=True, workflow_id="o", ttl_ms=1000)
    driver.begin("a")
    record = driver.core.get(key("b"))
    assert record is told and not record.origin.is_own and record.num_merged == 0
    assert (record.arrives_at_ns, record.origin.is_dated, record.origin.agent) == (0, False, "")
    assert record.origin.sender is not None, "it stands in its sender's order still"
    assert record.expires_at_ns > driver.now_ns + 10 * SECOND, "the later end holds"


def test_wrong_foresight_is_not_held_against_clients() -> None:
    driver = calm()
    num_wrong = 0
    for _ in range(10):
        driver.begin("a")
        driver.now_ns += 100 * SECOND
        num_wrong += driver.core.on_wake(driver.now_ns).count(Count("expired"))
    assert num_wrong > 2
    assert announce(driver).chance == FIRST_CHANCE
    assert driver.core.status(driver.now_ns).rates == []


def test_foresight_is_acted_on_by_its_own_chance() -> None:
    driver = calm()
    for number in range(60):
        advisory = Advisory(session_id=SessionId(f"x{number}"), agent="b")
        driver.core.on_submit(advisory, driver.now_ns)
        driver.core.on_invalidate(AdvisoryKey(session_id=advisory.session_id), driver.now_ns)
    assert not announce(driver, agent="b").is_acted_on
    driver.core.on_invalidate(key("b"), driver.now_ns)
    driver.now_ns += SECOND
    assert [each.session_id for each in driver.begin("a")] == ["s-b"]
    assert driver.core.get(key("b")).chance > 0.5


def num_foreseen(driver: Driver) -> int:
    return driver.core._live_limits.num_foreseen


def test_foresight_takes_a_quarter_of_the_room_at_most() -> None:
    driver = calm(Limits(advisories_max=4))
    driver.begin("a")
    assert driver.core.num_live == 1
    driver.begin("b")
    driver.begin("a", tenant="other")
    driver.now_ns += SECOND
    for agent, tenant in (("a", "other"), ("b", "other")) * 4:
        driver.begin(agent, tenant=tenant)
    assert driver.core.num_live == num_foreseen(driver) == 1
    announce(driver)
    assert driver.core.num_live - num_foreseen(driver) == 1, "a client's now, or its own"
    driver.core.on_invalidate(key("b"), driver.now_ns)
    driver.core.on_wake(driver.now_ns + 1000 * SECOND)
    assert driver.core.num_live == num_foreseen(driver) == 0
    for number in range(4):
        advisory = Advisory(session_id=SessionId(f"x{number}"), kv_at={HostId("h"): 1})
        driver.core.on_submit(advisory, driver.now_ns)
    assert driver.core.num_live == 4


def test_a_turn_that_is_told_of_twice_came_once() -> None:
    driver = calm()
    arrived = TurnArrived(
        session_id=SessionId("s-a"),
        turn_id=TurnId("again"),
        agent=AgentRef(agent="a", workflow_id="w"),
    )
    driver.core.on_turn_arrived(arrived, driver.now_ns)
    driver.core.on_submit(Advisory(session_id=SessionId("s-a")), driver.now_ns)
    driver.core.on_turn_arrived(arrived, driver.now_ns)
    assert driver.core.get(key("a")).over_at_ns is None, "of the next turn"
    graph = driver.agents._follower.graph(DEFAULT_TENANT, "")
    assert "a" not in graph.tables["a",].edges, "it does not follow itself"
