"""A chat's messages, tools and options, as chat templates take them."""

from collections.abc import Mapping, Sequence, Set
from typing import Any

from services.frontend.api.bodies import ChatBody, TokenizeBody, Tool
from services.frontend.rendering.texts import Texts
from services.frontend.rendering.tokenizer import ModelTokenizer
from shared.errors import InvalidRequest

TEMPLATE_OWN = (
    "add_generation_prompt", "chat_template", "continue_final_message", "conversation",
    "documents", "max_length", "padding", "return_assistant_tokens_mask", "return_dict",
    "return_tensors", "sanitize_control_tokens", "tokenize", "tokenizer_kwargs", "tools",
    "truncation",
)  # fmt: skip

NAME_CHARS_MAX = 64
TEXT_PARTS = {"text": "text"}
ASSISTANT_PARTS = {"text": "text", "refusal": "refusal"}


async def rendered(texts: Texts, tokenizer: ModelTokenizer, body: ChatBody | TokenizeBody) -> str:
    """A chat as the model's template writes it.

    Raises:
        InvalidRequest: wrong messages or options, or the template refuses them.
        NoCapacity: as `Texts.render`.
    """
    options = template_options(body, tokenizer.template_names)
    return await texts.render(tokenizer, chat_messages(body.messages or []), options)


def template_options(body: ChatBody | TokenizeBody, names: Set[str]) -> dict[str, Any]:
    """What a chat template is told beside the messages.

    Args:
        names: what the model's template reads.

    Raises:
        InvalidRequest: options that exclude each other, or that the template does not read.
    """
    known = sorted(name for name in names if not _is_own(name))
    given = body.chat_template_kwargs or {}
    options = {name: value for name, value in given.items() if not _is_idle(name, value, known)}
    for name in options.keys() - known:
        where = f"chat_template_kwargs.{name[:NAME_CHARS_MAX]}"
        if _is_own(name):
            raise InvalidRequest(f"{where}: not a template's variable", where, "unsupported_value")
        reads = ", ".join(known) or "nothing beside the messages"
        raise InvalidRequest(
            f"{where}: the model's template does not read it; it reads {reads}",
            where,
            "unsupported_value",
        )
    continues = bool(body.continue_final_message)
    if continues and body.add_generation_prompt:
        raise InvalidRequest(
            "continue_final_message: not together with add_generation_prompt = true",
            "continue_final_message",
        )
    if isinstance(body, ChatBody) and body.reasoning_effort is not None:
        options = _effort(body.reasoning_effort, names) | options
    begins = body.add_generation_prompt is not False and not continues
    options |= {"add_generation_prompt": begins, "continue_final_message": continues}
    return options | ({"tools": list(map(_tool, body.tools))} if body.tools else {})


def _is_idle(name: str, value: Any, known: Sequence[str]) -> bool:
    """Whether a template that does not read this does all the same what it says."""
    return name == "enable_thinking" and value is False and name not in known


def _effort(effort: str, names: Set[str]) -> dict[str, Any]:
    """How much a model is to think, in the words of its template.

    Raises:
        InvalidRequest: it has none for this.
    """
    told: dict[str, Any] = {"reasoning_effort": effort, "enable_thinking": effort != "none"}
    if known := {name: value for name, value in told.items() if name in names}:
        return known
    if effort in {"none", "medium"}:  # nothing, and what clients send who were not asked
        return {}
    raise InvalidRequest(
        "reasoning_effort: the model's template reads neither reasoning_effort nor enable_thinking",
        "reasoning_effort",
        "unsupported_value",
    )


def _tool(tool: Tool) -> dict[str, Any]:
    """As clients write it, and so as templates were made for."""
    function = tool.function.model_dump(exclude_none=True, exclude={"strict"})
    return {"type": "function", "function": function}


def _is_own(name: str) -> bool:
    """Whether it is an argument of transformers' and no variable, whatever a template reads."""
    return name in TEMPLATE_OWN or name.startswith("return_")


