"""`/v1/responses` by the official client: whole, streamed, with tools and with a form."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from shared.wire import messages as m
from shared.wire.grammar import byte_tokenizer, flaw_of
from tests.conftest import Server
from tests.integration.frontend.api.strict import events_of
from tests.integration.frontend.deployment import MODEL, MODEL_LEN, Deployment, Reply, deployment

WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'


def with_deployment(
    scenario: Callable[[Deployment], Awaitable[None]], reply: Reply, *servers: Any
) -> None:
    nats_server, redis_server, folder = servers

    async def run() -> None:
        async with deployment(nats_server, redis_server, folder, lambda _: reply) as it:
            await scenario(it)

    asyncio.run(run())


def asked(it: Deployment, at: int = -1) -> str:
    return bytes(t for t in m.unpack_ints(it.fake.prompts[at].tokens) if t < 256).decode()


def test_a_response_is_a_message(nats_server: Server, redis_server: Server, tmp_path: Path) -> None:
    async def scenario(it: Deployment) -> None:
        whole: Any = await it.openai.responses.create(
            model=MODEL, input="Hi", instructions="Be kind.", metadata={"a": "b"}
        )
        assert (whole.status, whole.output_text, whole.error) == ("completed", "hello", None)
        (item,) = whole.output
        assert (item.type, item.status) == ("message", "completed")
        assert whole.usage is not None and whole.usage.input_tokens_details.cached_tokens == 3
        assert whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens
        assert (whole.instructions, whole.metadata, whole.store) == ("Be kind.", {"a": "b"}, True)
        assert asked(it) == "system\nBe kind.\nuser\nHi\nassistant\n"

        cut: Any = await it.openai.responses.create(model=MODEL, input="Hi", max_output_tokens=2)
        assert (cut.status, cut.output_text) == ("incomplete", "he")
        assert cut.output[0].status == "incomplete"
        assert cut.incomplete_details is not None
        assert cut.incomplete_details.reason == "max_output_tokens"

        stop = {"stop": "ll"}
        ended: Any = await it.openai.responses.create(model=MODEL, input="Hi", extra_body=stop)
        assert (ended.status, ended.output_text) == ("completed", "he")

        long: Any = await it.openai.responses.create(
            model=MODEL, input="Hi" * 1000, truncation="auto"
        )
        assert (long.output_text, long.usage.input_tokens) == ("hello", MODEL_LEN - MODEL_LEN // 8)

        async with it.openai.responses.stream(model=MODEL, input="Hi") as events:
            seen: list[Any] = [event async for event in events]
            final: Any = await events.get_final_response()
        assert final.output_text == "hello" and final.usage is not None
        kinds = [event.type for event in seen if event.type != "response.output_text.delta"]
        assert kinds == [
            "response.created", "response.in_progress", "response.output_item.added",
            "response.content_part.added", "response.output_text.done",
            "response.content_part.done", "response.output_item.done", "response.completed",
        ]  # fmt: skip
        numbers = [event.sequence_number for event in seen]
        assert numbers == list(range(len(seen)))

    with_deployment(scenario, Reply("hello"), nats_server, redis_server, tmp_path)


def test_log_probabilities_of_what_is_said(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    asked_for: Any = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    said = "Let me see. "

    def text_of(entries: list[Any]) -> str:
        return "".join(entry.token for entry in entries)

    async def scenario(it: Deployment) -> None:
        ask = it.openai.responses
        whole: Any = await ask.create(model=MODEL, input="Hi", tools=[WEATHER], **asked_for)
        assert whole.top_logprobs == 2
        entries = whole.output[0].content[0].logprobs
        assert text_of(entries).startswith(said.strip()) and "<" not in text_of(entries)
        assert all(len(entry.top_logprobs) == 2 and entry.logprob <= 0 for entry in entries)
        stored: Any = await ask.retrieve(whole.id)
        assert stored.output[0].content[0].logprobs == [], "many times the text: told once"

        alone: Any = await ask.create(model=MODEL, input="Hi", top_logprobs=1)
        assert len(alone.output[0].content[0].logprobs[0].top_logprobs) == 1
        without: Any = await ask.create(model=MODEL, input="Hi", top_logprobs=0)
        assert without.output[0].content[0].logprobs == []

        async with ask.stream(model=MODEL, input="Hi", tools=[WEATHER], **asked_for) as events:
            seen: list[Any] = [event async for event in events]
            final: Any = await events.get_final_response()
        streamed = [
            entry
            for event in seen
            if event.type == "response.output_text.delta"
            for entry in event.logprobs
        ]
        (done,) = [event for event in seen if event.type == "response.output_text.done"]
        assert text_of(streamed) == text_of(done.logprobs) == text_of(entries)
        assert text_of(final.output[0].content[0].logprobs) == text_of(entries)

        with pytest.raises(openai.BadRequestError, match="include"):
            await ask.create(model=MODEL, input="Hi", include=["all"])  # type: ignore[list-item]

    with_deployment(scenario, Reply(said + CALL), nats_server, redis_server, tmp_path)


def test_calls_and_their_answers(nats_server: Server, redis_server: Server, tmp_path: Path) -> None:
    async def scenario(it: Deployment) -> None:
        ask = it.openai.responses
        extra = {"session_id": "s"}
        first: Any = await ask.create(model=MODEL, input="Hi", tools=[WEATHER], extra_body=extra)
        (call,) = first.output
        assert call.type == "function_call"
        assert (call.name, call.arguments) == ("weather", '{"city": "Oslo"}')
        answer: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
        items: list[Any] = [{"role": "user", "content": "Hi"}]
        items += [item.model_dump(exclude_none=True) for item in first.output]
        await ask.create(model=MODEL, input=[*items, answer], tools=[WEATHER], extra_body=extra)
        before, after = (m.unpack_ints(prompt.tokens) for prompt in it.fake.prompts)
        said = [*before, *CALL.encode()]
        assert after[: len(said)] == said, "the session goes on"
        assert asked(it).endswith("\ntool\nrain\nassistant\n")

        choice: Any = {"type": "function", "name": "weather"}
        await ask.create(model=MODEL, input="Hi", tools=[WEATHER], tool_choice=choice)
        grammar = it.fake.prompts[-1].sampling.grammar
        assert grammar and not flaw_of(grammar, byte_tokenizer())

    with_deployment(scenario, Reply(CALL), nats_server, redis_server, tmp_path)


def test_a_call_behind_a_message(nats_server: Server, redis_server: Server, tmp_path: Path) -> None:
    async def scenario(it: Deployment) -> None:
        ask = it.openai.responses
        async with ask.stream(model=MODEL, input="Hi", tools=[WEATHER]) as events:
            seen = [event.type async for event in events]
            final: Any = await events.get_final_response()
        assert [item.type for item in final.output] == ["message", "function_call"]
        assert final.output_text == "Let me see."
        assert "response.function_call_arguments.delta" in seen
        assert seen.index("response.output_text.done") < seen.index(
            "response.function_call_arguments.done"
        )

    text = f"Let me see. {CALL}"
    with_deployment(scenario, Reply(text), nats_server, redis_server, tmp_path)


class Point(BaseModel):
    x: int


def test_a_response_has_the_form_that_is_asked_for(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario(it: Deployment) -> None:
        parsed: Any = await it.openai.responses.parse(model=MODEL, input="Hi", text_format=Point)
        assert parsed.output_parsed == Point(x=7)
        grammar = it.fake.prompts[-1].sampling.grammar
        assert '"x"' in grammar and not flaw_of(grammar, byte_tokenizer())

    with_deployment(scenario, Reply('{"x": 7}'), nats_server, redis_server, tmp_path)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"input": ""}, "input"),
    ({"input": []}, "input"),
    ({"input": 7}, "input"),
    ({"input": ["Hi"]}, "input[0]"),
    ({"input": [{"role": "robot", "content": "Hi"}]}, "input[0]"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].id"),
    ({"input": [{"id": "msg_" + "a" * 52}]}, "input[0].id"),
    ({"input": [{"type": "item_reference", "id": "msg_" + "a" * 48}]}, "input[0].id"),
    (
        {"input": [{"type": "compaction", "encrypted_content": "eA=="}]},
        "input[0].encrypted_content",
    ),
    ({"input": [{"type": "custom_tool_call", "call_id": "c", "name": "f"}]}, "input[0]"),
    ({"input": [{"type": "teapot"}]}, "input[0].type"),
    ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
    ({"input": [{"type": "function_call", "call_id": "c", "name": "f"}]}, "input[0]"),
    ({"input": [{"type": "reasoning"}]}, "input"),
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"previous_response_id": "resp_" + "a" * 48}, "previous_response_id"),
    ({"previous_response_id": "resp_1", "conversation": "conv_1"}, "conversation"),
    ({"previous_response_id": 7}, "previous_response_id"),
    ({"store": "yes"}, "store"),
    ({"conversation": 7}, "conversation"),
    ({"background": True, "store": False}, "background"),
    ({"text": {"format": {"type": "xml"}}}, "text.format"),
    ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
    ({"text": {"format": 7}}, "text.format"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"tool_choice": "sometimes"}, "tool_choice"),
    ({"input": "Hi" * 1000}, "input"),
    ({"text": {"format": {"type": "json_schema", "schema": {"not": {}}}}}, "text.format"),
    ({"truncation": "middle"}, "truncation"),
]


def test_what_is_wrong_is_named(nats_server: Server, redis_server: Server, tmp_path: Path) -> None:
    async def scenario(it: Deployment) -> None:
        for fields, param in BAD:
            body = {"model": MODEL, "input": "Hi", **fields}
            answer = await it.http.post("/v1/responses", json=body)
            assert answer.status_code == 400, (fields, answer.text)
            assert answer.json()["error"]["param"] == param, (fields, answer.text)

    with_deployment(scenario, Reply(), nats_server, redis_server, tmp_path)


def test_a_failure_on_the_way_is_an_event(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario(it: Deployment) -> None:
        async with it.openai.responses.stream(model=MODEL, input="Hi") as events:
            seen = [event async for event in events]
        last: Any = seen[-1]
        assert (last.type, last.response.status) == ("response.failed", "failed")
        error = last.response.error.to_dict()
        assert (error["code"], error["reason"]) == ("server_error", "worker_broke")
        assert last.response.store is False and last.response.output[0].status == "incomplete"
        with pytest.raises(openai.APIStatusError):
            await it.openai.responses.create(model=MODEL, input="Hi")
        body = {"model": MODEL, "input": "Hi", "stream": True}
        answer = await it.http.post("/v1/responses", json=body)
        assert events_of(answer.text)[-1]["type"] == "response.failed"
        for method, path, status in (
            ("POST", "teapot", 404), ("GET", "teapot/cups", 404), ("POST", "a/b/c", 404),
            ("PATCH", "teapot", 405), ("POST", "resp_" + "a" * 48, 405),
        ):  # fmt: skip
            answer = await it.http.request(method, f"/v1/responses/{path}", json={})
            assert answer.status_code == status, (method, path, answer.text)

    with_deployment(scenario, Reply(error_at=2), nats_server, redis_server, tmp_path)
