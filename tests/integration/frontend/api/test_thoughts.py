"""What a model thinks comes apart from what it says."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from services.frontend.api.text.replies import ReplyOfChoice
from services.frontend.core.replies.choice import Piece
from services.frontend.core.replies.thoughts import FAMILIES
from services.frontend.core.sessions.response_items import items_of, messages_of
from services.frontend.core.tools import Said
from services.frontend.prepare.messages import chat_messages
from services.frontend.prepare.reading import Reading
from services.frontend.prepare.requests import Conversation
from services.frontend.prepare.template import template_options
from shared.errors import InvalidRequest
from shared.wire.grammar import byte_tokenizer, compiled
from tests.conftest import Server
from tests.integration.frontend.api.test_responses import CALL, WEATHER
from tests.integration.frontend.deployment import MODEL, Deployment, Reply, deployment

Servers = tuple[Server, Server, Path]
HI: Any = [{"role": "user", "content": "Hi"}]
TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": {}}}
THINKS = "<think>\nhm, so\n</think>\n\nYes."


def with_deployment(
    scenario: Callable[[Deployment], Awaitable[None]],
    servers: Servers,
    text: str = THINKS,
    parser: str = "qwen3",
) -> None:
    async def run() -> None:
        reply = Reply(text)
        async with deployment(*servers, lambda _: reply, reasoning_parser=parser) as it:
            await scenario(it)

    asyncio.run(run())


@pytest.fixture
def servers(nats_server: Server, redis_server: Server, tmp_path: Path) -> Servers:
    return nats_server, redis_server, tmp_path


async def ask(it: Deployment, **fields: Any) -> Any:
    extra = {
        name: fields.pop(name)
        for name in ("include_reasoning", "separate_reasoning")
        if name in fields
    }
    return await it.openai.chat.completions.create(
        model=MODEL, messages=HI, extra_body=extra, **fields
    )


def test_they_come_apart(servers: Servers) -> None:
    async def scenario(it: Deployment) -> None:
        whole = await ask(it, n=2)
        for choice in whole.choices:
            message = choice.message
            assert (message.content, message.reasoning_content) == ("Yes.", "hm, so")
        thoughts = len("<think>\nhm, so\n</think>")
        assert whole.usage.completion_tokens_details.reasoning_tokens == 2 * thoughts
        deltas = [chunk async for chunk in await ask(it, stream=True)]
        told = [chunk.choices[0].delta for chunk in deltas]
        assert "".join(getattr(d, "reasoning_content", "") for d in told) == "hm, so"
        assert "".join(d.content or "" for d in told) == "Yes."
        assert all(d.content is None for d in told if hasattr(d, "reasoning_content"))

        hidden = await ask(it, include_reasoning=False)
        assert hidden.choices[0].message.content == "Yes."
        assert not hasattr(hidden.choices[0].message, "reasoning_content")
        together = await ask(it, separate_reasoning=False)
        assert together.choices[0].message.content == THINKS
        assert together.usage.completion_tokens_details is None

    with_deployment(scenario, servers)


def test_who_does_not_think_says_all(servers: Servers) -> None:
    async def scenario(it: Deployment) -> None:
        message = (await ask(it)).choices[0].message
        assert (message.content, message.reasoning_content) == ("Yes <think>", None)

    with_deployment(scenario, servers, "Yes <think>")


@pytest.mark.parametrize("parser", ["auto", "none"])
def test_nobody_tells_them_apart_in_a_model_without(servers: Servers, parser: str) -> None:
    async def scenario(it: Deployment) -> None:
        message = (await ask(it)).choices[0].message
        assert message.content == THINKS and not hasattr(message, "reasoning_content")

    with_deployment(scenario, servers, parser=parser)


def test_thoughts_that_were_cut_off_are_thoughts(servers: Servers) -> None:
    async def scenario(it: Deployment) -> None:
        (choice,) = (await ask(it, max_tokens=3)).choices
        assert choice.finish_reason == "length"
        assert (choice.message.content, choice.message.reasoning_content) == ("", "hm,")

    with_deployment(scenario, servers, "hm, so</think>Yes", "deepseek_r1")


def test_a_call_behind_thoughts(servers: Servers) -> None:
    async def scenario(it: Deployment) -> None:
        (choice,) = (await ask(it, tools=[TOOL])).choices
        assert choice.finish_reason == "tool_calls" and choice.message.content is None
        assert choice.message.reasoning_content == 'a <tool_call>{"name": "weather"}'
        (call,) = choice.message.tool_calls
        assert (call.function.name, call.function.arguments) == ("weather", '{"city": "Oslo"}')

    reply = f'<think>a <tool_call>{{"name": "weather"}}</think>{CALL}'
    with_deployment(scenario, servers, reply)


def test_a_response_has_them_as_an_item(servers: Servers) -> None:
    async def scenario(it: Deployment) -> None:
        async with it.openai.responses.stream(model=MODEL, input="Hi", tools=[WEATHER]) as events:
            seen: list[Any] = [event async for event in events]
            final: Any = await events.get_final_response()
        assert [item.type for item in final.output] == ["reasoning", "message"]
        thoughts, said = final.output
        assert thoughts.content[0].text == "hm, so" and said.content[0].text == "Yes."
        assert final.usage.output_tokens_details.reasoning_tokens > 0
        kinds = [event.type for event in seen if not event.type.endswith("delta")]
        assert kinds == [
            "response.created", "response.in_progress",
            "response.output_item.added", "response.content_part.added",
            "response.reasoning_text.done", "response.content_part.done",
            "response.output_item.done",
            "response.output_item.added", "response.content_part.added",
            "response.output_text.done", "response.content_part.done",
            "response.output_item.done", "response.completed",
        ]  # fmt: skip
        more = await it.openai.responses.create(
            model=MODEL, input="And?", previous_response_id=final.id, reasoning={"effort": "none"}
        )
        assert more.reasoning is not None and more.reasoning.effort == "none"

    with_deployment(scenario, servers)


@pytest.mark.parametrize("parser", ["qwen3", "deepseek_r1"])
def test_forms_hold_what_is_said(servers: Servers, parser: str) -> None:
    tokens = byte_tokenizer()

    def takes(grammar: str, text: str) -> bool:
        matcher, flaw = compiled(grammar, tokens)
        assert matcher is not None, flaw
        taken = all(matcher.consume_token(byte) for byte in text.encode())
        return taken and matcher.is_accepting()

    async def scenario(it: Deployment) -> None:
        city = {"type": "json_schema", "json_schema": {"name": "c", "schema": {"enum": ["Oslo"]}}}
        thoughts = "hm { } <b>\n</think>\n\n"
        for fields, said in (
            ({"response_format": city}, '"Oslo"'),
            ({"tools": [TOOL], "tool_choice": "required"}, '<tool_call>\n{"name": "weather", '
             '"arguments": {}}\n</tool_call>'),
        ):  # fmt: skip
            await ask(it, **fields)
            grammar = it.fake.prompts[-1].sampling.grammar
            within = parser == "deepseek_r1"
            assert takes(grammar, said) is not within
            assert takes(grammar, thoughts + said) is within
            assert takes(grammar, f"<think>\n{thoughts}{said}") or within
            assert not takes(grammar, f" {said}"), "space is a form's only behind thoughts"
            assert not takes(grammar, f"{said}{said}x")

    with_deployment(scenario, servers, parser=parser)


def options(effort: str, *names: str) -> dict[str, Any]:
    return template_options(Conversation(messages=HI, effort=effort), frozenset(names))


def test_how_much_is_thought_is_said_in_the_templates_words() -> None:
    both = options("none", "reasoning_effort", "enable_thinking")
    assert (both["reasoning_effort"], both["enable_thinking"]) == ("none", False)
    assert options("low", "enable_thinking")["enable_thinking"] is True
    assert options("none", "enable_thinking")["enable_thinking"] is False
    assert options("high") == options("medium"), "it refuses nothing"
    chat = Conversation(messages=HI, effort="none", variables={"enable_thinking": True})
    assert template_options(chat, frozenset({"enable_thinking"}))["enable_thinking"] is True


def test_who_does_not_think_may_be_told_not_to() -> None:
    chat = Conversation(messages=HI, variables={"enable_thinking": False})
    assert "enable_thinking" not in template_options(chat, frozenset())
    assert template_options(chat, frozenset({"enable_thinking"}))["enable_thinking"] is False
    for other in ({"enable_thinking": True}, {"enable_thinking": 0}, {"thinking": False}):
        with pytest.raises(InvalidRequest):
            template_options(Conversation(messages=HI, variables=other), frozenset())


def test_history_keeps_them_for_templates() -> None:
    told = [{"role": "assistant", "content": "Yes.", "reasoning_content": "hm"}]
    assert chat_messages(told) == told
    renamed: list[dict[str, Any]] = [{"role": "assistant", "content": "Yes.", "reasoning": "hm"}]
    assert chat_messages(renamed) == told
    assert chat_messages([{**told[0], "role": "user"}]) == [{"role": "user", "content": "Yes."}]

    thought = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]}
    said = {"role": "assistant", "content": "Yes."}
    called = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    assert messages_of(items_of([thought, said])) == told
    (calling,) = messages_of([thought, called])
    assert calling["reasoning_content"] == "hm" and len(calling["tool_calls"]) == 1
    assert messages_of([*items_of("Hi"), thought]) == [{"role": "user", "content": "Hi"}]
    assert messages_of([{"type": "reasoning", "summary": []}, said]) == [said]


def test_a_message_has_them_as_a_block_where_asked(servers: Servers) -> None:
    asked: Any = {"model": MODEL, "max_tokens": 99, "messages": HI}

    async def scenario(it: Deployment) -> None:
        async def blocks(**fields: Any) -> list[Any]:
            answer = await it.http.post("/v1/messages", json={**asked, **fields})
            assert answer.status_code == 200, answer.text
            told: list[Any] = answer.json()["content"]
            return told

        said = {"type": "text", "text": "Yes."}
        thought = {"type": "thinking", "thinking": "hm, so", "signature": ""}
        enabled = {"type": "enabled", "budget_tokens": 1024}
        assert await blocks() == await blocks(thinking={"type": "disabled"}) == [said]
        assert await blocks(thinking=enabled) == [thought, said]
        assert await blocks(thinking={"type": "adaptive", "display": "omitted"}) == [said]
        history = [*HI, {"role": "assistant", "content": [thought, said]}, *HI]
        assert await blocks(messages=history) == [said]

        streamed = await it.http.post(
            "/v1/messages", json={**asked, "thinking": enabled, "stream": True}
        )
        events = [
            json.loads(line.removeprefix("data: "))
            for line in streamed.text.splitlines()
            if line.startswith("data: ")
        ]
        deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
        thoughts = [delta["thinking"] for delta in deltas if delta["type"] == "thinking_delta"]
        texts = [delta["text"] for delta in deltas if delta["type"] == "text_delta"]
        assert ("".join(thoughts), "".join(texts)) == ("hm, so", "Yes.")
        starts = [event for event in events if event["type"] == "content_block_start"]
        assert [start["content_block"]["type"] for start in starts] == ["thinking", "text"]

    with_deployment(scenario, servers)


@pytest.mark.parametrize(
    ("prefill", "told"),
    [
        ("Sure, here", ("so</think>Yes", None)),
        ("<think>hm", ("Yes", "so")),
        ("<think>hm</think>", ("so</think>Yes", None)),
    ],
)
def test_a_reply_that_goes_on_is_within_if_its_message_is(
    servers: Servers, prefill: str, told: tuple[str, str | None]
) -> None:
    async def scenario(it: Deployment) -> None:
        body = {
            "model": MODEL, "messages": [*HI, {"role": "assistant", "content": prefill}],
            "continue_final_message": True, "add_generation_prompt": False,
        }  # fmt: skip
        answer = (await it.http.post("/v1/chat/completions", json=body)).json()
        message = answer["choices"][0]["message"]
        assert (message["content"], message["reasoning_content"]) == told

    with_deployment(scenario, servers, "so</think>Yes", "deepseek_r1")


def test_tokens_of_thoughts_that_come_in_one_piece_count() -> None:
    reply = ReplyOfChoice(Reading(thinking=FAMILIES["qwen3"]))
    told = list(reply.take(Piece(0, "<think>\n\n</think>\n\nHi", tokens=[1, 2, 3, 4])))
    assert told == [Said("Hi")] and reply.num_thought_tokens == 4
    list(reply.take(Piece(0, "!", tokens=[5])))
    assert reply.num_thought_tokens == 4
