"""A body is seen by its edge's first stage alone; what prepares turns sees requests."""

import ast
import asyncio
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import FrameType
from typing import Any, cast

import orjson
import pytest

from cli.base.children import ROOT
from services.frontend.api.anthropic.chats import message_request
from services.frontend.api.bodies.anthropic import MessagesBody
from services.frontend.api.bodies.fields import parse
from services.frontend.api.bodies.responses import ResponsesBody
from services.frontend.api.bodies.text import ChatBody
from services.frontend.api.responses.chats import response_chat
from services.frontend.api.responses.tools import read_tools
from services.frontend.api.text.chat import open_chat
from services.frontend.api.text.requests import chat_request
from services.frontend.app import App
from services.frontend.core.sessions.stored_responses import Past
from services.frontend.http.request import Origin
from services.frontend.prepare.requests import SamplingRequest

FRONTEND = ROOT / "services" / "frontend"
FIRST_STAGE = {
    "api/text/requests.py", "api/text/structure.py", "api/text/writing.py",
    "api/responses/chats.py", "api/anthropic/chats.py",
}  # fmt: skip
OF_TEXT = {
    "ChatBody", "CompletionBody", "ResponsesBody", "MessagesBody", "CountTokensBody", "Generate",
    "Sampled", "Streamable", "ReadResponsesBody",
}  # fmt: skip
EDGES = {
    "api/nats.py", "api/responses/create.py", "api/responses/opening.py",
    "api/responses/compact.py", "api/anthropic/create.py", "api/text/chat.py",
    "api/text/completions.py", "api/text/delivery.py", "api/text/tokenize.py",
}  # fmt: skip
CALLS_MAX = 10  # that get a chat's body, each of which gives it back
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


class NoModels:
    """An app that is asked for a model when all of the body was read, and has none."""

    class adapters:  # noqa: N801
        @staticmethod
        async def model(*_: object) -> None:
            raise LookupError


def takers(file: Path) -> Iterator[str]:
    """Functions that take a body of text."""
    for node in ast.walk(ast.parse(file.read_text())):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for arg in (*node.args.args, *node.args.kwonlyargs):
            names = {n.id for n in ast.walk(arg.annotation or arg) if isinstance(n, ast.Name)}
            if names & OF_TEXT:
                yield node.name


def test_nothing_behind_the_first_stage_knows_bodies() -> None:
    for file in (FRONTEND / "prepare").rglob("*.py"):
        assert "services.frontend.api" not in file.read_text(), f"{file.name} looks back"


def test_only_edges_and_their_first_stage_take_a_body() -> None:
    takers_by_file: dict[str, list[str]] = {}
    for file in FRONTEND.rglob("*.py"):
        if names := list(takers(file)):
            takers_by_file[str(file.relative_to(FRONTEND))] = names
    for where, names in takers_by_file.items():
        assert where in FIRST_STAGE or where in EDGES, f"{where}: {names} take a body of text"
    assert takers_by_file["api/text/chat.py"] == ["open_chat"]


def test_a_chats_body_is_handed_on_a_few_times_and_then_over() -> None:
    """Counted as it happens: every call that has the body among its arguments."""
    body = parse(ChatBody, orjson.dumps(CHAT | {"response_format": {"type": "json_object"}}))
    seen: dict[FrameType, str] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        args = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        is_ours = str(FRONTEND) in code.co_filename
        if event == "call" and is_ours and any(frame.f_locals.get(arg) is body for arg in args):
            seen.setdefault(frame, code.co_name)

    sys.setprofile(note)
    try:
        with pytest.raises(LookupError):
            asyncio.run(open_chat(cast(App, NoModels()), body, Origin()))
    finally:
        sys.setprofile(None)
    assert next(iter(seen.values())) == "open_chat"
    assert len(seen) <= CALLS_MAX, [*seen.values()]


def test_every_field_of_sampling_reaches_the_request() -> None:
    given: dict[str, Any] = {
        "temperature": 0.5, "top_p": 0.5, "top_k": 5, "min_p": 0.5, "repetition_penalty": 2,
        "presence_penalty": 1, "frequency_penalty": 1, "logit_bias": {"1": 2}, "seed": 7,
        "allowed_token_ids": [1], "stop_token_ids": [2], "ignore_eos": True, "min_tokens": 3,
        "logprobs": True, "top_logprobs": 4, "prompt_logprobs": 5,
    }  # fmt: skip
    body = parse(ChatBody, orjson.dumps(CHAT | given))
    made = chat_request(body, Origin()).generation.sampling
    assert made == SamplingRequest(
        **{n: v for n, v in given.items() if n not in {"logprobs", "top_logprobs"}}, logprobs=4
    )
    unset = {each.name for each in fields(made) if getattr(made, each.name) == each.default}
    assert not unset, unset


def test_fields_that_an_api_does_not_have_reach_nothing() -> None:
    given = {"stop_token_ids": [1], "min_tokens": 3, "max_tokens": 9, "allowed_token_ids": [2]}
    body = parse(MessagesBody, orjson.dumps(CHAT | given))
    assert message_request(body, Origin()).generation.sampling == SamplingRequest()


def test_templates_get_the_same_messages_and_tools_from_every_api() -> None:
    function = {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}
    chat = parse(
        ChatBody, orjson.dumps(CHAT | {"tools": [{"type": "function", "function": function}]})
    )
    items = [{"role": "user", "content": "hi"}]
    response = parse(
        ResponsesBody, orjson.dumps({"input": items, "tools": [{"type": "function"} | function]})
    )
    client_tool = {"name": "f", "description": "d", "input_schema": {"type": "object"}}
    message = parse(
        MessagesBody,
        orjson.dumps(CHAT | {"max_tokens": 1, "tools": [client_tool | {"strict": True}]}),
    )
    requests = (
        chat_request(chat, Origin()),
        response_chat(response, items, Past(None), Origin(), read_tools(response.tools or [])),
        message_request(message, Origin()),
    )
    first, *others = requests
    for other in others:
        assert other.conversation.messages == first.conversation.messages
        assert other.conversation.tools == first.conversation.tools
        assert other.tools == first.tools
    assert first.conversation.tools[0]["function"].keys() == {"name", "description", "parameters"}
