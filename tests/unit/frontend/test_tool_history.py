"""Calls of tools in a history, and how a model's own files tell of calls."""

import doctest
from pathlib import Path
from typing import Any

import orjson
import pytest

from services.frontend.core.tools import FAMILIES
from services.frontend.rendering import history
from services.frontend.rendering.history import as_template_takes
from services.frontend.rendering.texts import is_short
from services.frontend.rendering.tokenizer import INLINE_CHARS_MAX, load_tokenizer
from services.worker.models.demo_model import make_demo_model

HERMES, MISTRAL = FAMILIES["hermes"], FAMILIES["mistral"]


def said(arguments: Any, call_id: str = "call-1") -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    call = {"id": call_id, "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


@pytest.mark.parametrize(
    ("written", "taken"),
    [
        ('{"a": [1, {"b": "\\u00e9"}]}', {"a": [1, {"b": "\u00e9"}]}), ({"a": 1}, {"a": 1}),
        ('{"n": ' + "9" * 400 + "}", {"n": int("9" * 400)}),
        ("", {}), ("{}", {}), ('{"a": ', {}), ("[1]", {}), ("null", {}), ('{"a": NaN}', {}),
        ('{"a":' * 5000 + "1" + "}" * 5000, {}),
    ],
)  # fmt: skip
def test_arguments_are_objects(written: Any, taken: dict[str, Any]) -> None:
    message = said(written)
    (rendered,) = as_template_takes([message], HERMES)
    assert rendered["tool_calls"][0]["function"] == {"name": "f", "arguments": taken}
    assert message == said(written), "what came is not changed"
    assert rendered["tool_calls"][0]["id"] == "call-1"


def test_ids_are_as_a_family_wants_them_and_answers_find_their_calls() -> None:
    answer = {"role": "tool", "content": "x", "tool_call_id": "call-1"}
    call, answered = as_template_takes([said("{}"), answer], MISTRAL)
    name = call["tool_calls"][0]["id"]
    assert answered["tool_call_id"] == name
    assert len(name) == 9 and name.isalnum() and name.isascii()
    assert as_template_takes([answer], HERMES) == [answer]
    (same,) = as_template_takes([said("{}", "abcDEF123")], MISTRAL)
    assert same["tool_calls"][0]["id"] == "abcDEF123"


def test_long_calls_and_tools_are_rendered_elsewhere() -> None:
    long = "x" * (INLINE_CHARS_MAX + 1)
    assert is_short([said('{"a": 1}')], {"tools": [{"name": "f"}]})
    for message in (said(long), said({"a": long}), said("{}", long)):
        assert not is_short([message], {})
    assert not is_short([{"content": "", "tool_call_id": long}], {})
    assert not is_short([{"content": ""}], {"tools": [{"description": long}]})


def made(folder: Path, template: Any, *special: str) -> Path:
    """The demo model with another template and more special tokens."""
    made = make_demo_model(folder / "demo")
    path = made / "tokenizer_config.json"
    config = orjson.loads(path.read_bytes()) | {"chat_template": template}
    path.write_bytes(orjson.dumps(config))
    path = made / "tokenizer.json"
    tokenizer = orjson.loads(path.read_bytes())
    for number, content in enumerate(special):
        token = dict(tokenizer["added_tokens"][-1], id=300 + number, content=content, special=True)
        tokenizer["added_tokens"].append(token)
    path.write_bytes(orjson.dumps(tokenizer))
    return made


def test_a_marker_that_is_left_out_of_texts_is_known_for_one(tmp_path: Path) -> None:
    folder = made(tmp_path, "{{ tools }}[TOOL_CALLS]", "[TOOL_CALLS]")
    tokenizer = load_tokenizer(str(folder))
    tokens = tokenizer.encode("[TOOL_CALLS]x", special=False)
    assert tokenizer.decode(tokens) == "x"
    assert tokenizer.is_special("[TOOL_CALLS]") and not tokenizer.is_special("<tool_call>")
    assert tokenizer.tool_family is MISTRAL


def test_a_template_of_its_own_for_tools(tmp_path: Path) -> None:
    templates = [
        {"name": "default", "template": "{{ messages[0].content }}{{ mood }}"},
        {"name": "tool_use", "template": "{{ tools[0].name }}<tool_call>"},
    ]
    tokenizer = load_tokenizer(str(made(tmp_path, templates)))
    assert tokenizer.template_names == {"mood", "tools"}
    assert tokenizer.tool_family is HERMES
    messages = [{"role": "user", "content": "x"}]
    assert tokenizer.render(messages, {"tools": [{"name": "f"}]}) == "f<tool_call>"
    assert tokenizer.render(messages, {"mood": "y"}) == "xy"


def test_examples() -> None:
    found = doctest.testmod(history)
    assert (found.attempted, found.failed) == (1, 0)
