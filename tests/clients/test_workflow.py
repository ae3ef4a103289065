"""What a workflow announces, and what it does not."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from symphony_client import Agent, Announcer, AsyncHttpTransport, InvalidRequest, Settings, Workflow
from symphony_client.foresight import TOO_SOON_S, Foresight
from tests.clients.fake_frontend import FakeFrontend

PATIENCE_S = 60.0


class Scene:
    """A workflow under a clock that a test moves, and the frontend that hears of it."""

    def __init__(self, frontend: FakeFrontend) -> None:
        self.frontend = frontend
        self.now_s = 1000.0
        self.announcer = Announcer(
            AsyncHttpTransport(Settings(frontend.url, timeout_s=PATIENCE_S)),
            linger_s=1.0, timeout_s=PATIENCE_S, clock=lambda: self.now_s,
        )  # fmt: skip
        self.foresight = Foresight(self.announcer, lambda: self.now_s)
        self.workflow = self.another("order-17")

    def another(self, workflow_id: str, **more: Any) -> Workflow:
        return Workflow(workflow_id, self.foresight, application="shop", model="m", **more)

    def heard(self) -> list[tuple[str, float | None]]:
        """What the frontend was told since it was last asked, and for when; several went at once,
        so their order says nothing.
        """
        assert self.announcer.flush(PATIENCE_S)
        told = sorted(
            (one.brief(), one.body.get("expected_arrival")) for one in self.frontend.asked
        )
        self.frontend.asked.clear()
        return told


@pytest.fixture
def scene(frontend: FakeFrontend) -> Iterator[Scene]:
    made = Scene(frontend)
    with made.announcer:
        yield made


def test_each_request_names_agent_workflow_and_session(scene: Scene) -> None:
    agent = scene.workflow.agent("engineer")
    assert agent.extra_body == agent.identity == {
        "agent": "shop/engineer", "workflow_id": "order-17", "session_id": "order-17/engineer",
    }  # fmt: skip
    assert agent.headers == {
        "X-Agent": "shop/engineer", "X-Workflow-Id": "order-17",
        "X-Session-Id": "order-17/engineer",
    }  # fmt: skip
    other = Workflow("w", scene.foresight).agent("qa", "mine")
    assert other.extra_body == {"agent": "qa", "workflow_id": "w", "session_id": "mine"}
    for name in ("tool:x", "#x"):
        with pytest.raises(InvalidRequest):
            scene.workflow.agent(name)


def test_names_are_such_as_a_deployment_takes(scene: Scene) -> None:
    workflow = scene.another("w\n1")
    role = "{topic} Senior\n writer\n"  # as in a YAML file
    assert workflow.agent(role).identity == {
        "agent": "shop/{topic} Senior writer", "workflow_id": "w 1",
        "session_id": "w 1/{topic} Senior writer",
    }  # fmt: skip
    long = [workflow.agent("x" * 300 + end).identity for end in "ab"]
    assert long[0]["session_id"] != long[1]["session_id"]
    assert all(len(value) <= 256 for names in long for value in names.values())


def test_an_agent_that_is_entered_is_announced_unless_its_turn_is_here(scene: Scene) -> None:
    with scene.workflow.agent("engineer"):
        assert scene.heard() == [("hint order-17/engineer", 0.0)]
    assert scene.heard() == [("no order-17/engineer", None)]  # it asked nothing
    with scene.workflow.agent("engineer") as agent:
        assert agent.extra_body
    assert scene.heard() == []


def test_a_hint_says_whose_turn_it_is(scene: Scene) -> None:
    with scene.workflow.agent("engineer", model="other") as agent:
        agent.hands_off_to("qa", 2.5)
        assert scene.announcer.flush(PATIENCE_S)
        own, of_qa = scene.frontend.hints("order-17/engineer"), scene.frontend.hints("order-17/qa")
    assert own[0].pop("expected_arrival") == 0.0
    assert own == [
        {
            "session_id": "order-17/engineer", "model_id": "other",
            "agent": "shop/engineer", "workflow_id": "order-17",
        }
    ]  # fmt: skip
    assert of_qa[0]["agent"] == "shop/qa" and of_qa[0]["model_id"] == "m"


def test_who_follows_is_announced_for_when_agents_like_this_were_done(scene: Scene) -> None:
    workflow = scene.workflow
    with workflow.agent("engineer", next=["qa", "manager"]) as agent:
        assert agent.extra_body
        assert scene.heard() == [("hint order-17/manager", None), ("hint order-17/qa", None)]
        scene.now_s += 8.0
    with scene.another("order-18").agent("engineer", next="qa") as agent:
        assert agent.extra_body
        ((told, arrival),) = scene.heard()
    assert told == "hint order-18/qa" and arrival == pytest.approx(8.0)


def test_a_tool_announces_the_turn_after_it(scene: Scene) -> None:
    with scene.workflow.agent("engineer") as agent:
        for lasts_s, said in ((4.0, None), (4.0, 4.0)):
            assert agent.extra_body
            with agent.tool("search"):
                ((told, arrival),) = scene.heard()
                scene.now_s += lasts_s
            assert told == "hint order-17/engineer"
            assert arrival == (None if said is None else pytest.approx(said))
            assert scene.heard() == []  # nothing new


def learn(scene: Scene, **tools: float) -> None:
    for name, seconds in tools.items():
        scene.foresight.lasted(f"shop/tool:{name}", seconds)


def test_after_several_tools_the_turn_comes_with_the_last(scene: Scene) -> None:
    learn(scene, short=2.0, long=20.0)
    with scene.workflow.agent("engineer") as agent:
        assert agent.extra_body
        agent.tool_started("short", "a")
        agent.tool_started("long", "b")
        ((_, arrival),) = scene.heard()
        assert arrival == pytest.approx(20.0)
        scene.now_s += 1.0
        agent.tool_ended("long", "b")  # sooner than it was said
        ((_, arrival),) = scene.heard()
        assert arrival == pytest.approx(1.0)
        agent.tool_ended("short", "a")
        scene.heard()
        assert agent.extra_body


def test_a_tool_that_is_done_at_once_is_not_worth_a_hint(scene: Scene) -> None:
    learn(scene, quick=TOO_SOON_S / 2)
    with scene.workflow.agent("engineer") as agent:
        assert agent.extra_body
        with agent.tool("quick"):
            assert scene.heard() == []
        assert scene.heard() == []


def test_a_tool_that_fails_is_learned_from_and_one_that_is_cancelled_is_not(scene: Scene) -> None:
    def run(agent: Agent, name: str, error: BaseException) -> None:
        with agent.tool(name):
            scene.now_s += 3.0
            raise error

    with scene.workflow.agent("engineer") as agent:
        with pytest.raises(ValueError, match="x"):
            run(agent, "failing", ValueError("x"))
        with pytest.raises(asyncio.CancelledError):
            run(agent, "cancelled", asyncio.CancelledError())
    assert scene.foresight.expected_s("shop/tool:failing") == 3.0
    assert scene.foresight.expected_s("shop/tool:cancelled") is None


def test_an_agent_that_fails_takes_back_what_will_not_come(scene: Scene) -> None:
    def fail() -> None:
        with scene.workflow.agent("engineer", next="qa") as agent:
            assert agent.extra_body
            agent.tool_started("search")
            scene.heard()
            raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        fail()
    assert scene.heard() == [("no order-17/engineer", None), ("no order-17/qa", None)]


def test_an_agent_that_is_done_leaves_its_successors_announced(scene: Scene) -> None:
    with scene.workflow as workflow:
        with workflow.agent("engineer", next="qa") as agent:
            assert agent.extra_body
        assert scene.heard() == [("hint order-17/qa", None)]
        with workflow.agent("qa") as agent:
            assert scene.heard() == []  # it is announced
            assert agent.extra_body
            agent.hands_off_to("manager")
        scene.heard()
    assert scene.heard() == [("no order-17/manager", None)]  # the workflow is over


def test_workflows_of_many_threads_do_not_mix(scene: Scene) -> None:
    def run(number: int) -> None:
        with scene.another(f"w{number}") as workflow:
            for _ in range(20):
                with workflow.agent("a", next="b") as agent:
                    assert agent.extra_body["workflow_id"] == f"w{number}"
                    with agent.tool("t"):
                        pass
                with workflow.agent("b") as agent:
                    assert agent.extra_body

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert scene.announcer.flush(PATIENCE_S)
    last = {f"w{n}/{name}": "" for n in range(8) for name in "ab"}
    last |= {one.session_id: one.method for one in scene.frontend.asked}
    assert "POST" not in last.values()  # nothing is awaited any more
    assert scene.announcer.counts.refused == 0


def test_an_agent_that_follows_itself_is_announced_when_it_is_done(scene: Scene) -> None:
    """As in a chat: the user writes again, in the same session."""
    with scene.workflow.agent("guide", "mine", next="guide") as agent:
        assert agent.extra_body
        assert scene.heard() == []
    assert scene.heard() == [("hint mine", None)]
    agent.enter()
    assert agent.extra_body
    agent.leave(has_failed=True)
    assert scene.heard() == []
    with agent:
        assert agent.extra_body
    scene.workflow.end()
    assert [brief for brief, _ in scene.heard()][-1] == "no mine"