ROLES = ("system", "developer", "user", "assistant", "tool")


def chat_messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages as chat templates take them: text content only, roles they know.

    Raises:
        InvalidRequest: names the message and what is wrong with it.
    """
    return [_message(message, f"messages[{at}]") for at, message in enumerate(messages)]


def _message(message: dict[str, Any], where: str) -> dict[str, Any]:
    role = message.get("role")
    if role not in ROLES:
        raise InvalidRequest(f"{where}.role: give one of {', '.join(ROLES)}", f"{where}.role")
    for name in ("function_call", "audio"):
        if message.get(name):
            raise InvalidRequest(
                f"{where}.{name}: not supported", f"{where}.{name}", code="unsupported_value"
            )
    known = {"role": "system" if role == "developer" else role}
    if isinstance(message.get("name"), str):
        known["name"] = message["name"]
    if isinstance(message.get("tool_call_id"), str):
        known["tool_call_id"] = message["tool_call_id"]
    if message.get("tool_calls") and role == "assistant":
        known["tool_calls"] = _tool_calls(message["tool_calls"], f"{where}.tool_calls")
    thoughts = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(thoughts, str) and role == "assistant":
        known["reasoning_content"] = thoughts
    content = message.get("content")
    if content is None and role in {"assistant", "tool"}:
        content = ""
    parts = ASSISTANT_PARTS if role == "assistant" else TEXT_PARTS
    said = _content(content, f"{where}.content", parts)
    if role == "assistant":
        said = "\n".join(filter(None, [said, _refusal(message, where)]))
    return known | {"content": said}


def _refusal(message: dict[str, Any], where: str) -> str:
    """What the assistant said instead of what it was asked for."""
    refusal = message.get("refusal")
    if not isinstance(refusal, str | None):
        raise InvalidRequest(f"{where}.refusal: give a string", f"{where}.refusal")
    return refusal or ""


def _tool_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    """Calls of earlier turns, with arguments as they were written (`rendering.history`)."""
    if not isinstance(calls, list):
        raise InvalidRequest(f"{where}: give a list of calls", where)
    return [_tool_call(call, f"{where}[{at}]") for at, call in enumerate(calls)]


def _tool_call(call: Any, where: str) -> dict[str, Any]:
    kind = call.get("type") if isinstance(call, dict) else None
    if kind not in (None, "function"):
        raise InvalidRequest(
            f"{where}.type: {str(kind)[:NAME_CHARS_MAX]!r} is not supported; give function",
            f"{where}.type",
            code="unsupported_value",
        )
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise InvalidRequest(f"{where}.function.name: give a string", f"{where}.function.name")
    arguments = function.get("arguments")
    if not isinstance(arguments, str | dict | None):
        place = f"{where}.function.arguments"
        raise InvalidRequest(f"{place}: give an object's JSON as a string", place)
    known = {"id": call["id"]} if isinstance(call.get("id"), str) else {}
    called = {"name": function["name"], "arguments": arguments or ""}
    return known | {"type": "function", "function": called}


def _content(content: Any, where: str, parts: Mapping[str, str]) -> str:
    """The text of a message.

    Args:
        parts: types of parts that it may have, each with the member that has its text.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequest(f"{where}: give a string or a list of text parts", where)
    texts = []
    for at, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(kind, str) or kind not in parts:
            given = "" if kind is None else f"; {str(kind)[:NAME_CHARS_MAX]!r} is not"
            raise InvalidRequest(
                f"{where}[{at}]: only text parts are supported{given}",
                f"{where}[{at}]",
                code="unsupported_value",
            )
        name = parts[kind]
        if not isinstance(part.get(name), str):
            raise InvalidRequest(f"{where}[{at}].{name}: give a string", f"{where}[{at}].{name}")
        texts.append(part[name])
    return "".join(texts)
