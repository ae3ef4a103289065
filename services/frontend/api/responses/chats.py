"""A request for a response, as a request for a chat."""

from dataclasses import dataclass, replace
from typing import Any

from services.frontend.api.bodies.base import unsupported
from services.frontend.api.bodies.responses import ResponsesBody
from services.frontend.api.bodies.text import stop_strings
from services.frontend.api.responses.tools import ResponseTools, Warned, choose
from services.frontend.api.text.requests import json_format, shared_request, template_tools
from services.frontend.api.text.structure import format_structure
from services.frontend.core.replies.choice import TextRules
from services.frontend.core.sessions.response_items import HOSTED, kind_of, messages_of, plain
from services.frontend.core.sessions.stored_responses import Past
from services.frontend.http.request import Origin
from services.frontend.prepare.messages import chat_messages
from services.frontend.prepare.requests import ChatRequest, Conversation, Truncation
from shared.errors import InvalidRequest

OWN_WORDS = {
    "response_format": "text.format",
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "truncate_prompt_tokens": "truncation",
    "reasoning_effort": "reasoning",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseForm:
    """What a response's answer repeats of its body, and how it is made.

    Attributes:
        given: items of its input, as they are kept.
        past: what it goes on from.
        num_top: of log-probabilities; None: there are none.
        tools: that the reply may call.
        warnings: what of the request was left out.
    """

    past: Past
    given: list[Any]
    is_background: bool
    is_stored: bool
    is_streamed: bool
    num_top: int | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, Any]
    is_parallel: bool
    effort: str | None
    text: dict[str, Any]
    tool_choice: Any
    tools: ResponseTools
    truncation: str
    warnings: list[Warned]


def response_form(
    body: ResponsesBody, items: list[Any], past: Past, tools: ResponseTools
) -> ResponseForm:
    """By a body whose items were taken by `response_chat`."""
    left_out = [
        Warned(f"input[{at}]", "item_left_out", f"{kind_of(item)}: hosted tools are not served")
        for at, item in enumerate(items)
        if kind_of(item) in HOSTED
    ]
    return ResponseForm(
        past=past,
        given=[kept for item in items if (kept := plain(item)) is not None],
        is_background=bool(body.background),
        is_stored=body.store is not False,
        is_streamed=bool(body.stream),
        num_top=body.num_top,
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        metadata=body.metadata or {},
        is_parallel=body.parallel_tool_calls is not False,
        effort=None if body.reasoning is None else body.reasoning.effort,
        text=body.text or {"format": {"type": "text"}},
        tool_choice="auto" if body.tool_choice is None else body.tool_choice,
        tools=tools,
        truncation=body.truncation or "disabled",
        warnings=[*tools.warnings, *left_out],
    )


def response_chat(
    body: ResponsesBody, items: list[Any], past: Past, origin: Origin, tools: ResponseTools
) -> ChatRequest:
    """What a body asks for.

    Args:
        items: of its input.
        past: what it goes on from; its session is the chat's.

    Raises:
        InvalidRequest: it is impossible whatever model serves it, in the words of chats.
    """
    messages = messages_of(items, body.instructions, past.items)
    shared = shared_request(body, origin, past.session_id)
    return ChatRequest(
        replace(
            shared,
            sampling=replace(shared.sampling, logprobs=body.num_top),
            rules=TextRules(stop=stop_strings(body.stop)),
            structure=format_structure(_response_format(body.text)),
            max_tokens=body.max_output_tokens,
            truncation=Truncation(keep=-1) if body.truncation == "auto" else None,
        ),
        Conversation(
            messages=chat_messages(messages),
            tools=template_tools(tools.functions),
            variables=body.chat_template_kwargs or {},
            effort=None if body.reasoning is None else body.reasoning.effort,
            verbosity=_verbosity(body.text),
        ),
        choose(tools, body.tool_choice, body.parallel_tool_calls),
    )


def _verbosity(text: dict[str, Any] | None) -> str | None:
    given = (text or {}).get("verbosity")
    return given if isinstance(given, str) else None


def _response_format(text: dict[str, Any] | None) -> dict[str, Any] | None:
    given = (text or {}).get("format")
    if given is None:
        return None
    if not isinstance(given, dict):
        raise InvalidRequest("text.format: give an object", "text.format")
    match given.get("type"):
        case "text" | "json_object":
            return given
        case "json_schema":
            return json_format(given, "text.format")
        case kind:
            served = f"its type {str(kind)[:40]!r} is none of text, json_object, json_schema"
            raise unsupported("text.format", served)
