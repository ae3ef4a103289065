"""Converts content blocks of Anthropic's Messages API to the messages of a chat."""

import json
from typing import Any

from pydantic_core import from_json

from shared.errors import InvalidRequest

BLOCKS_MAX = 8192
ROLES = ("user", "assistant", "system")
THOUGHTS = ("thinking", "redacted_thinking")

Blocks = list[tuple[str, dict[str, Any]]]  # each with its place in the request


def messages_of(given: Any, system: Any = None) -> list[dict[str, Any]]:
    """A chat's messages. What follows each other in one role is one message; what tools answered
    stands before what else the user says. If the last message is the assistant's, the reply goes on
    where it ends.

    Raises:
        InvalidRequest: names the block and what is wrong with it.

    >>> messages_of([{"role": "user", "content": "Hi"}], "Be kind")
    [{'role': 'system', 'content': 'Be kind'}, {'role': 'user', 'content': 'Hi'}]
    """
    turns = _turns(given)
    if not turns:
        raise InvalidRequest("messages: there is nothing to reply to", "messages")
    messages: list[dict[str, Any]] = []
    if system is not None and (text := _lines(_blocks(system, "system"))):
        messages.append({"role": "system", "content": text})
    for role, blocks in turns:
        if role == "assistant":
            messages.append(_said(blocks))
        elif role == "user":
            messages += _asked(blocks)
        else:
            messages.append({"role": role, "content": _lines(blocks)})
    if "tool_calls" in messages[-1]:
        where = f"messages[{len(given) - 1}]"
        raise InvalidRequest(f"{where}: it calls tools, and nothing follows it", where)
    return messages


def input_of(arguments: str) -> str:
    """A call's arguments as the JSON of an object. What of them was cut off is closed where it
    ends, without texts that have no end; what is no object's JSON becomes an empty one.

    >>> input_of('{"city": "Oslo", "day": "Mon'), input_of("[1]"), input_of('{"city": Oslo}')
    ('{"city": "Oslo"}', '{}', '{}')
    """
    try:
        value = from_json(arguments, allow_inf_nan=False, allow_partial=True)
        return json.dumps(value, allow_nan=False) if isinstance(value, dict) else "{}"
    except ValueError:
        return "{}"


def _turns(given: Any) -> list[tuple[str, Blocks]]:
    """What each role says until another one does; the assistant's without empty texts and blocks
    of unknown types, unless all of it is reasoning."""
    if not isinstance(given, list):
        raise InvalidRequest("messages: give a list", "messages")
    turns: list[tuple[str, Blocks]] = []
    num_blocks = 0
    for at, message in enumerate(given):
        where = f"messages[{at}]"
        if not isinstance(message, dict):
            raise InvalidRequest(f"{where}: give an object", where)
        role = message.get("role")
        if role not in ROLES:
            raise InvalidRequest(f"{where}.role: give one of {', '.join(ROLES)}", f"{where}.role")
        blocks = _blocks(message.get("content"), f"{where}.content")
        num_blocks += len(blocks)
        if num_blocks > BLOCKS_MAX:
            raise InvalidRequest(f"messages: more than {BLOCKS_MAX} blocks", "messages")
        if role == "assistant":
            blocks = [placed for placed in blocks if not _is_nothing(placed[1])]
            if all(block.get("type") == "thinking" for _, block in blocks):
                continue
        if turns and turns[-1][0] == role:
            turns[-1][1].extend(blocks)
        else:
            turns.append((role, blocks))
    return turns


def _is_nothing(block: dict[str, Any]) -> bool:
    kind = block.get("type")
    return kind == "redacted_thinking" or (kind == "text" and block.get("text") == "")


def _blocks(content: Any, where: str) -> Blocks:
    if isinstance(content, str):
        return [(where, {"type": "text", "text": content})]
    if not isinstance(content, list):
        raise InvalidRequest(f"{where}: give a text, or a list of blocks", where)
    if len(content) > BLOCKS_MAX:
        raise InvalidRequest(f"{where}: more than {BLOCKS_MAX} blocks", where)
    placed = []
    for at, block in enumerate(content):
        if not isinstance(block, dict):
            raise InvalidRequest(f"{where}[{at}]: give a block, an object", f"{where}[{at}]")
        placed.append((f"{where}[{at}]", block))
    return placed


def _said(blocks: Blocks) -> dict[str, Any]:
    """A message of the assistant's. Its texts are joined as they are: they were one reply."""
    texts, calls, thoughts = [], [], []
    for where, block in blocks:
        if block.get("type") == "tool_use":
            calls.append(_call(block, where))
        elif block.get("type") == "thinking":
            thoughts.append(_string(block, "thinking", where))
        else:
            texts.append(_text(block, where, "text, tool_use, thinking or redacted_thinking"))
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if thought := "".join(thoughts):
        message["reasoning_content"] = thought
    return message | {"tool_calls": calls} if calls else message


def _asked(blocks: Blocks) -> list[dict[str, Any]]:
    """What tools answered, and a message of the user's."""
    answers, texts = [], []
    for where, block in blocks:
        if block.get("type") == "tool_result":
            answers.append(_answer(block, where))
        else:
            texts.append(_text(block, where, "text or tool_result"))
    if answers and not texts:
        return answers
    return [*answers, {"role": "user", "content": "\n".join(texts)}]


def _call(block: dict[str, Any], where: str) -> dict[str, Any]:
    function = {"name": _name(block, "name", where), "arguments": block.get("input")}
    if not isinstance(function["arguments"], dict):
        raise InvalidRequest(f"{where}.input: give an object", f"{where}.input")
    return {"id": _name(block, "id", where), "type": "function", "function": function}


def _answer(block: dict[str, Any], where: str) -> dict[str, Any]:
    call_id, content = _name(block, "tool_use_id", where), block.get("content")
    text = "" if content is None else _lines(_blocks(content, f"{where}.content"))
    is_error = block.get("is_error")
    if not isinstance(is_error, bool | None):
        raise InvalidRequest(f"{where}.is_error: give true or false", f"{where}.is_error")
    if is_error:
        text = f"Error: {text}"  # no template has another way to say so
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def _name(block: dict[str, Any], name: str, where: str) -> str:
    value = block.get(name)
    if not isinstance(value, str) or not value:
        raise InvalidRequest(f"{where}.{name}: give a string", f"{where}.{name}")
    return value


def _lines(blocks: Blocks) -> str:
    return "\n".join([_text(block, where, "text") for where, block in blocks])


def _text(block: dict[str, Any], where: str, served: str) -> str:
    """The text of what has to be a block of text.

    Args:
        served: types that may be there.
    """
    kind = block.get("type")
    if kind != "text":
        raise InvalidRequest(
            f"{where}.type: {str(kind)[:40]!r} is not supported here; give {served}",
            f"{where}.type",
            code="unsupported_value",
        )
    return _string(block, "text", where)


def _string(block: dict[str, Any], name: str, where: str) -> str:
    text = block.get(name)
    if not isinstance(text, str):
        raise InvalidRequest(f"{where}.{name}: give a string", f"{where}.{name}")
    return text
