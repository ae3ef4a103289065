"""Calls of tools in what models say."""

import doctest
import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.frontend.core import detokenizer
from services.frontend.core.tools import (
    FAMILIES,
    Argued,
    Called,
    Event,
    Said,
    ToolParser,
    call_reader,
    families,
    family_of,
    parser,
)
from services.frontend.core.tools.call_reader import joined

NAMES = ("get_weather", "get_time")
ARGUMENTS: dict[str, Any] = {"city": 'Łódź "{', "days": [1, {"x": None}], "deep": {"}": "\\"}}
WRITTEN = json.dumps(ARGUMENTS)
CALL = f'{{"name": "get_weather", "arguments": {WRITTEN}}}'
OTHER = '{"name": "get_time", "arguments": {}}'
MORE = "[TOOL_CALLS]"
TOLD = [Called("get_weather"), Argued(WRITTEN), Called("get_time"), Argued("{}")]


def parse(family: str, *pieces: str, calls_max: int | None = None) -> list[Event]:
    tools = ToolParser(FAMILIES[family], NAMES, calls_max)
    events = [event for piece in pieces for event in tools.feed(piece)]
    return joined(events + tools.finish())


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("hermes", f"<tool_call>\n{CALL}\n</tool_call>\n<tool_call>{OTHER}</tool_call>"),
        ("hermes", f"<tool_call>{CALL}<tool_call>{OTHER}"),
        ("llama3", f"{CALL}; {OTHER}".replace("arguments", "parameters")),
        ("llama3", f"<|python_tag|>{CALL},\n{OTHER}"),
        ("mistral", f"[TOOL_CALLS] [{CALL}, {OTHER}]"),
        ("mistral", f"[TOOL_CALLS]get_weather[ARGS]{WRITTEN}[TOOL_CALLS]get_time[ARGS]{{}}"),
        ("mistral", f"[TOOL_CALLS]get_weather{WRITTEN}[TOOL_CALLS] get_time {{}}"),
        ("json", f"[{CALL},{OTHER}]"),
        ("json", f" {CALL}\n{OTHER}\n"),
        # As models write it when they are off by a bracket, or by what they were told.
        ("hermes", f"<tool_call>{CALL[:-1]}</tool_call><tool_call>{OTHER}}}</tool_call>"),
        ("hermes", f"<tool_call>{CALL}}}</tool_call>\n<tool_call>{OTHER[:-1]}"),
        ("hermes", f"<tool_call>{CALL},{OTHER}</tool_call>"),
        ("llama3", f'{{"function": "get_weather", "parameters": {WRITTEN}, "type": 1}}{OTHER}'),
        ("mistral", f"[TOOL_CALLS]get_weather[CALL_ID]a1B2c3D4e[ARGS]{WRITTEN}{MORE}get_time{{}}"),
        ("mistral", f"[TOOL_CALLS] [{CALL}] [TOOL_CALLS] [{OTHER}]"),
    ],
)  # fmt: skip
def test_calls(family: str, text: str) -> None:
    assert parse(family, text) == TOLD
    assert parse(family, *text) == TOLD, "a character at a time"
    assert parse(family, text, calls_max=1) == TOLD[:2]


