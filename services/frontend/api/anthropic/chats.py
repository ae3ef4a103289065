"""A request for a message, as a request for a chat."""

from dataclasses import replace
from typing import Any

from services.frontend.api.bodies.anthropic import CountTokensBody, Thinking, ToolChoice
from services.frontend.api.bodies.base import unsupported
from services.frontend.api.bodies.text import ToolFunction, session_of, stop_strings
from services.frontend.api.text.requests import (
    json_format,
    shared_request,
    template_tools,
    tool_request,
)
from services.frontend.api.text.structure import format_structure
from services.frontend.core.message_blocks import messages_of
from services.frontend.core.replies.choice import TextRules
from services.frontend.http.errors import ThreadNotFound
from services.frontend.http.request import Origin
from services.frontend.prepare.messages import chat_messages
from services.frontend.prepare.requests import (
    ChatRequest,
    Conversation,
    ThoughtRequest,
    ToolRequest,
)
from shared.errors import InvalidRequest

UNASKED = Thinking(type="disabled")  # Anthropic's models think where they are asked to


def message_request(body: CountTokensBody, origin: Origin) -> ChatRequest:
    """What a body asks for.

    Raises:
        ThreadNotFound: it has only the latest messages of a conversation.
        InvalidRequest: it is impossible whatever model serves it, in the words of chats.
    """
    conversation, thinking = _conversation(body), body.thinking or UNASKED
    shared = shared_request(body, origin, session_of(body.session_id, origin))
    return ChatRequest(
        replace(
            shared,
            rules=TextRules(stop=stop_strings(body.stop_sequences)),
            structure=format_structure(_response_format(body)),
            max_tokens=body.max_tokens,
        ),
        conversation,
        _tool_request(body),
        ThoughtRequest(is_shown=thinking.is_on and thinking.display != "omitted"),
    )


def counted_conversation(body: CountTokensBody) -> Conversation:
    """What a template writes of a message that is only counted.

    Raises:
        InvalidRequest: as `message_request`, but for what is of no interest here.
    """
    conversation = _conversation(body)
    _tool_request(body)
    _response_format(body)
    return conversation


def _conversation(body: CountTokensBody) -> Conversation:
    if body.thread is not None and body.thread.type == "continue":
        raise ThreadNotFound("thread: conversations are not held here; send all messages", "thread")
    messages = messages_of(body.messages, body.system)
    return Conversation(
        messages=chat_messages(messages),
        tools=template_tools(_functions(body)),
        variables=body.chat_template_kwargs or {},
        effort=_effort(body.output_config),
        thinks=(body.thinking or UNASKED).is_on,
        continue_final=messages[-1]["role"] == "assistant",
    )


def _tool_request(body: CountTokensBody) -> ToolRequest | None:
    choice = body.tool_choice
    is_one = choice is not None and choice.disable_parallel_tool_use
    chosen = None if choice is None else _tool_choice(choice)
    return tool_request(_functions(body), chosen, False if is_one else None)


def own_words(body: CountTokensBody) -> dict[str, str]:
    """Fields of a chat that have another name in this body."""
    return {"response_format": _format_name(body)}


def _functions(body: CountTokensBody) -> list[ToolFunction]:
    return [
        ToolFunction.model_construct(
            name=tool.name,
            description=tool.description,
            parameters=tool.input_schema,
            strict=tool.strict,
        )
        for tool in body.tools or []
    ]


def _tool_choice(choice: ToolChoice) -> Any:
    match choice.type:
        case "any":
            return "required"
        case "tool":
            if choice.name is None:
                raise InvalidRequest("tool_choice.name: give a tool's name", "tool_choice.name")
            return {"type": "function", "function": {"name": choice.name}}
        case kind:
            return kind


def _effort(config: dict[str, Any] | None) -> str | None:
    effort = (config or {}).get("effort")
    if not isinstance(effort, str | None):
        raise InvalidRequest("output_config.effort: give a string", "output_config.effort")
    return effort


def _format_name(body: CountTokensBody) -> str:
    return "output_config.format" if body.output_format is None else "output_format"


def _response_format(body: CountTokensBody) -> dict[str, Any] | None:
    config, name = body.output_config or {}, _format_name(body)
    given = config.get("format")
    if body.output_format is not None:
        if given is not None:
            raise InvalidRequest(f"{name}: not together with output_config.format", name)
        given = body.output_format
    match given:
        case None:
            return None
        case {"type": "json_schema"}:
            return json_format(given, name)
        case _:
            raise unsupported(name, 'give {"type": "json_schema", "schema"}')
