"""Anthropic's blocks as a chat's messages, and what is no such block."""

import doctest
from typing import Any

import orjson
import pytest

from services.frontend.core import message_blocks
from services.frontend.core.message_blocks import BLOCKS_MAX, input_of, messages_of
from services.frontend.prepare.messages import chat_messages
from shared.errors import InvalidRequest

USE: dict[str, Any] = {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}}
RESULT: dict[str, Any] = {"type": "tool_result", "tool_use_id": "c1", "content": "rain"}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "x"}


def text(said: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": said, **more}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def test_examples() -> None:
    assert not doctest.testmod(message_blocks).failed


def test_calls_and_their_answers() -> None:
    cached = {"cache_control": {"type": "ephemeral"}}
    messages = messages_of(
        [
            user("Hi"),
            assistant([THOUGHT, text("Let me "), text("see."), USE, {"type": "redacted_thinking"}]),
            user([text("So?", **cached), RESULT | cached, RESULT | {"is_error": True}]),
        ],
        [text("Be kind.", **cached), text("Be brief.")],
    )
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    assert messages == [
        {"role": "system", "content": "Be kind.\nBe brief."},
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": "Let me see.",
            "reasoning_content": "hm",
            "tool_calls": [call],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        {"role": "tool", "tool_call_id": "c1", "content": "Error: rain"},
        {"role": "user", "content": "So?"},
    ]
    assert chat_messages(messages) == messages, "a chat takes them as they are"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("wet", "wet"), ([text("wet"), text("cold")], "wet\ncold"), ([], ""), (None, ""),
    ],
)  # fmt: skip
def test_what_a_tool_answered(content: Any, said: str) -> None:
    (answer,) = messages_of([user([RESULT | {"content": content, "is_error": None}])])
    assert answer == {"role": "tool", "tool_call_id": "c1", "content": said}
    without = {name: value for name, value in RESULT.items() if name != "content"}
    assert messages_of([user([without])])[0]["content"] == ""


def test_one_role_is_one_message() -> None:
    given = [user("a"), user([RESULT, text("b")]), assistant([THOUGHT]), assistant(""), user("c")]
    assert messages_of(given) == [
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        {"role": "user", "content": "a\nb\nc"},
    ]
    given = [user("a"), assistant("b"), assistant([text("c"), USE]), user([RESULT])]
    said = messages_of(given)[1]
    assert (said["content"], len(said["tool_calls"])) == ("bc", 1)
    given = [user("a"), {"role": "system", "content": [text("b")]}, assistant("{")]
    assert [message["role"] for message in messages_of(given)] == ["user", "system", "assistant"]
    assert messages_of([user("a"), assistant("")]) == [user("a")], "nothing to go on from"


BAD: list[tuple[Any, str]] = [
    (None, "messages"),
    ("Hi", "messages"),
    ({}, "messages"),
    ([], "messages"),
    ([assistant([THOUGHT])], "messages"),
    (["Hi"], "messages[0]"),
    ([{"content": "Hi"}], "messages[0].role"),
    ([{"role": "tool", "content": "Hi"}], "messages[0].role"),
    ([{"role": ["user"], "content": "Hi"}], "messages[0].role"),
    ([{"role": "user"}], "messages[0].content"),
    ([user(None)], "messages[0].content"),
    ([user(7)], "messages[0].content"),
    ([user({"type": "text"})], "messages[0].content"),
    ([user("Hi"), user(["Hi"])], "messages[1].content[0]"),
    ([user([{}])], "messages[0].content[0].type"),
    ([user([{"type": ["text"]}])], "messages[0].content[0].type"),
    ([user([text("Hi"), {"type": "text"}])], "messages[0].content[1].text"),
    ([user([{"type": "text", "text": 7}])], "messages[0].content[0].text"),
    ([user([{"type": "image", "source": {}}])], "messages[0].content[0].type"),
    ([user([{"type": "document", "source": {}}])], "messages[0].content[0].type"),
    ([user([USE])], "messages[0].content[0].type"),
    ([user([THOUGHT])], "messages[0].content[0].type"),
    ([assistant([RESULT])], "messages[0].content[0].type"),
    ([assistant([{"type": "text", "text": None}])], "messages[0].content[0].text"),
    ([assistant([{"type": "server_tool_use"}])], "messages[0].content[0].type"),
    ([{"role": "system", "content": [RESULT]}], "messages[0].content[0].type"),
    ([user("Hi"), assistant([USE])], "messages[1]"),
    ([user("Hi"), assistant([USE | {"id": ""}])], "messages[1].content[0].id"),
    ([user("Hi"), assistant([USE | {"name": 7}])], "messages[1].content[0].name"),
    ([user("Hi"), assistant([USE | {"input": "{}"}])], "messages[1].content[0].input"),
    ([user("Hi"), assistant([USE | {"input": None}])], "messages[1].content[0].input"),
    ([user([RESULT | {"tool_use_id": None}])], "messages[0].content[0].tool_use_id"),
    ([user([RESULT | {"is_error": "no"}])], "messages[0].content[0].is_error"),
    ([user([RESULT | {"is_error": 1}])], "messages[0].content[0].is_error"),
    ([user([RESULT | {"content": 7}])], "messages[0].content[0].content"),
    ([user([RESULT | {"content": [7]}])], "messages[0].content[0].content[0]"),
    ([user([RESULT | {"content": [{"type": "image"}]}])], "messages[0].content[0].content[0].type"),
    ([user([text("x")] * (BLOCKS_MAX + 1))], "messages[0].content"),
    ([user([text("x")] * BLOCKS_MAX), user("y")], "messages"),
    ([user([RESULT | {"content": [text("x")] * (BLOCKS_MAX + 1)}])],
     "messages[0].content[0].content"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "place"), BAD)
def test_what_is_wrong_is_named(given: Any, place: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        messages_of(given)
    assert caught.value.param == place
    assert caught.value.message.startswith(f"{place}: ")


@pytest.mark.parametrize(
    ("system", "place"),
    [
        (7, "system"), ({}, "system"), (["Hi"], "system[0]"),
        ([text("Hi"), {"type": "image"}], "system[1].type"), ([{"type": "text"}], "system[0].text"),
    ],
)  # fmt: skip
def test_a_wrong_system_is_named(system: Any, place: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        messages_of([user("Hi")], system)
    assert caught.value.param == place


@pytest.mark.parametrize("system", [None, "", []])
def test_without_a_system_there_is_none(system: Any) -> None:
    assert messages_of([user("Hi")], system) == [user("Hi")]


@pytest.mark.parametrize(
    ("written", "made"),
    [
        ('{"a": [1, {"b": "\\u00e9"}]}', {"a": [1, {"b": "\u00e9"}]}),
        ('{"a": 1, "b": [2, {"c": "d', {"a": 1, "b": [2, {}]}),
        ("", {}), ("{", {}), ("[1]", {}), ("null", {}), ('{"a": NaN}', {}), ('{"a": 1e999}', {}),
        ('{"a": Oslo}', {}), ('{"a":' * 5000 + "1", {}), ('{"a": "\\ud800"}', {}),
    ],
)  # fmt: skip
def test_arguments_are_an_object_whatever_was_written(written: str, made: Any) -> None:
    assert orjson.loads(input_of(written)) == made


def test_numbers_of_any_length_stay_as_they_are() -> None:
    assert input_of('{"n": ' + "9" * 400 + "}") == '{"n": ' + "9" * 400 + "}"
    assert input_of('{"n": ' + "9" * 9000 + "}") in ('{"n": ' + "9" * 9000 + "}", "{}")
