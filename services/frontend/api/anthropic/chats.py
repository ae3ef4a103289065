"""A request for a message, as a request for a chat."""

from typing import Any

from services.frontend.api.anthropic.bodies import ClientTool, CountTokensBody, Thinking, ToolChoice
from services.frontend.api.bodies import ChatBody, Tool
from services.frontend.api.fields import check, unsupported
from services.frontend.api.text.translation import as_tool, chat_like, json_format
from services.frontend.core.message_blocks import messages_of
from shared.errors import InvalidRequest

UNASKED = Thinking(type="disabled")  # Anthropic's models think where they are asked to
SILENT = {"enable_thinking": False}


def chat_of(body: CountTokensBody) -> ChatBody:
    """What is asked for, in the words of chats.

    Raises:
        InvalidRequest: it cannot be said in those.
    """
    messages = messages_of(body.messages, body.system)
    choice = body.tool_choice
    thinking = body.thinking or UNASKED
    is_silent = thinking.type == "disabled"
    is_one = choice is not None and choice.disable_parallel_tool_use
    return chat_like(
        body,
        messages=messages,
        max_tokens=body.max_tokens,
        stop=body.stop_sequences,
        tools=None if body.tools is None else [_tool(tool) for tool in body.tools],
        tool_choice=None if choice is None else _tool_choice(choice),
        parallel_tool_calls=False if is_one else None,
        response_format=_response_format(body),
        include_reasoning=not is_silent and thinking.display != "omitted",
        continue_final_message=messages[-1]["role"] == "assistant",
        chat_template_kwargs=(SILENT if is_silent else {}) | (body.chat_template_kwargs or {}),
    )


def own_words(body: CountTokensBody) -> dict[str, str]:
    """Fields of a chat that have another name in this body."""
    return {"response_format": _format_name(body)}


def _tool(tool: ClientTool) -> Tool:
    return as_tool(
        name=tool.name,
        description=tool.description,
        parameters=tool.input_schema,
        strict=tool.strict,
    )


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


def _format_name(body: CountTokensBody) -> str:
    return "output_config.format" if body.output_format is None else "output_format"


def _response_format(body: CountTokensBody) -> dict[str, Any] | None:
    config, name = body.output_config or {}, _format_name(body)
    check(body.endpoint, {"output_config.effort": config.get("effort")})
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
