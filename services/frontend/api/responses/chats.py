"""A request for a response, as a request for a chat."""

from typing import Any

from services.frontend.api.bodies import ChatBody, ResponsesBody, Sampled, Tool, ToolFunction
from services.frontend.api.fields import unsupported
from services.frontend.core.response_items import messages_of
from services.frontend.core.stored_responses import Past
from shared.errors import InvalidRequest


def chat_of(body: ResponsesBody, items: list[Any], past: Past) -> ChatBody:
    """What is asked for, in the words of chats.

    Args:
        items: of its input.
        past: what it goes on from; its session is the chat's.

    Raises:
        InvalidRequest: it cannot be said in those.
    """
    shared = {name: getattr(body, name) for name in Sampled.model_fields}
    return ChatBody.model_construct(
        **shared | {"session_id": past.session_id},
        messages=messages_of(items, body.instructions, past.items),
        max_completion_tokens=body.max_output_tokens,
        tools=None if body.tools is None else [_tool(tool) for tool in body.tools],
        tool_choice=_tool_choice(body.tool_choice),
        parallel_tool_calls=body.parallel_tool_calls,
        response_format=_response_format(body.text),
        truncate_prompt_tokens=-1 if body.truncation == "auto" else None,
        chat_template_kwargs=body.chat_template_kwargs,
        reasoning_effort=body.reasoning and body.reasoning.effort,
    )


OWN_WORDS = {
    "response_format": "text.format",
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "truncate_prompt_tokens": "truncation",
    "reasoning_effort": "reasoning",
}


def in_own_words(error: InvalidRequest) -> InvalidRequest:
    """An error of a chat's, with the names that the fields have here."""
    chats = (error.param or "").partition(".")[0].partition("[")[0]
    if (own := OWN_WORDS.get(chats)) is not None:
        error.param = own
        error.message = error.message.replace("response_format.json_schema", own).replace(
            f"{chats}:", f"{own}:"
        )
    return error


def _tool(tool: ToolFunction) -> Tool:
    function = ToolFunction.model_construct(
        **{name: getattr(tool, name) for name in ToolFunction.model_fields}
    )
    return Tool.model_construct(type="function", function=function)


def _tool_choice(choice: Any) -> Any:
    match choice:
        case {"type": "function", "name": str(name)}:
            return {"type": "function", "function": {"name": name}}
        case None | "auto" | "none" | "required":
            return choice
        case _:
            served = 'give "auto", "none", "required", or {"type": "function", "name"}'
            raise unsupported("tool_choice", served)


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
            schema = given.get("schema")
            if not isinstance(schema, dict):
                raise InvalidRequest("text.format.schema: give a JSON schema", "text.format")
            return {"type": "json_schema", "json_schema": {"schema": schema}}
        case kind:
            served = f"its type {str(kind)[:40]!r} is none of text, json_object, json_schema"
            raise unsupported("text.format", served)
