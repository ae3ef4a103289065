"""Others' code against a house, where it is installed: chat, stream, a tool's round trip, a form.

The model is the demo model, which has learned nothing: what is right about calls and forms is the
grammar's, so every run is alike.
"""

import asyncio
import gc
import json
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field

from services.worker.demo_model import DEMO_MODEL_ID
from tests.e2e.house import House

KEY = "none"
LONG = "Where to? " * 20  # more than a block, which is there at once


class City(BaseModel):
    """Where somebody is. Closed: in an open one who has learned nothing goes on for ever."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=12)
    size: int = Field(ge=0, le=99)


class Weather(BaseModel):
    """How it is there. Anthropic's client leaves limits out of what it sends; here are none."""

    model_config = ConfigDict(extra="forbid")
    is_wet: bool


NAMES = ("agents", "langchain_openai", "pydantic_ai", "instructor", "anthropic")
INSTALLED = [name for name in NAMES if find_spec(name) is not None]
pytestmark = [
    pytest.mark.skipif(not INSTALLED, reason=f"none is installed of {', '.join(NAMES)}"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(autouse=True)
def cleared() -> Iterator[None]:
    """Some leave connections to the collector, which would complain later."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with House(tmp_path_factory.mktemp("frameworks") / "data") as running:
        yield running


def test_openai_agents(house: House) -> None:
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
        client = AsyncOpenAI(base_url=f"{house.url}/v1", api_key=KEY)
        for kind in (agents.OpenAIResponsesModel, agents.OpenAIChatCompletionsModel):
            called.clear()
            await scenario(kind(model=DEMO_MODEL_ID, openai_client=client))
        await client.close()

    asyncio.run(both())


def test_langchain(house: House) -> None:
    chat = pytest.importorskip("langchain_openai").ChatOpenAI
    tools = pytest.importorskip("langchain_core.tools")

    def go(name: str) -> str:
        """Go there."""
        return f"it rains in {name}"

    visit = tools.tool(go)

    model = chat(
        model=DEMO_MODEL_ID, base_url=f"{house.url}/v1", api_key=KEY, temperature=0, max_tokens=60
    )
    assert model.invoke("Hello?").content
    assert "".join(str(chunk.content) for chunk in model.stream("Hello?"))
    asked = model.bind_tools([visit], tool_choice="go")
    reply = asked.invoke("Where to?")
    if not reply.tool_calls:  # cut off: the name may be any length
        assert reply.response_metadata["finish_reason"] == "length"
    for method in ("json_schema", "function_calling"):
        longer = chat(
            model=DEMO_MODEL_ID,
            base_url=f"{house.url}/v1",
            api_key=KEY,
            temperature=0,
            max_tokens=900,
        )
        found = longer.with_structured_output(City, method=method).invoke("Where are you?")
        assert isinstance(found, City)


def test_pydantic_ai(house: House) -> None:
    ai = pytest.importorskip("pydantic_ai")
    models = pytest.importorskip("pydantic_ai.models.openai")
    providers = pytest.importorskip("pydantic_ai.providers.openai")
    provider = providers.OpenAIProvider(base_url=f"{house.url}/v1", api_key=KEY)
    settings = {"max_tokens": 900, "temperature": 0.0}
    for kind in (models.OpenAIChatModel, models.OpenAIResponsesModel):
        model = kind(DEMO_MODEL_ID, provider=provider)
        said = ai.Agent(model, model_settings={**settings, "max_tokens": 30}).run_sync("Hello?")
        assert isinstance(said.output, str)
        for output in (City, ai.NativeOutput(City)):
            found = ai.Agent(model, output_type=output, model_settings=settings).run_sync("Where?")
            assert isinstance(found.output, City)


def test_instructor(house: House) -> None:
    instructor = pytest.importorskip("instructor")
    from openai import OpenAI

    with OpenAI(base_url=f"{house.url}/v1", api_key=KEY) as client:
        for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
            made = instructor.from_openai(client, mode=mode)
            found = made.chat.completions.create(
                model=DEMO_MODEL_ID, response_model=City, max_retries=0, max_tokens=900,
                temperature=0, messages=[{"role": "user", "content": "Where are you?"}],
            )  # fmt: skip
            assert isinstance(found, City) and json.loads(found.model_dump_json())


def test_openai_agents_sends_only_what_is_new(house: House) -> None:
    agents = pytest.importorskip("agents")
    from openai import AsyncOpenAI

    async def scenario() -> None:
        async with AsyncOpenAI(base_url=f"{house.url}/v1", api_key=KEY) as client:
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


def test_langchain_sends_only_what_is_new(house: House) -> None:
    chat = pytest.importorskip("langchain_openai").ChatOpenAI
    model = chat(
        model=DEMO_MODEL_ID, base_url=f"{house.url}/v1", api_key=KEY, temperature=0, max_tokens=20,
        use_previous_response_id=True,
    )  # fmt: skip
    messages: list[Any] = [("user", LONG)]
    first = model.invoke(messages)
    second = model.invoke([*messages, first, ("user", "Why?")])
    usage = second.usage_metadata
    assert usage["input_tokens"] > first.usage_metadata["total_tokens"]
    assert usage["input_token_details"]["cache_read"] > 0


def test_pydantic_ai_sends_only_what_is_new(house: House) -> None:
    ai = pytest.importorskip("pydantic_ai")
    models = pytest.importorskip("pydantic_ai.models.openai")
    providers = pytest.importorskip("pydantic_ai.providers.openai")
    provider = providers.OpenAIProvider(base_url=f"{house.url}/v1", api_key=KEY)
    model = models.OpenAIResponsesModel(DEMO_MODEL_ID, provider=provider)
    settings = {"max_tokens": 20, "temperature": 0.0, "openai_previous_response_id": "auto"}
    agent = ai.Agent(model, model_settings=settings)
    first = agent.run_sync(LONG)
    second = agent.run_sync("Why?", message_history=first.all_messages())
    used = second.response.usage
    assert used.input_tokens > first.response.usage.total_tokens and used.cache_read_tokens > 0


def test_anthropic(house: House) -> None:
    anthropic = pytest.importorskip("anthropic")
    asked: dict[str, Any] = {"model": DEMO_MODEL_ID, "max_tokens": 900}
    asked["extra_body"] = {"temperature": 0.0}
    question = {"role": "user", "content": "Where to?"}
    visit = {"name": "go", "description": "Go there.", "input_schema": City.model_json_schema()}
    with anthropic.Anthropic(base_url=house.url, api_key=KEY, max_retries=0) as client:
        create = client.messages.create
        said = create(**asked | {"max_tokens": 20}, system="Be kind.", messages=[question])
        assert said.content[0].text and said.stop_reason in ("end_turn", "max_tokens")
        count = client.messages.count_tokens
        counted = count(model=DEMO_MODEL_ID, system="Be kind.", messages=[question])
        usage = said.usage
        assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens

        tooled = asked | {"tools": [visit], "tool_choice": {"type": "any"}}
        called = create(**tooled, messages=[question])
        assert called.stop_reason == "tool_use"
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": City(**block.input).name}
            for block in called.content
        ]
        messages = [question, {"role": "assistant", "content": called.content}]
        messages.append({"role": "user", "content": results})
        with client.messages.stream(**tooled, messages=messages) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_message()
        assert "input_json" in kinds and kinds[-1] == "message_stop"
        assert all(City(**block.input) for block in final.content)
        assert final.stop_reason == "tool_use" and final.usage.output_tokens

        form = {"format": {"type": "json_schema", "schema": City.model_json_schema()}}
        placed = create(**asked, messages=[question], output_config=form)
        assert City.model_validate_json(placed.content[0].text)
        parsed = client.messages.parse(**asked, messages=[question], output_format=Weather)
        assert isinstance(parsed.parsed_output, Weather)
        with client.messages.stream(**asked | {"max_tokens": 9}, messages=[question]) as stream:
            text = "".join(stream.text_stream)
            assert text == stream.get_final_text()
        with pytest.raises(anthropic.NotFoundError) as caught:
            create(**asked | {"model": "gpt-x"}, messages=[question])
        assert caught.value.body["error"]["type"] == "not_found_error"
        assert caught.value.request_id
