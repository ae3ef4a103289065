"""The client's plug-ins in their frameworks, where they are installed: the frontend hears of an
agent's next turn while its tool runs, and every request says whose turn it is.

The frontend is a fake one, whose model says what a test tells it to.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from symphony_client import SymphonyClient, Workflow
from tests.clients.fake_frontend import FakeFrontend
from tests.frameworks.announcing import (
    PATIENCE_S,
    check_hinted,
    check_turns,
    turns,
    wait_for_hint,
)

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def test_openai_agents(frontend: FakeFrontend, workflow: Workflow) -> None:
    agents = pytest.importorskip("agents")
    from openai import AsyncOpenAI

    from symphony_client.integrations.openai_agents import SymphonyRunHooks, model_settings

    agents.set_tracing_disabled(True)

    def go(city: str) -> str:
        """Go there."""
        return wait_for_hint(frontend, "w/writer")

    frontend.script = [
        [("go", {"city": "Oslo"}), ("go", {"city": "Rome"})],
        [("transfer_to_editor", {})],
        "done",
    ]

    async def scenario() -> None:
        client = AsyncOpenAI(base_url=f"{frontend.url}/v1", api_key="none")
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
    check_turns(frontend, "w/writer", "w/writer", "w/editor")
    check_hinted(frontend)
    assert all(body["agent"].startswith("shop/") for body in frontend.hints())
    assert turns(frontend)[0]["max_tokens"] == 9


def test_openai_agents_that_fail_take_back_what_will_not_come(
    frontend: FakeFrontend, client: SymphonyClient
) -> None:
    agents = pytest.importorskip("agents")
    from openai import AsyncOpenAI

    from symphony_client.integrations.openai_agents import SymphonyRunHooks, model_settings

    def go(city: str) -> str:
        """Go there."""
        wait_for_hint(frontend, "w/writer")
        raise ValueError("lost")

    frontend.script = [[("go", {"city": "Oslo"})]]

    async def scenario() -> None:
        own = AsyncOpenAI(base_url=f"{frontend.url}/v1", api_key="none")
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
    assert client.announcer.flush(PATIENCE_S)
    assert frontend.told()[-3:] == ["turn w/writer", "hint w/writer", "no w/writer"]


def test_pydantic_ai(frontend: FakeFrontend, workflow: Workflow) -> None:
    ai = pytest.importorskip("pydantic_ai")
    models = pytest.importorskip("pydantic_ai.models.openai")
    providers = pytest.importorskip("pydantic_ai.providers.openai")

    from symphony_client.integrations.pydantic_ai import SymphonyCapability

    provider = providers.OpenAIProvider(base_url=f"{frontend.url}/v1", api_key="none")
    model = models.OpenAIChatModel("m", provider=provider)
    settings = {"max_tokens": 9, "extra_body": {"top_k": 3}}
    writer = ai.Agent(model, name="writer", model_settings=settings)

    @writer.tool_plain  # type: ignore[untyped-decorator]
    def go(city: str) -> str:
        """Go there."""
        return wait_for_hint(frontend, "w/writer")

    frontend.script = [[("go", {"city": "Oslo"})], "done"]
    said = writer.run_sync("Where to?", capabilities=[SymphonyCapability(workflow, next="editor")])
    assert said.output == "done"
    check_turns(frontend, "w/writer", "w/writer")
    check_hinted(frontend)
    turn = turns(frontend)[0]
    assert (turn["top_k"], turn["max_completion_tokens"]) == (3, 9)
    wait_for_hint(frontend, "w/editor")


@pytest.mark.parametrize("is_async", [False, True])
def test_langchain(frontend: FakeFrontend, workflow: Workflow, is_async: bool) -> None:
    agents = pytest.importorskip("langchain.agents")
    chat = pytest.importorskip("langchain_openai").ChatOpenAI
    tools = pytest.importorskip("langchain_core.tools")

    from symphony_client.integrations.langchain import SymphonyMiddleware

    def go(city: str) -> str:
        """Go there."""
        return wait_for_hint(frontend, "w/writer")

    model = chat(model="m", base_url=f"{frontend.url}/v1", api_key="none", extra_body={"top_k": 3})
    agent = agents.create_agent(
        model, [tools.tool(go)], middleware=[SymphonyMiddleware(workflow.agent("writer"))]
    )
    asked = {"messages": [("user", "Where to?")]}
    frontend.script = [[("go", {"city": "Oslo"})], "done"]
    said = asyncio.run(agent.ainvoke(asked)) if is_async else agent.invoke(asked)
    assert said["messages"][-1].content == "done"
    check_turns(frontend, "w/writer", "w/writer")
    check_hinted(frontend)
    assert turns(frontend)[0]["top_k"] == 3


def test_langgraph(frontend: FakeFrontend, workflow: Workflow) -> None:
    graphs = pytest.importorskip("langgraph.graph")
    prebuilt = pytest.importorskip("langgraph.prebuilt")
    chat = pytest.importorskip("langchain_openai").ChatOpenAI
    tools = pytest.importorskip("langchain_core.tools")

    from symphony_client.integrations.langgraph import SymphonyCallbackHandler, successors

    def go(city: str) -> str:
        """Go there."""
        return wait_for_hint(frontend, "w/writer")

    model = chat(model="m", base_url=f"{frontend.url}/v1", api_key="none")
    visit = tools.tool(go)

    def node(name: str) -> Callable[[Any], Any]:
        own = model.bind_tools([visit]).bind(extra_body=workflow.agent(name).identity)
        return lambda state: {"messages": [own.invoke(state["messages"])]}

    graph = graphs.StateGraph(graphs.MessagesState)
    graph.add_node("writer", node("writer"))
    graph.add_node("tools", prebuilt.ToolNode([visit]))
    graph.add_node("editor", node("editor"))
    graph.add_node("proof", node("proof"))
    graph.add_edge(graphs.START, "writer")
    graph.add_conditional_edges(
        "writer", prebuilt.tools_condition, {"tools": "tools", graphs.END: "editor"}
    )
    graph.add_edge("tools", "writer")
    graph.add_edge("editor", "proof")
    made = graph.compile()
    following = successors(made)
    assert following == {"tools": ["writer"], "editor": ["proof"]}

    handler = SymphonyCallbackHandler(workflow, ["writer", "editor", "proof"], following)
    frontend.script = [[("go", {"city": "Oslo"})], "said", "read", "done"]
    found = made.invoke({"messages": [("user", "Where to?")]}, {"callbacks": [handler]})
    assert found["messages"][-1].content == "done"
    check_turns(frontend, "w/writer", "w/writer", "w/editor", "w/proof")
    check_hinted(frontend)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # it looks at all of pydantic's fields
def test_llama_index(frontend: FakeFrontend, workflow: Workflow) -> None:
    workflows = pytest.importorskip("llama_index.core.agent.workflow")
    like = pytest.importorskip("llama_index.llms.openai_like").OpenAILike

    from symphony_client.integrations.llama_index import announced

    def go(city: str) -> str:
        """Go there."""
        return wait_for_hint(frontend, "w/writer")

    def model(name: str) -> Any:
        return like(
            model="m", api_base=f"{frontend.url}/v1", api_key="none", is_chat_model=True,
            is_function_calling_model=True,
            additional_kwargs={"extra_body": workflow.agent(name).identity},
        )  # fmt: skip

    def agent(name: str, tools: list[Any], others: list[str]) -> Any:
        return workflows.FunctionAgent(
            name=name, description=name, tools=tools, llm=model(name), streaming=False,
            can_handoff_to=others,
        )  # fmt: skip

    async def scenario() -> str:
        team = workflows.AgentWorkflow(
            agents=[agent("writer", [go], ["editor"]), agent("editor", [], ["writer"])],
            root_agent="writer",
        )
        run = team.run(user_msg="Where to?")
        async for _ in announced(run, workflow):
            pass
        return str(await run)

    frontend.script = [
        [("go", {"city": "Oslo"})],
        [("handoff", {"to_agent": "editor", "reason": "x"})],
        "done",
    ]
    assert asyncio.run(scenario()) == "done"
    check_turns(frontend, "w/writer", "w/writer", "w/editor")
    check_hinted(frontend)


async def ask_openai(url: str, text: str, extra_body: dict[str, Any]) -> Any:
    """The model's message, by OpenAI's client."""
    from openai import AsyncOpenAI

    messages: Any = [{"role": "user", "content": text}]
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        reply = await client.chat.completions.create(
            model="m", messages=messages, extra_body=extra_body
        )
    return reply.choices[0].message


def test_autogen(frontend: FakeFrontend, workflow: Workflow) -> None:
    core = pytest.importorskip("autogen_core")
    tool_agent = pytest.importorskip("autogen_core.tool_agent")
    tools = pytest.importorskip("autogen_core.tools")
    from symphony_client.integrations.autogen import SymphonyInterventionHandler

    def go(city: str) -> str:
        """Go there."""
        return wait_for_hint(frontend, "w/writer")

    async def ask(agent: str, text: str) -> Any:
        return await ask_openai(frontend.url, text, workflow.agent(agent).extra_body)

    @dataclass
    class Said:
        text: str

    class Writer(core.RoutedAgent):  # type: ignore[name-defined, misc]
        @core.message_handler  # type: ignore[untyped-decorator]
        async def write(self, message: Said, ctx: core.MessageContext) -> Said:  # type: ignore[name-defined]
            reply = await ask("writer", message.text)
            for call in reply.tool_calls:
                function = core.FunctionCall(
                    id=call.id, name=call.function.name, arguments=call.function.arguments
                )
                await self.send_message(function, core.AgentId("tools", "w"))
            await ask("writer", "It rains.")
            return Said(
                (await self.send_message(Said("Read it."), core.AgentId("editor", "w"))).text
            )

    class Editor(core.RoutedAgent):  # type: ignore[name-defined, misc]
        @core.message_handler  # type: ignore[untyped-decorator]
        async def read(self, message: Said, ctx: core.MessageContext) -> Said:  # type: ignore[name-defined]
            return Said((await ask("editor", message.text)).content)

    async def scenario() -> str:
        following = {"editor": ["proof"]}
        handler = SymphonyInterventionHandler(workflow, ["writer", "editor"], following)
        runtime = core.SingleThreadedAgentRuntime(intervention_handlers=[handler])
        await Writer.register(runtime, "writer", lambda: Writer("w"))
        await Editor.register(runtime, "editor", lambda: Editor("e"))
        own = [tools.FunctionTool(go, "Go there.")]
        await tool_agent.ToolAgent.register(
            runtime, "tools", lambda: tool_agent.ToolAgent("t", own)
        )
        runtime.start()
        said = await runtime.send_message(Said("Where to?"), core.AgentId("writer", "w"))
        await runtime.stop_when_idle()
        assert isinstance(said, Said)
        return said.text

    frontend.script = [[("go", {"city": "Oslo"})], "wrote", "done"]
    assert asyncio.run(scenario()) == "done"
    check_turns(frontend, "w/writer", "w/writer", "w/editor")
    check_hinted(frontend)
    wait_for_hint(frontend, "w/proof")


def test_ag2(frontend: FakeFrontend, workflow: Workflow) -> None:
    ag2 = pytest.importorskip("ag2")
    config = pytest.importorskip("ag2.config.openai")

    from symphony_client.integrations.ag2 import SymphonyMiddleware

    def go(city: str) -> str:
        """Go there."""
        return wait_for_hint(frontend, "w/writer")

    agent = workflow.agent("writer", next="editor")
    writer = ag2.Agent(
        "writer",
        config=config.OpenAIConfig(
            "m", api_key="none", base_url=f"{frontend.url}/v1", extra_body=agent.identity
        ),
        tools=[ag2.tool(go)],
        middleware=[ag2.Middleware(SymphonyMiddleware, agent=agent)],
    )
    frontend.script = [[("go", {"city": "Oslo"})], "done"]

    async def scenario() -> str:
        return str((await writer.ask("Where to?")).body)

    assert asyncio.run(scenario()) == "done"
    check_turns(frontend, "w/writer", "w/writer")
    check_hinted(frontend)
    wait_for_hint(frontend, "w/editor")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_crewai(
    frontend: FakeFrontend, workflow: Workflow, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CREWAI_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("CREWAI_TRACING_ENABLED", "false")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    crewai = pytest.importorskip("crewai")
    events = pytest.importorskip("crewai.events")
    tools = pytest.importorskip("crewai.tools")

    from symphony_client.integrations.crewai import SymphonyListener

    def go(city: str) -> str:
        """Go there."""
        return wait_for_hint(frontend, "w/writer")

    def agent(role: str, own: list[Any]) -> Any:
        model = crewai.LLM(
            model="openai/m", base_url=f"{frontend.url}/v1", api_key="none",
            extra_body=workflow.agent(role).identity,
        )  # fmt: skip
        return crewai.Agent(role=role, goal="g", backstory="b", llm=model, tools=own)

    writer, editor = agent("writer", [tools.tool("go")(go)]), agent("editor", [])
    tasks = [
        crewai.Task(description=f"{one.role} it", expected_output="a text", agent=one)
        for one in (writer, editor)
    ]
    frontend.script = [[("go", {"city": "Oslo"})], "wrote", "done"]
    with events.crewai_event_bus.scoped_handlers():
        SymphonyListener(workflow, ["writer", "editor"], {"writer": ["editor"]})
        said = crewai.Crew(agents=[writer, editor], tasks=tasks).kickoff()
    assert said.raw == "done"
    check_turns(frontend, "w/writer", "w/writer", "w/editor")
    check_hinted(frontend)
    assert frontend.hints("w/editor")
