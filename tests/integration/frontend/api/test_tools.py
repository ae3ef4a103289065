"""Chats with tools, by the official client: calls come as calls, whole and streamed."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from services.frontend.rendering.history import ABOUT_TOOLS
from shared.ids import SessionId
from shared.wire import messages as m
from shared.wire.subjects import INFERENCE_SUBMIT
from shared.wire.tracker_shards import left_wire
from tests.conftest import Server
from tests.integration.frontend.deployment import MODEL, Deployment, Reply, deployment
from tests.integration.harness import client_of, eventually

CITY: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER: Any = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
TIME: Any = {"type": "function", "function": {"name": "time", "strict": True}}
ASKED: list[Any] = [{"role": "user", "content": "Hi"}]
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'
OTHER = '<tool_call>{"name": "time"}</tool_call>'


def with_deployment(
    scenario: Callable[[Deployment], Awaitable[None]], reply: Reply, *servers: Any, **settings: Any
) -> None:
    nats_server, redis_server, folder = servers

    async def run() -> None:
        async with deployment(nats_server, redis_server, folder, lambda _: reply, **settings) as it:
            await scenario(it)

    asyncio.run(run())


def test_calls_come_as_calls(nats_server: Server, redis_server: Server, tmp_path: Path) -> None:
    async def scenario(it: Deployment) -> None:
        ask = it.openai.chat.completions
        whole = await ask.create(model=MODEL, messages=ASKED, tools=[WEATHER, TIME], n=2)
        for choice in whole.choices:
            assert choice.finish_reason == "tool_calls"
            assert choice.message.content == "Let me see."
            calls = [call for call in choice.message.tool_calls or [] if call.type == "function"]
            told = [(call.function.name, call.function.arguments) for call in calls]
            assert told == [("weather", '{"city": "Oslo"}'), ("time", "{}")]
            assert len({call.id for call in calls}) == 2
        prompt = bytes(t for t in m.unpack_ints(it.fake.prompts[0].tokens) if t < 256).decode()
        assert prompt.startswith("system\n# Tools\n" + json.dumps(WEATHER))
        assert '"name": "time"}' in prompt, "what is for us alone is not told"

        one = await ask.create(
            model=MODEL, messages=ASKED, tools=[WEATHER, TIME], parallel_tool_calls=False
        )
        assert [call.type for call in one.choices[0].message.tool_calls or []] == ["function"]

        stream = it.openai.chat.completions.stream(
            model=MODEL, messages=ASKED, tools=[WEATHER, TIME], logprobs=True
        )
        async with stream as events:
            final = await events.get_final_completion()
        choice = final.choices[0]
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Let me see.")
        called = choice.message.tool_calls or []
        assert [(c.function.name, c.function.arguments) for c in called] == [
            ("weather", '{"city": "Oslo"}'),
            ("time", "{}"),
        ]
        assert choice.logprobs is not None and choice.logprobs.content is not None
        assert "".join(e.token for e in choice.logprobs.content) == text, "a token is told once"

    text = f"Let me see. {CALL}\n{OTHER}"
    with_deployment(scenario, Reply(text), nats_server, redis_server, tmp_path)


def test_what_tools_answer_goes_on_in_the_session(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario(it: Deployment) -> None:
        left: list[m.AgentTurnLeft] = []
        whose = m.AgentRef(agent="a", workflow_id="w")
        wire, ids = left_wire(m.AgentTurnLeft(agent=whose, session_id=SessionId("s")), 1)
        await it.bus.subscribe(wire, left.append, *ids)
        await it.bus.flush()
        extra = {"session_id": "s", "agent": "a", "workflow_id": "w"}
        ask = it.openai.chat.completions
        first = await ask.create(model=MODEL, messages=ASKED, tools=[WEATHER], extra_body=extra)
        message = first.choices[0].message
        (call,) = message.tool_calls or []
        await eventually(lambda: bool(left))
        assert left[0].tools == ["weather"], "so the tracker knows that it comes back"

        answer = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
        messages: list[Any] = [*ASKED, message.model_dump(exclude_none=True), answer]
        await ask.create(model=MODEL, messages=messages, tools=[WEATHER], extra_body=extra)
        before, after = (m.unpack_ints(prompt.tokens) for prompt in it.fake.prompts)
        said = CALL.encode()
        assert after[: len(before) + len(said)] == [*before, *said], "nothing is tokenized again"
        assert it.fake.prompts[1].num_history >= len(before) + len(said) - 1
        rest = bytes(token for token in after[len(before) + len(said) :] if token < 256)
        assert rest == b"\ntool\nrain\nassistant\n"

    with_deployment(scenario, Reply(CALL), nats_server, redis_server, tmp_path)


@pytest.mark.parametrize(
    ("reply", "fields", "finish"),
    [
        (Reply('<tool_call>{"name": "rm", "arguments": {}}</tool_call>'), {}, "stop"),
        (Reply(CALL), {"tool_choice": "none"}, "stop"),
        (Reply(CALL), {"max_tokens": 15}, "length"),
        (Reply(CALL), {"stop": "weather"}, "stop"),
        (Reply("hello"), {}, "stop"),
    ],
)
def test_what_calls_nothing_is_text(
    nats_server: Server,
    redis_server: Server,
    tmp_path: Path,
    reply: Reply,
    fields: dict[str, Any],
    finish: str,
) -> None:
    async def scenario(it: Deployment) -> None:
        answer = await it.openai.chat.completions.create(
            model=MODEL, messages=ASKED, tools=[WEATHER], **fields
        )
        choice = answer.choices[0]
        assert (choice.finish_reason, choice.message.tool_calls) == (finish, None)
        is_cut_call = "max_tokens" in fields or "stop" in fields
        assert bool(choice.message.content) is not is_cut_call, "no marks of a call that began"
        assert (choice.message.content or "") in reply.text

    with_deployment(scenario, reply, nats_server, redis_server, tmp_path)


def test_a_call_that_is_cut_off_is_no_whole_one(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario(it: Deployment) -> None:
        answer = await it.openai.chat.completions.create(
            model=MODEL, messages=ASKED, tools=[WEATHER], max_tokens=len(CALL) - 20
        )
        choice = answer.choices[0]
        assert choice.finish_reason == "length"
        (call,) = choice.message.tool_calls or []
        assert call.type == "function"
        assert '{"city": "Oslo"}'.startswith(call.function.arguments)
        cut: Any = choice.message.model_dump(exclude_none=True)
        again = await it.openai.chat.completions.create(
            model=MODEL, messages=[*ASKED, cut, *ASKED], tools=[WEATHER]
        )
        assert again.choices[0].message.tool_calls, "and may stand in a history"

    with_deployment(scenario, Reply(CALL), nats_server, redis_server, tmp_path)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"tools": [WEATHER, WEATHER]}, "tools"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [WEATHER], "tool_choice": "sometimes"}, "tool_choice"),
    ({"tools": [WEATHER], "tool_choice": TIME}, "tool_choice"),
    ({"tools": [{**WEATHER, "function": {"name": f"n{at}"}} for at in range(129)]}, "tools"),
    ({"messages": [{"role": "assistant", "tool_calls": {}}, *ASKED]}, ""),
    ({"messages": [{"role": "assistant", "tool_calls": "x"}]}, "messages[0].tool_calls"),
    ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "tool_calls[0].function.name"),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": 1}}]}]},
        "messages[0].tool_calls[0].function.name",
    ),
    (
        {
            "messages": [
                {
                    "role": "assistant",
                    "tool_calls": [{"function": {"name": "f", "arguments": []}}],
                }
            ]
        },
        "messages[0].tool_calls[0].function.arguments",
    ),
]


def test_wrong_tools_are_named(nats_server: Server, redis_server: Server, tmp_path: Path) -> None:
    async def scenario(it: Deployment) -> None:
        for fields, param in BAD:
            body = {"model": MODEL, "messages": ASKED, **fields}
            answer = await it.http.post("/v1/chat/completions", json=body)
            if not param:
                assert answer.status_code == 200, "an empty list of any kind is none"
                continue
            assert answer.status_code == 400, fields
            assert answer.json()["error"]["param"].endswith(param)
        # Deep, long, and numbers that no machine has: as good as any other.
        deep = '{"a":' * 900 + "1" + "}" * 900
        large, long = '{"n": ' + "9" * 300 + "}", '{"x": "' + "y" * 100 + '"}'
        ways: list[Any] = [None, {}, deep, large, long, "[1]", ""]
        calls = [
            {"id": "c", "type": "function", "function": {"name": "weather", "arguments": written}}
            for written in ways
        ]
        empty = {"role": "tool", "content": None, "tool_call_id": "c"}
        body = {"model": MODEL, "messages": [*ASKED, empty], "tools": [WEATHER]}
        assert (await it.http.post("/v1/chat/completions", json=body)).status_code == 200
        for call in calls:
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
            body = {"model": MODEL, "messages": [message, *ASKED], "tools": [WEATHER]}
            answer = await it.http.post("/v1/chat/completions", json=body)
            code = answer.json().get("error", {}).get("code")
            assert code in {None, "context_length_exceeded"}, answer.text

    with_deployment(scenario, Reply(), nats_server, redis_server, tmp_path)


def test_tools_count_in_tokens_and_come_by_nats(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario(it: Deployment) -> None:
        body = {"model": MODEL, "messages": ASKED, "tools": [WEATHER]}
        told = (await it.http.post("/tokenize", json=body)).json()
        payload = orjson.dumps(body)
        reply = await client_of(it.bus).request(INFERENCE_SUBMIT, payload, timeout=20)
        answer = orjson.loads(reply.data)
        assert answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "weather"
        assert answer["usage"]["prompt_tokens"] == told["count"]

    with_deployment(scenario, Reply(CALL), nats_server, redis_server, tmp_path)


def test_a_template_without_tools_is_told_in_words(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario(it: Deployment) -> None:
        ask = it.openai.chat.completions
        first = await ask.create(model=MODEL, messages=ASKED, tools=[WEATHER])
        message = first.choices[0].message
        (call,) = message.tool_calls or []
        assert call.type == "function" and call.function.name == "weather"
        rules: Any = {"role": "system", "content": "Be brief."}
        answer = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
        said: list[Any] = [rules, *ASKED, message.model_dump(exclude_none=True), answer]
        await ask.create(model=MODEL, messages=said, tools=[WEATHER])
        prompts = [bytes(m.unpack_ints(each.tokens)).decode() for each in it.fake.prompts]
        about = f"{ABOUT_TOOLS}\n{json.dumps(WEATHER)}"
        assert prompts == [
            f"system:{about}|user:Hi|",
            f"system:Be brief.\n\n{about}|user:Hi|assistant:{CALL}|tool:rain|",
        ]
        await ask.create(model=MODEL, messages=ASKED)
        assert bytes(m.unpack_ints(it.fake.prompts[2].tokens)) == b"user:Hi|"

    without_tools(tmp_path / "demo")
    with_deployment(scenario, Reply(CALL), nats_server, redis_server, tmp_path)


def without_tools(folder: Path) -> None:
    from services.worker.models.demo_model import make_demo_model

    path = make_demo_model(folder) / "tokenizer_config.json"
    config = orjson.loads(path.read_bytes())
    config["chat_template"] = (
        "{% for message in messages %}{{ message.role }}:{{ message.content }}|{% endfor %}"
    )
    path.write_bytes(orjson.dumps(config))


def test_the_parser_can_be_named(nats_server: Server, redis_server: Server, tmp_path: Path) -> None:
    async def scenario(it: Deployment) -> None:
        answer = await it.openai.chat.completions.create(
            model=MODEL, messages=ASKED, tools=[WEATHER]
        )
        (call,) = answer.choices[0].message.tool_calls or []
        assert call.type == "function" and call.function.arguments == '{"city": "Bergen"}'

    reply = Reply('{"name": "weather", "parameters": {"city": "Bergen"}}')
    with_deployment(scenario, reply, nats_server, redis_server, tmp_path, tool_parser="llama3")
