"""Messages of a chat as chat templates take them."""

from collections.abc import Mapping
from typing import Any, TypeGuard

from services.frontend.prepare.requests import Image, Message
from shared.errors import InvalidRequest

NAME_CHARS_MAX = 64
TEXT_PARTS = {"text": "text"}
IMAGE_PART = "image_url"
ASSISTANT_PARTS = {"text": "text", "refusal": "refusal"}
ROLES = ("system", "developer", "user", "assistant", "tool")


def chat_messages(
    messages: list[dict[str, Any]], images: list[Image] | None = None
) -> list[Message]:
    """Messages as chat templates take them: roles they know, and text content, or a list of parts
    where a user's message has images.

    Args:
        images: gets those, in their order; None: they are refused.

    Raises:
        InvalidRequest: names the message and what is wrong with it.
    """
    return [_message(message, f"messages[{at}]", images) for at, message in enumerate(messages)]


def _message(message: dict[str, Any], where: str, images: list[Image] | None) -> Message:
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
    if role == "user" and images is not None and _has_images(content):
        return known | {"content": _parts(content, f"{where}.content", images)}
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
    return "".join(_text(part, f"{where}[{at}]", parts) for at, part in enumerate(content))


def _text(part: Any, where: str, parts: Mapping[str, str]) -> str:
    """Of one part."""
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str) or kind not in parts:
        raise only_text(where, kind)
    name = parts[kind]
    text = part.get(name)
    if not isinstance(text, str):
        raise InvalidRequest(f"{where}.{name}: give a string", f"{where}.{name}")
    return text


def only_text(where: str, kind: Any) -> InvalidRequest:
    """The error of a part that is not taken."""
    given = "" if kind is None else f"; {str(kind)[:NAME_CHARS_MAX]!r} is not"
    message = f"{where}: only text parts are supported{given}"
    return InvalidRequest(message, where, code="unsupported_value")


def _has_images(content: Any) -> TypeGuard[list[Any]]:
    return isinstance(content, list) and any(map(_is_image, content))


def _is_image(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == IMAGE_PART


def _parts(content: list[Any], where: str, images: list[Image]) -> list[dict[str, str]]:
    """Texts, and places of images."""
    parts = []
    for at, part in enumerate(content):
        place = f"{where}[{at}]"
        if not _is_image(part):
            parts.append({"type": "text", "text": _text(part, place, TEXT_PARTS)})
            continue
        holder = part.get(IMAGE_PART)
        url = holder.get("url") if isinstance(holder, dict) else holder
        if not isinstance(url, str):
            name = f"{place}.{IMAGE_PART}.url"
            raise InvalidRequest(f"{name}: give a string", name)
        images.append(Image(url, place))
        parts.append({"type": "image"})
    return parts
