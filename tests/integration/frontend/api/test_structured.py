"""Replies that are held to a grammar: what workers are told, and what is refused."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from shared.wire.grammar import byte_tokenizer, flaw_of
from tests.conftest import Server
from tests.integration.frontend.deployment import MODEL, Deployment, Reply, deployment

ASKED: list[Any] = [{"role": "user", "content": "Hi"}]
TOOL: Any = {"type": "function", "function": {"name": "now"}}
FORCED: Any = {"type": "function", "function": {"name": "now"}}


def with_deployment(scenario: Callable[[Deployment], Awaitable[None]], *servers: Any) -> None:
    nats_server, redis_server, folder = servers

    async def run() -> None:
        async with deployment(nats_server, redis_server, folder, lambda _: Reply("{}")) as it:
            await scenario(it)

    asyncio.run(run())


def test_workers_are_told_a_grammar_that_can_be_used(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario(it: Deployment) -> None:
        ask = it.openai.chat.completions
        await ask.create(model=MODEL, messages=ASKED)
        await ask.create(model=MODEL, messages=ASKED, response_format={"type": "json_object"})
        await ask.create(model=MODEL, messages=ASKED, tools=[TOOL], tool_choice=FORCED)
        await ask.create(model=MODEL, messages=ASKED, tools=[TOOL], tool_choice="auto")
        await it.openai.completions.create(
            model=MODEL, prompt="Hi", extra_body={"guided_regex": "a+"}
        )
        form: Any = {"type": "json_object"}
        await ask.create(
            model=MODEL, messages=ASKED, tools=[TOOL], tool_choice=FORCED, response_format=form
        )
        tags: Any = {
            "type": "structural_tag",
            "structures": [{"begin": "<f>", "schema": {"type": "integer"}, "end": "</f>"}],
            "triggers": ["<f>"],
        }
        await ask.create(model=MODEL, messages=ASKED, response_format=tags)
        told = [prompt.sampling.grammar for prompt in it.fake.prompts]
        assert [bool(grammar) for grammar in told] == [False, True, True, False, True, True, True]
        assert told[5] == told[2], "what is said has a form, and nothing is said"
        assert not any(flaw_of(grammar, byte_tokenizer()) for grammar in told if grammar)

    with_deployment(scenario, nats_server, redis_server, tmp_path)


def test_a_strict_tool_holds_who_may_call_it(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    """Where calls are marked; else nothing tells them from what is said."""
    strict: Any = {"type": "function", "function": {**TOOL["function"], "strict": True}}
    told: dict[str, list[bool]] = {}

    async def scenario(it: Deployment) -> None:
        for tool in (TOOL, strict):
            for choice in ("auto", "none"):
                await it.openai.chat.completions.create(
                    model=MODEL, messages=ASKED, tools=[tool], tool_choice=choice
                )
        grammars = [prompt.sampling.grammar for prompt in it.fake.prompts]
        told[str(len(told))] = list(map(bool, grammars))
        assert not any(flaw_of(grammar, byte_tokenizer()) for grammar in grammars if grammar)

    async def run(parser: str) -> None:
        folder = tmp_path / parser
        folder.mkdir()
        async with deployment(
            nats_server, redis_server, folder, lambda _: Reply("{}"), tool_parser=parser
        ) as it:
            await scenario(it)

    for parser in ("hermes", "llama3"):
        asyncio.run(run(parser))
    assert list(told.values()) == [[False, False, True, False], [False] * 4]


NO_TOOL: Any = {"type": "function", "function": {"name": "x"}}
NOT: Any = {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"regex": "(a"}, "regex: at 1(8): invalid regex"),
    ({"regex": "((a{1000}){1000}){100}"}, "regex: lexer error: too many expressions"),
    ({"guided_json": {"$ref": "#"}}, "guided_json: "),
    ({"guided_json": '{"items":' * 400 + "{}" + "}" * 400}, "guided_json: "),
    ({"guided_json": {"enum": ["x" * 200_000]}}, "guided_json: more than"),
    ({"response_format": NOT}, "response_format: at #/not: no reply can be held to this"),
    ({"tools": [TOOL], "tool_choice": NO_TOOL}, "tool_choice: no tool is named 'x'"),
    ({"tools": [TOOL], "tool_choice": "sometimes"}, "tool_choice: this value"),
    ({"tool_choice": "required"}, "tool_choice: there are no tools"),
    ({"tools": [TOOL], "tool_choice": "required", "regex": "a"}, "regex: not together"),
]


def test_what_cannot_be_held_to_is_refused_and_says_why(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario(it: Deployment) -> None:
        for fields, says in REFUSED:
            body = {"model": MODEL, "messages": ASKED, **fields}
            reply = await it.http.post("/v1/chat/completions", json=body)
            assert reply.status_code == 400, reply.text
            message = reply.json()["error"]["message"]
            assert says in message and len(message) < 600
        assert not it.fake.submits

    with_deployment(scenario, nats_server, redis_server, tmp_path)
