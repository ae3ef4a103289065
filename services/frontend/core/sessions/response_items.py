"""Converts items of the Responses API to the messages of a chat."""

from collections.abc import Sequence
from typing import Any

from shared.errors import InvalidRequest

ITEMS_MAX = 8192
ROLES = ("system", "developer", "user", "assistant")
TEXTS = ("input_text", "output_text", "reasoning_text", "text")


def items_of(given: Any) -> list[Any]:
    """A request's input as a list of items, not yet checked.

    Raises:
        InvalidRequest: it is neither text nor list, empty or too long.

    >>> items_of("Hi")
    [{'type': 'message', 'role': 'user', 'content': [{'type': 'input_text', 'text': 'Hi'}]}]
    """
    if isinstance(given, str):
        if not given:
            raise InvalidRequest("input: it is empty", "input")
        part = {"type": "input_text", "text": given}
        return [{"type": "message", "role": "user", "content": [part]}]
    if not isinstance(given, list) or not given:
        raise InvalidRequest("input: give a text, or a list of items", "input")
    if len(given) > ITEMS_MAX:
        raise InvalidRequest(f"input: more than {ITEMS_MAX} items", "input")
    return given


def messages_of(
    items: Sequence[Any], instructions: str | None = None, past: Sequence[dict[str, Any]] = ()
) -> list[dict[str, Any]]:
    """A chat's messages. Consecutive calls, the text before them and the reasoning before
    that are one message of the assistant.

    Args:
        past: items of earlier responses, which were checked then.

    Raises:
        InvalidRequest: names the item and what is wrong with it.

    >>> messages_of(items_of("Hi"), "Be kind")
    [{'role': 'system', 'content': 'Be kind'}, {'role': 'user', 'content': 'Hi'}]
    """
    if len(past) + len(items) > ITEMS_MAX:
        raise InvalidRequest(f"input: with those before, more than {ITEMS_MAX} items", "input")
    messages: list[dict[str, Any]] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    num_before = len(messages)
    for item in past:
        _add(messages, item, "previous_response_id")
    for at, item in enumerate(items):
        _add(messages, item, f"input[{at}]")
    messages = [message for message in messages if not _is_thought_alone(message)]
    if len(messages) == num_before:
        raise InvalidRequest("input: it has no messages", "input")
    return messages


def plain(item: dict[str, Any]) -> dict[str, Any] | None:
    """The known fields of an item, which are all that is stored of it; None: nothing is stored.

    >>> plain({"role": "user", "content": [{"type": "text", "text": "Hi"}], "x": [[]]})
    {'type': 'message', 'role': 'user', 'content': 'Hi'}
    """
    kind = _kind(item)
    match kind:
        case "message":
            text = _text(item.get("content"), "input")
            return {"type": kind, "role": item["role"], "content": text}
        case "function_call":
            return {name: item[name] for name in ("type", "call_id", "name", "arguments")}
        case "function_call_output":
            text = _text(item.get("output"), "input")
            return {"type": kind, "call_id": item["call_id"], "output": text}
        case _:
            thought = _text(item.get("content") or [], "input")
            part = {"type": "reasoning_text", "text": thought}
            return {"type": kind, "summary": [], "content": [part]} if thought else None


def shown(item: dict[str, Any], item_id: str) -> dict[str, Any]:
    """A plain item as OpenAI lists it."""
    if item["type"] != "message":
        return {"id": item_id, **item}
    kind = "output_text" if item["role"] == "assistant" else "input_text"
    return {"id": item_id, **item, "content": [{"type": kind, "text": item["content"]}]}


def page_of(items: list[dict[str, Any]], limit: int, after: str | None) -> dict[str, Any]:
    """Some of the items, as OpenAI's lists come.

    Args:
        after: the id of the one before the first; None: from the beginning.

    Raises:
        InvalidRequest: no item has it.

    >>> page_of([{"id": "a"}, {"id": "b"}, {"id": "c"}], 1, "a")["data"]
    [{'id': 'b'}]
    """
    ids = [item["id"] for item in items]
    if after is not None and after not in ids:
        raise InvalidRequest(f"after: no item has the id {after!r}", "after")
    start = 0 if after is None else ids.index(after) + 1
    data = items[start : start + limit]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": start + limit < len(items),
    }


def _add(messages: list[dict[str, Any]], item: Any, where: str) -> None:
    if not isinstance(item, dict):
        raise InvalidRequest(f"{where}: give an object", where)
    match _kind(item):
        case "message":
            role = item.get("role")
            if role not in ROLES:
                raise InvalidRequest(f"{where}.role: give one of {', '.join(ROLES)}", where)
            text = _text(item.get("content"), f"{where}.content")
            if role == "assistant" and messages and _is_thought_alone(messages[-1]):
                messages[-1]["content"] = text
            else:
                messages.append({"role": role, "content": text})
        case "function_call":
            name, arguments = item.get("name"), item.get("arguments")
            if not isinstance(name, str) or not isinstance(arguments, str):
                raise InvalidRequest(f"{where}: give name and arguments, as strings", where)
            function = {"name": name, "arguments": arguments}
            call = {"id": _call_id(item, where), "type": "function", "function": function}
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None})
            messages[-1].setdefault("tool_calls", []).append(call)
        case "function_call_output":
            output = _text(item.get("output"), f"{where}.output")
            call_id = _call_id(item, where)
            messages.append({"role": "tool", "tool_call_id": call_id, "content": output})
        case "reasoning":
            if thought := _text(item.get("content") or [], f"{where}.content"):
                said = {"role": "assistant", "content": None, "reasoning_content": thought}
                messages.append(said)
        case kind:
            raise InvalidRequest(
                f"{where}.type: {str(kind)[:40]!r} is not supported; give message, function_call, "
                "function_call_output or reasoning",
                f"{where}.type",
                code="unsupported_value",
            )


def _kind(item: dict[str, Any]) -> Any:
    """An item's type, which messages and references may leave out."""
    is_reference = "id" in item and "role" not in item and "content" not in item
    return item.get("type") or ("item_reference" if is_reference else "message")


def _is_thought_alone(message: dict[str, Any]) -> bool:
    """Whether nothing was said or called behind it."""
    return message["content"] is None and not message.get("tool_calls")


def _call_id(item: dict[str, Any], where: str) -> str:
    call_id = item.get("call_id")
    if not isinstance(call_id, str) or not call_id:
        raise InvalidRequest(f"{where}.call_id: give a string", f"{where}.call_id")
    return call_id


def _text(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequest(f"{where}: give a text, or a list of parts", where)
    texts = []
    for at, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        name = "refusal" if kind == "refusal" else "text"
        if kind not in (*TEXTS, "refusal"):
            given = "" if kind is None else f"; {str(kind)[:40]!r} is not"
            raise InvalidRequest(
                f"{where}[{at}]: only parts of text are supported{given}",
                where,
                "unsupported_value",
            )
        if not isinstance(part.get(name), str):
            raise InvalidRequest(f"{where}[{at}].{name}: give a string", where)
        texts.append(part[name])
    return "".join(texts)
