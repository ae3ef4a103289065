"""Converts items of the Responses API to the messages of a chat."""

from collections.abc import Sequence
from typing import Any

from services.frontend.core.sessions.compaction import summary_of
from services.frontend.core.tools.free_form import arguments_of
from shared.errors import InvalidRequest

ITEMS_MAX = 8192
ROLES = ("system", "developer", "user", "assistant")
TEXTS = ("input_text", "output_text", "reasoning_text", "text")
REFERENCE = "item_reference"
# Of tools that other servers run: what they did is not known to models here.
HOSTED = (
    "web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call",
    "computer_call", "computer_call_output", "local_shell_call", "local_shell_call_output",
    "shell_call", "shell_call_output", "apply_patch_call", "apply_patch_call_output",
    "tool_search_call", "tool_search_output", "mcp_list_tools", "mcp_call",
    "mcp_approval_request", "mcp_approval_response", "program", "program_output",
)  # fmt: skip


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


def checked_items(given: Any, name: str = "items") -> list[dict[str, Any]]:
    """Items that are put into a conversation, plain.

    Raises:
        InvalidRequest: names the item and what is wrong with it.
    """
    if not isinstance(given, list):
        raise InvalidRequest(f"{name}: give a list of items", name)
    if len(given) > ITEMS_MAX:
        raise InvalidRequest(f"{name}: more than {ITEMS_MAX} items", name)
    for at, item in enumerate(given):
        _add([], item, f"{name}[{at}]")
    return [kept for item in given if (kept := plain(item)) is not None]


def plain(item: dict[str, Any]) -> dict[str, Any] | None:
    """The known fields of an item, which are all that is stored of it; None: nothing is stored.

    >>> plain({"role": "user", "content": [{"type": "text", "text": "Hi"}], "x": [[]]})
    {'type': 'message', 'role': 'user', 'content': 'Hi'}
    """
    kind = kind_of(item)
    match kind:
        case "message":
            text = _text(item.get("content"), "input")
            return {"type": kind, "role": item["role"], "content": text}
        case "function_call" | "custom_tool_call":
            names = ("type", "call_id", "name", "namespace", _said_in(kind))
            return {name: item[name] for name in names if item.get(name) is not None}
        case "function_call_output" | "custom_tool_call_output":
            text = _text(item.get("output"), "input")
            return {"type": kind, "call_id": item["call_id"], "output": text}
        case "compaction":
            return {"type": kind, "encrypted_content": item["encrypted_content"]}
        case str() if kind in HOSTED:
            return None
        case _:
            thought = _text(item.get("content") or [], "input")
            part = {"type": "reasoning_text", "text": thought}
            return {"type": kind, "summary": [], "content": [part]} if thought else None


def shown(item: dict[str, Any], item_id: str) -> dict[str, Any]:
    """A plain item as OpenAI lists it."""
    if item["type"] == "compaction":
        return {"id": item_id, **item}
    known = {"id": item_id, **item, "status": "completed"}
    if item["type"] != "message":
        return known
    part: dict[str, Any] = {"type": "input_text", "text": item["content"]}
    if item["role"] == "assistant":
        part = {"type": "output_text", "text": item["content"], "annotations": [], "logprobs": []}
    return {**known, "content": [part]}


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
        "first_id": data[0]["id"] if data else "",
        "last_id": data[-1]["id"] if data else "",
        "has_more": start + limit < len(items),
    }


def _add(messages: list[dict[str, Any]], item: Any, where: str) -> None:
    if not isinstance(item, dict):
        raise InvalidRequest(f"{where}: give an object", where)
    match kind_of(item):
        case "message":
            role = item.get("role")
            if role not in ROLES:
                raise InvalidRequest(f"{where}.role: give one of {', '.join(ROLES)}", where)
            text = _text(item.get("content"), f"{where}.content")
            if role == "assistant" and messages and _is_thought_alone(messages[-1]):
                messages[-1]["content"] = text
            else:
                messages.append({"role": role, "content": text})
        case "function_call" | "custom_tool_call" as kind:
            _add_call(messages, item, kind, where)
        case "function_call_output" | "custom_tool_call_output":
            output = _text(item.get("output"), f"{where}.output")
            call_id = _call_id(item, where)
            messages.append({"role": "tool", "tool_call_id": call_id, "content": output})
        case "compaction":
            summary = summary_of(item.get("encrypted_content"), where)
            messages.append({"role": "user", "content": summary})
        case str(kind) if kind in HOSTED:
            pass
        case "reasoning":
            if thought := _text(item.get("content") or [], f"{where}.content"):
                said = {"role": "assistant", "content": None, "reasoning_content": thought}
                messages.append(said)
        case kind:
            raise InvalidRequest(
                f"{where}.type: {str(kind)[:40]!r} is not supported; give message, function_call, "
                "function_call_output, custom_tool_call, custom_tool_call_output, reasoning, "
                "compaction or item_reference",
                f"{where}.type",
                code="unsupported_value",
            )


def _add_call(messages: list[dict[str, Any]], item: dict[str, Any], kind: str, where: str) -> None:
    """Add a call to the assistant's message that it is in."""
    name, said, namespace = item.get("name"), item.get(_said_in(kind)), item.get("namespace")
    if not isinstance(name, str) or not isinstance(said, str):
        raise InvalidRequest(f"{where}: give name and {_said_in(kind)}, as strings", where)
    if not isinstance(namespace, str | None):
        raise InvalidRequest(f"{where}.namespace: give a string", f"{where}.namespace")
    arguments = arguments_of(said) if kind == "custom_tool_call" else said
    function = {"name": qualified(name, namespace), "arguments": arguments}
    call = {"id": _call_id(item, where), "type": "function", "function": function}
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    messages[-1].setdefault("tool_calls", []).append(call)


def qualified(name: str, namespace: str | None) -> str:
    """By what name a model knows a tool."""
    return name if namespace is None else f"{namespace}.{name}"


def kind_of(item: dict[str, Any]) -> Any:
    """An item's type, which messages and references may leave out."""
    is_reference = "id" in item and "role" not in item and "content" not in item
    return item.get("type") or (REFERENCE if is_reference else "message")


def _said_in(kind: str) -> str:
    """The member of a call that has what is said to the tool."""
    return "input" if kind == "custom_tool_call" else "arguments"


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
