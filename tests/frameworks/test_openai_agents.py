"""openai-agents over `/v1/responses` and `/v1/chat/completions`."""

import asyncio
from typing import Any

import pytest

from services.worker.models.demo_model import DEMO_MODEL_ID
from tests.cluster import Cluster
from tests.frameworks.common import KEY, LONG, OPENAI_NAME, City, needs

pytestmark = needs("agents")


def test_openai_agents(cluster: Cluster) -> None:
    agents = pytest.importorskip("agents")
    from openai import AsyncOpenAI

    agents.set_tracing_disabled(True)
    called: list[City] = []

    def go(city: City) -> str:
        """Go there."""
        called.append(city)
        return "it rains"

    visit = agents.function_tool(go)

    async def scenario(model: Any) -> None:
        settings = agents.ModelSettings(max_tokens=900, temperature=0.0, tool_choice="required")
        agent = agents.Agent(
            name="a", model=model, tools=[visit], model_settings=settings, output_type=City
        )
        done = await agents.Runner.run(agent, "Where to?", max_turns=3)
        assert isinstance(done.final_output, City) and called
        form = agents.Agent(
            name="c", model=model, output_type=City,
            model_settings=agents.ModelSettings(max_tokens=900, temperature=0.0),
        )  # fmt: skip
        found = await agents.Runner.run(form, "Where are you?")
        assert isinstance(found.final_output, City)
        said = agents.Runner.run_streamed(form, "Where are you?")
        kinds = {event.type async for event in said.stream_events()}
        assert "raw_response_event" in kinds and said.final_output == found.final_output

    async def both() -> None:
        client = AsyncOpenAI(base_url=f"{cluster.url}/v1", api_key=KEY)
        for kind in (agents.OpenAIResponsesModel, agents.OpenAIChatCompletionsModel):
            called.clear()
            await scenario(kind(model=DEMO_MODEL_ID, openai_client=client))
        await client.close()

    asyncio.run(both())


def test_openai_agents_sends_only_what_is_new(cluster: Cluster) -> None:
    agents = pytest.importorskip("agents")
    from openai import AsyncOpenAI

    async def scenario() -> None:
        async with AsyncOpenAI(base_url=f"{cluster.url}/v1", api_key=KEY) as client:
            model = agents.OpenAIResponsesModel(model=DEMO_MODEL_ID, openai_client=client)
            settings = agents.ModelSettings(max_tokens=900, temperature=0.0)
            agent = agents.Agent(name="a", model=model, model_settings=settings, output_type=City)
            first = await agents.Runner.run(agent, LONG)
            last = first.last_response_id
            second = await agents.Runner.run(agent, "Why?", previous_response_id=last)
            used = second.context_wrapper.usage
            assert used.input_tokens > first.context_wrapper.usage.total_tokens
            assert used.input_tokens_details.cached_tokens > 0
            told = await client.responses.retrieve(second.last_response_id)
            assert told.previous_response_id == last and len(second.to_input_list()) == 2

    agents.set_tracing_disabled(True)
    asyncio.run(scenario())


def test_openai_agents_keeps_sessions_here(cluster: Cluster) -> None:
    agents = pytest.importorskip("agents")
    from openai import AsyncOpenAI

    def kinds(items: list[Any]) -> list[str]:
        return [item.get("role", item.get("type")) for item in items]

    async def scenario(client: Any) -> None:
        model = agents.OpenAIResponsesModel(model=OPENAI_NAME, openai_client=client)
        settings = agents.ModelSettings(max_tokens=900, temperature=0.0)
        agent = agents.Agent(name="a", model=model, model_settings=settings, output_type=City)

        kept = agents.OpenAIConversationsSession(openai_client=client)
        for question in ("Where to?", "Why?"):
            await agents.Runner.run(agent, question, session=kept)
        assert kinds(await kept.get_items()) == ["user", "assistant"] * 2
        (last,) = await kept.get_items(limit=1)
        assert await kept.pop_item() == last
        await kept.add_items([{"role": "user", "content": str(at)} for at in range(25)])
        assert len(await kept.get_items()) == 28
        said_in = kept.session_id
        done = await agents.Runner.run(agent, "And now?", conversation_id=said_in)
        assert isinstance(done.final_output, City)
        assert kinds(await kept.get_items())[-2:] == ["user", "assistant"]
        await kept.clear_session()
        assert await kept.get_items() == [] and kept.session_id != said_in

        short = agents.OpenAIResponsesCompactionSession(
            "s", agents.SQLiteSession("s"), client=client, model=OPENAI_NAME,
            should_trigger_compaction=lambda asked: len(asked["session_items"]) >= 4,
        )  # fmt: skip
        await agents.Runner.run(agent, "Where to?", session=short)
        assert kinds(await short.get_items()) == ["user", "assistant"]
        await agents.Runner.run(agent, "Why?", session=short)
        assert kinds(await short.get_items()) == ["user", "user", "compaction"]
        done = await agents.Runner.run(agent, "And now?", session=short)
        assert isinstance(done.final_output, City)
        await short.run_compaction({"force": True, "compaction_mode": "input"})
        assert kinds(await short.get_items()) == ["user"] * 3 + ["compaction"]

    async def connected() -> None:
        async with AsyncOpenAI(base_url=f"{cluster.url}/v1", api_key=KEY) as client:
            await scenario(client)

    agents.set_tracing_disabled(True)
    asyncio.run(connected())
