"""The client's plug-ins in their frameworks, where they are installed: the house hears of an
agent's next turn while its tool runs, and every request says whose turn it is.

The house is a fake one, whose model says what a test tells it to.
"""

import asyncio
import gc
import time
from collections.abc import Iterator

import pytest

from symphony_client import SymphonyClient, Workflow
from tests.clients.fake_house import FakeHouse, fake_house

PATIENCE_S = 20.0
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True)
def cleared() -> Iterator[None]:
    """Some leave connections to the collector, which would complain later."""
    yield
    gc.collect()


@pytest.fixture
def house() -> Iterator[FakeHouse]:
    with fake_house() as running:
        yield running


@pytest.fixture
def client(house: FakeHouse) -> Iterator[SymphonyClient]:
    with SymphonyClient(house.url) as made:
        yield made


@pytest.fixture
def workflow(client: SymphonyClient) -> Iterator[Workflow]:
    with client.workflow("w", "shop", model="m") as made:
        yield made


def wait_for_hint(house: FakeHouse, session_id: str) -> str:
    """What a tool does here: it is done when the house has heard of the turn after it."""
    deadline = time.monotonic() + PATIENCE_S
    while not house.hints(session_id):
        assert time.monotonic() < deadline, house.told()
        time.sleep(0.005)
    return "it rains"


def check_turns(house: FakeHouse, *sessions: str) -> None:
    """These turns came, each with its names."""
    turns = [one.body for one in house.asked if not one.is_hint]
    assert [body.get("session_id") for body in turns] == list(sessions)
    for body in turns:
        name = body["session_id"].removeprefix("w/")
        assert (body["agent"], body["workflow_id"]) == (f"shop/{name}", "w")


def test_openai_agents(house: FakeHouse, workflow: Workflow) -> None:
    agents = pytest.importorskip("agents")
    from openai import AsyncOpenAI

    from symphony_client.integrations.openai_agents import SymphonyRunHooks, model_settings

    agents.set_tracing_disabled(True)

    def go(city: str) -> str:
        """Go there."""
        return wait_for_hint(house, "w/writer")

    house.script = [
        [("go", {"city": "Oslo"}), ("go", {"city": "Rome"})],
        [("transfer_to_editor", {})],
        "done",
    ]

    async def scenario() -> None:
        client = AsyncOpenAI(base_url=f"{house.url}/v1", api_key="none")
        model = agents.OpenAIChatCompletionsModel(model="m", openai_client=client)
        editor = agents.Agent(
            name="editor", model=model, model_settings=model_settings(workflow, "editor")
        )
        writer = agents.Agent(
            name="writer", model=model, tools=[agents.function_tool(go)], handoffs=[editor],
            model_settings=model_settings(workflow, "writer", agents.ModelSettings(max_tokens=9)),
        )  # fmt: skip
        done = await agents.Runner.run(writer, "Where to?", hooks=SymphonyRunHooks(workflow))
        assert done.final_output == "done" and done.last_agent.name == "editor"
        await client.close()

    asyncio.run(scenario())
    check_turns(house, "w/writer", "w/writer", "w/editor")
    told = house.told()
    assert told[:3] == ["turn w/writer", "hint w/writer", "turn w/writer"]
    assert all(body["agent"].startswith("shop/") for body in house.hints())
    assert house.asked[0].body["max_tokens"] == 9


def test_openai_agents_that_fail_take_back_what_will_not_come(
    house: FakeHouse, client: SymphonyClient
) -> None:
    agents = pytest.importorskip("agents")
    from openai import AsyncOpenAI

    from symphony_client.integrations.openai_agents import SymphonyRunHooks, model_settings

    def go(city: str) -> str:
        """Go there."""
        wait_for_hint(house, "w/writer")
        raise ValueError("lost")

    house.script = [[("go", {"city": "Oslo"})]]

    async def scenario() -> None:
        own = AsyncOpenAI(base_url=f"{house.url}/v1", api_key="none")
        model = agents.OpenAIChatCompletionsModel(model="m", openai_client=own)
        with client.workflow("w", "shop") as workflow:
            writer = agents.Agent(
                name="writer", model=model,
                tools=[agents.function_tool(go, failure_error_function=None)],
                model_settings=model_settings(workflow, "writer"),
            )  # fmt: skip
            await agents.Runner.run(writer, "Where to?", hooks=SymphonyRunHooks(workflow))

    with pytest.raises(Exception, match="lost"):
        asyncio.run(scenario())
    assert client.announcer.flush()
    assert house.told() == ["turn w/writer", "hint w/writer", "no w/writer"]