def test_text_before_and_behind() -> None:
    text = f"I look.  \n<tool_call>{CALL}</tool_call> Done. "
    expected = [Said("I look."), *TOLD[:2], Said(" Done.")]
    assert parse("hermes", text) == parse("hermes", *text) == expected


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ('{"name": "get_time"}', "{}"),
        ('{"name": "get_time", "arguments": null}', "{}"),
        ('{"name": "get_time", "arguments": ""}', "{}"),
        ('{"name": "get_time", "arguments": "hello"}', '"hello"'),
        ('{"name": "get_time", "arguments": [1]}', "[1]"),
        ('{"name": "get_time", "arguments": "\\ud83d"}', '"\\ud83d"'),
        ('{"arguments": {"a": 1}, "name": "get_time"}', '{"a": 1}'),
        ('{"name": "get_time", "arguments": "{\\"a\\": 1}"}', '{"a": 1}'),
        ('{"id": 7, "name": "get_time", "arguments": {"a":[1]} , "x": {"name": "y"}}', '{"a":[1]}'),
        ('{"name": "get_time", "parameters": {"name": 1}, "arguments": {"b": 1}}', '{"name": 1}'),
        ('{"\\u006eame":"get_time","arguments":{ "a" : 1 } }', '{ "a" : 1 }'),
    ],
)  # fmt: skip
def test_ways_to_write_one(call: str, arguments: str) -> None:
    expected = [Called("get_time"), Argued(arguments)]
    call = f"<tool_call>{call}</tool_call>"
    assert parse("hermes", call) == parse("hermes", *call) == expected


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "text",
    [
        "", " ", "Hello, world! ", "[1, 2]", '{"a": {"name": "get_time"}}', "{", "[",
        '[{"x": 1}, 2]\n',
        '{"name": "unknown", "arguments": {"a": "}"}} and more', '{"name": 7}', '{"name": "get_t',
        '{"name": "get_time", "description": "an answer in JSON"}', '{"name": "\\ud83d"}',
        '{"name":' + "[" * 2000 + "]" * 2000 + "}", '{"name": "get_time"}', "[" * 2000,
        '{"a": <b>}', " \n" * 2000, '[{"x": 1}] Done', ";<|python_tag", "}{",
        "a < b <tool", "[TOOL_CALLS is no mark", "\n\n{}", "; ,", '{"name"', '{"arguments": {}} ',
    ],
)  # fmt: skip
def test_what_is_no_call_is_text_to_the_letter(family: str, text: str) -> None:
    expected = [Said(text)] if text else []
    assert parse(family, text) == parse(family, *text) == expected


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("hermes", "see <tool_call> for more"),
        ("mistral", "[TOOL_CALLS] are nice"),
        ("mistral", "[TOOL_CALLS]get_nothing[ARGS]{}"),
        ("mistral", "[TOOL_CALLS]get_time[ARGS] no"),
        ("llama3", "<|python_tag|>print(1)"),
        ("hermes", "<tool_call>"),
        ("hermes", "<tool_call></tool_call>hi"),
        ("hermes", "<tool_call><tool_call> hi"),
        ("hermes", 'so:  \n<tool_call>{"name": "rm", "arguments": {}}</tool_call> '),
        ("hermes", "Some text  \n<tool_call>oops"),
        ("llama3", ";<|python_tag|>"),
        ("mistral", "[TOOL_CALLS] [1, 2]"),
        ("mistral", "[TOOL_CALLS]get_time[CALL_ID]" + "x" * 2000),
    ],
)
def test_a_marker_without_a_call_is_text_to_the_letter(family: str, text: str) -> None:
    assert parse(family, text) == parse(family, *text) == [Said(text)]


@pytest.mark.parametrize("length", range(1, len(CALL)))
def test_a_call_that_is_cut_off(length: int) -> None:
    """What has come of it is told, and never as a whole one."""
    text = CALL[:length]
    events = parse("json", text)
    assert events == parse("json", *text)
    tools = ToolParser(FAMILIES["json"], NAMES)
    tools.feed(text)
    assert tools.is_within == isinstance(events[0], Called)
    if isinstance(events[0], Called):
        written = "".join(event.text for event in events if isinstance(event, Argued))
        assert WRITTEN.startswith(written)
    else:
        assert events == [Said(text)]


FORCED = {
    "hermes": f"<tool_call>\n{CALL}\n</tool_call>\n<tool_call>\n{OTHER}\n</tool_call>",
    "llama3": CALL.replace("arguments", "parameters"),
    "mistral": f"[TOOL_CALLS][{CALL}, {OTHER}]",
    "json": f"[{CALL}, {OTHER}]",
}
OUTSIDE = f"[TOOL_CALLS]get_weather[ARGS]{WRITTEN}[TOOL_CALLS]get_time[ARGS]{{}}"


@pytest.mark.parametrize(("family", "text"), [*FORCED.items(), ("mistral", OUTSIDE)])
@pytest.mark.parametrize("is_forced", [False, True])
def test_a_reply_that_is_cut_off_tells_no_marks(family: str, text: str, is_forced: bool) -> None:
    """Wherever that is: what is not known to be a call yet is nothing."""
    tools = FAMILIES[family]
    for length in range(len(text) + 1):
        parsed = ToolParser(tools, NAMES, is_forced=is_forced)
        events = joined([*parsed.feed(text[:length]), *parsed.finish(is_cut=True)])
        said = "".join(event.text for event in events if isinstance(event, Said))
        if is_forced or tools.is_marked:
            assert said == "" or (said == text[:1] and not is_forced), text[:length]
        called = [event.name for event in events if isinstance(event, Called)]
        assert called == list(NAMES)[: len(called)]
        written = [event.text for event in events if isinstance(event, Argued)]
        assert all(map(str.startswith, [WRITTEN, "{}"], written))


