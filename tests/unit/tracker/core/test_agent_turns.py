"""Agents' turns in the tracker: what follows them is expected as if it had been announced."""

from services.tracker.core import AgentTurns, Expect, Limits, TrackerCore
from services.tracker.core.agents import AgentFollower, AgentLimits
from shared.ids import DEFAULT_TENANT, SessionId, TenantId, TurnId, WorkerId
from shared.messages import AdvisoryKey, AgentRef, AgentTurnLeft, ExpectSession, TurnArrived

SECOND = 1_000_000_000


class Driver:
    """A tracker that has seen a and b call each other in one workflow, ten seconds a turn."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.agents = AgentTurns(AgentFollower(AgentLimits()))
        self.core = TrackerCore(limits or Limits(), self.agents)
        self.now_ns = SECOND
        for agent in "abababab":
            self.begin(agent)
            self.now_ns += 10 * SECOND
            self.end(agent)

    def begin(self, agent: str, tenant: str = DEFAULT_TENANT) -> list[ExpectSession]:
        arrived = TurnArrived(
            session_id=SessionId(f"s-{agent}"),
            turn_id=TurnId("t"),
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
    driver.now_ns += 3600 * SECOND
    driver.begin("a")
    driver.begin("c")
    assert driver.core.num_live == 1


def test_an_agent_without_a_session_is_only_counted() -> None:
    driver = Driver()
    before = driver.agents.num_without_session
    arrived = TurnArrived(
        session_id=SessionId("other"),
        turn_id=TurnId("t"),
        agent=AgentRef(agent="a", workflow_id="new"),
    )
    effects = driver.core.on_turn_arrived(arrived, driver.now_ns)
    assert not [effect for effect in effects if isinstance(effect, Expect)]
    assert driver.agents.num_without_session == before + 1
