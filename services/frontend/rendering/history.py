"""Tools, and calls of them in a chat's history, as templates take them."""

import json
import string
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from pydantic_core import from_json

from services.frontend.core.tools import Family

ABOUT_TOOLS = """\
You can call tools. To call one, write its name and its arguments as JSON, like this:
<tool_call>{"name": "NAME", "arguments": {}}</tool_call>
The tools are:"""
ID_CHARS = string.ascii_letters + string.digits


def as_template_takes(messages: list[dict[str, Any]], family: Family) -> list[dict[str, Any]]:
    """Arguments become objects, since templates write their members. What is no object's JSON, as
    of a call that was cut off, becomes one without any.

    Takes as long as the history is.
    """
    return [_message(message, family.id_chars) for message in messages]


def in_parts(message: dict[str, Any]) -> dict[str, Any]:
    """With a content that is a list."""
    content = message["content"]
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    return message | {"content": content}


def as_text(messages: list[dict[str, Any]], tools: Sequence[Any]) -> list[dict[str, Any]]:
    """For a template that knows no tools: what they are in the system's message, and calls in what
    was said, as Hermes and Qwen have them.
    """
    written = [_with_calls_said(message) for message in messages]
    if not tools:
        return written
    about = "\n".join([ABOUT_TOOLS, *map(json.dumps, tools)])
    if written and written[0]["role"] == "system":
        first = written[0] | {"content": f"{written[0]['content']}\n\n{about}"}
        return [first, *written[1:]]
    return [{"role": "system", "content": about}, *written]


def _with_calls_said(message: dict[str, Any]) -> dict[str, Any]:
    if not (calls := message.get("tool_calls")):
        return message
    said = [f"<tool_call>{json.dumps(call['function'])}</tool_call>" for call in calls]
    rest = {name: value for name, value in message.items() if name != "tool_calls"}
    return rest | {"content": "\n".join([*filter(None, [message["content"]]), *said])}


def _message(message: dict[str, Any], id_chars: int) -> dict[str, Any]:
    calls, answered = message.get("tool_calls"), message.get("tool_call_id")
    if calls:
        message = message | {"tool_calls": [_call(call, id_chars) for call in calls]}
    if answered is not None and id_chars:
        message = message | {"tool_call_id": short_id(answered, id_chars)}
    return message


def _call(call: dict[str, Any], id_chars: int) -> dict[str, Any]:
    function = call["function"]
    written = function["arguments"]
    arguments = written if isinstance(written, dict) else _object(written)
    call = call | {"function": function | {"arguments": arguments}}
    if id_chars and "id" in call:
        call["id"] = short_id(call["id"], id_chars)
    return call


def _object(written: str) -> dict[str, Any]:
    try:
        value = from_json(written, allow_inf_nan=False)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def short_id(call_id: str, num_chars: int) -> str:
    """An id of so many letters and digits, the same for the same one.

    >>> short_id("abcDEF123", 9), short_id("call-1", 9) == short_id("call-1", 9)
    ('abcDEF123', True)
    """
    if len(call_id) == num_chars and set(call_id) <= set(ID_CHARS):
        return call_id
    number = int.from_bytes(blake2b(call_id.encode(errors="replace"), digest_size=16).digest())
    chars = []
    for _ in range(num_chars):
        number, at = divmod(number, len(ID_CHARS))
        chars.append(ID_CHARS[at])
    return "".join(chars)