@pytest.mark.parametrize(
    ("family", "text", "said"),
    [
        ("hermes", "a < b <tool_", "a < b"), ("mistral", "a [b] [TOOL", "a [b]"),
        ("llama3", "<|python", ""), ("json", '{"name": "get', '{"name": "get'),
        ("hermes", "a <", "a <"), ("hermes", 'so <tool_call>{"name": "ge', "so"),
    ],
)  # fmt: skip
def test_text_that_is_cut_off_keeps_what_is_no_mark(family: str, text: str, said: str) -> None:
    tools = ToolParser(FAMILIES[family], NAMES)
    events = joined([*tools.feed(text), *tools.finish(is_cut=True)])
    assert "".join(e.text for e in events if isinstance(e, Said)).rstrip() == said


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ('{"a": "x\ny\t\x01\x7f"}', {"a": "x\ny\t\x01\x7f"}),
        ('{"a\n": "\\d \\u12 \\\' \\n"}', {"a\n": "\\d \\u12 \\' \n"}),
        ('{"a": [1,], }', {"a": [1]}),
        ('{"a": 1, b: 2}', {"a": 1}),
        ("{'a': 1}", {}),
        ('{"a": True, "b": 1}', {}),
        ('{"a": [1, NaN]}', {"a": [1]}),
        ('{"a": "x" "b": 1}', {"a": "x"}),
        ('{"a": 01}', {}),
        ('{"a": [1}', {"a": [1]}),
        ('{"a": {"b": "c", // why\n "d": 1}}', {"a": {"b": "c"}}),
    ],
)
def test_arguments_are_json_whatever_the_model_wrote(family: str, written: str, meant: Any) -> None:
    call = f'{{"name": "get_time", "arguments": {written}}}'
    text = call if FAMILIES[family].is_bare else f"{FAMILIES[family].marker}{call}"
    texts = [text, f"[TOOL_CALLS]get_time[ARGS]{written}"] if family == "mistral" else [text]
    for text in texts:
        events = parse(family, *text)
        assert events[0] == Called("get_time") and parse(family, text) == events
        assert isinstance(events[1], Argued) and json.loads(events[1].text) == meant
        tools = ToolParser(FAMILIES[family], NAMES)
        tools.feed(text)
        assert tools.has_broken is not written.endswith(('\\n"}', '\x7f"}', ", }"))


PARTS = [
    "\x00", "\t", "\\n", "'", "NaN", "-", "1", "true", '"a":', "\\u12",
    CALL, OTHER, "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "get_time", "{", "}", "[",
    "]", '"', "\\", ",", " ", "\n", "x", ":", "name", '{"name": "no"}', "<|python_tag|>", WRITTEN,
    "[CALL_ID]", ";", "<", "get_",
]  # fmt: skip


@given(
    family=st.sampled_from(sorted(FAMILIES)),
    parts=st.lists(st.sampled_from(PARTS), max_size=12),
    cuts=st.lists(st.integers(0, 200), max_size=8),
)
def test_however_it_comes_it_tells_the_same(family: str, parts: list[str], cuts: list[int]) -> None:
    text = "".join(parts)
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[begin:end] for begin, end in pairwise(places)]
    events = parse(family, text)
    assert parse(family, *pieces) == events
    called = [event.name for event in events if isinstance(event, Called)]
    assert set(called) <= set(NAMES)
    tools = ToolParser(FAMILIES[family], NAMES)
    tools.feed(text)
    written = [event.text for event in events if isinstance(event, Argued)]
    for arguments in written[:-1] if tools.is_within else written:
        json.loads(arguments)
    if not called:
        said = "".join(event.text for event in events if isinstance(event, Said))
        assert said == text, "nothing is lost"


def test_behind_a_call_only_what_belongs_to_it_is_left_out() -> None:
    events = [Called("get_time"), Argued("{}"), Said("Done")]
    for text in (f"[{OTHER}] Done", f"{OTHER}, ;Done"):
        assert parse("json", text) == parse("json", *text) == events


@pytest.mark.parametrize("char", [" ", "[", "\n", ",", "x", "<", "{", '"'])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_long_reply_takes_as_long_as_it_is(family: str, char: str) -> None:
    """By what is looked at again and again."""
    tools = ToolParser(FAMILIES[family], NAMES)
    for _ in range(20_000):
        tools.feed(char)
        assert len(tools._held) + len(tools._before) <= 2 * parser.HELD_CHARS_MAX


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("... <tool_call>...", "hermes"), ("[TOOL_CALLS]", "mistral"), ("<|python_tag|>", "llama3"),
        ("Environment: ipython", "llama3"), ("{{ tools }}", "json"), ("", "json"),
    ],
)  # fmt: skip
def test_a_family_by_its_template(template: str, name: str) -> None:
    assert family_of(template).name == name


@pytest.mark.parametrize("module", [call_reader, families, detokenizer])
def test_examples(module: Any) -> None:
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0
