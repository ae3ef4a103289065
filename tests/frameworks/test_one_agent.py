"""What programs of one agent send by the client's plug-ins: a hint while a tool runs, also where
the framework has other means for one agent than for several, and one for a user's next message.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from symphony_client import SymphonyClient, Workflow
from tests.clients.fake_frontend import FakeFrontend
from tests.frameworks.announcing import (
    PATIENCE_S,
    check_hinted,
    check_turns,
    wait_for_hint,
)

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def check_next_is_announced(frontend: FakeFrontend, client: SymphonyClient) -> None:
    """The user's next message, after the answer."""
    assert client.announcer.flush(PATIENCE_S)
    assert frontend.told()[-1] == "hint w/writer"
    assert "expected_arrival" not in frontend.hints("w/writer")[-1]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_function_agent_of_llama_index(
    frontend: FakeFrontend, client: SymphonyClient, workflow: Workflow
) -> None:
    workflows = pytest.importorskip("llama_index.core.agent.workflow")
    like = pytest.importorskip("llama_index.llms.openai_like").OpenAILike

    from symphony_client.integrations.llama_index import announced

    def go(city: str) -> str:
        """Go there."""
        return wait_for_hint(frontend, "w/writer")

    async def scenario() -> str:
        model = like(
            model="m", api_base=f"{frontend.url}/v1", api_key="none", is_chat_model=True,
            is_function_calling_model=True,
            additional_kwargs={"extra_body": workflow.agent("writer").identity},
        )  # fmt: skip
        run = workflows.FunctionAgent(tools=[go], llm=model, streaming=False).run(user_msg="Hi")
        async for _ in announced(run, workflow, "writer", {"writer": ["writer"]}):
            pass
        return str(await run)

    frontend.script = [[("go", {"city": "Oslo"})], "done"]
    assert asyncio.run(scenario()) == "done"
    check_turns(frontend, "w/writer", "w/writer")
    check_hinted(frontend)
    check_next_is_announced(frontend, client)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_agent_of_crewai_without_a_crew(
    frontend: FakeFrontend,
    client: SymphonyClient,
    workflow: Workflow,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    for name in ("CREWAI_DISABLE_TELEMETRY", "OTEL_SDK_DISABLED"):
        monkeypatch.setenv(name, "true")
    monkeypatch.setenv("CREWAI_TRACING_ENABLED", "false")
    monkeypatch.setenv("HOME", str(tmp_path))
    crewai = pytest.importorskip("crewai")
    events = pytest.importorskip("crewai.events")
    tools = pytest.importorskip("crewai.tools")

    from symphony_client.integrations.crewai import SymphonyListener

    def go(city: str) -> str:
        """Go there."""
        return wait_for_hint(frontend, "w/writer")

    model = crewai.LLM(
        model="openai/m", base_url=f"{frontend.url}/v1", api_key="none",
        extra_body=workflow.agent("writer").identity,
    )  # fmt: skip
    writer = crewai.Agent(
        role="writer", goal="g", backstory="b", llm=model, tools=[tools.tool("go")(go)]
    )
    frontend.script = [[("go", {"city": "Oslo"})], "done"]
    with events.crewai_event_bus.scoped_handlers():
        SymphonyListener(workflow, ["writer"], {"writer": ["writer"]})
        assert writer.kickoff("Where to?").raw == "done"
        events.crewai_event_bus.flush()
    check_turns(frontend, "w/writer", "w/writer")
    check_hinted(frontend)
    check_next_is_announced(frontend, client)


@pytest.mark.parametrize("fails", [False, True])
def test_an_assistant_agent_of_autogen(
    frontend: FakeFrontend, client: SymphonyClient, workflow: Workflow, fails: bool
) -> None:
    chat = pytest.importorskip("autogen_agentchat.agents")
    core = pytest.importorskip("autogen_core.models")
    models = pytest.importorskip("autogen_ext.models.openai")
    from symphony_client.integrations.autogen import announced

    def go(city: str) -> str:
        """Go there."""
        return wait_for_hint(frontend, "w/writer")

    async def scenario() -> str:
        info = core.ModelInfo(
            vision=False, function_calling=True, json_output=True, structured_output=True,
            family="unknown",
        )  # fmt: skip
        agent = workflow.agent("writer", next="writer")
        model = models.OpenAIChatCompletionClient(
            model="m", base_url=f"{frontend.url}/v1", api_key="none", model_info=info,
            default_headers=agent.headers, max_retries=0,
        )  # fmt: skip
        writer = chat.AssistantAgent(
            "writer", model_client=model, tools=[go], max_tool_iterations=3
        )
        events: list[Any] = []
        async for event in announced(writer.run_stream(task="Where to?"), agent):
            events.append(event)
        await model.close()
        return str(events[-1].messages[-1].content)

    frontend.script = [[("go", {"city": "Oslo"})]] + ([] if fails else ["done"])
    if fails:  # the model is out of replies
        with pytest.raises(Exception, match="Connection error"):
            asyncio.run(scenario())
        assert client.announcer.flush(PATIENCE_S)
        assert frontend.told()[-1] == "no w/writer"
        return
    assert asyncio.run(scenario()) == "done"
    turns = [one for one in frontend.asked if not one.is_hint]
    assert [one.headers["x-session-id"] for one in turns] == ["w/writer"] * 2
    told = frontend.told()
    assert "hint w/writer" in told[told.index("turn") : len(told) - told[::-1].index("turn")]
    check_next_is_announced(frontend, client)
