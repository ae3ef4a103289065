"""What replies can be held to: every field's way to a grammar, and what is refused."""

from typing import Any

import pytest
from llguidance import LLMatcher

from services.frontend.api.bodies.text import ChatBody
from services.frontend.api.text.structure import structure_of
from services.frontend.core.structural_tags import tags_grammar
from services.frontend.core.structures import Structure, embedded, grammar_of, literal
from services.frontend.core.tools import FAMILIES, ToolParser
from services.frontend.core.tools.families import Argued, Called
from services.frontend.core.tools.forcing import CallRule, calls_grammar
from shared.errors import InvalidRequest
from shared.wire.grammar import byte_tokenizer, flaw_of, matcher_of, tokens_in
from shared.wire.sampling import GRAMMAR_BYTES_MAX
from tests.unit.frontend.api.test_fields import parsed

TOKENIZER = byte_tokenizer()
POINT: dict[str, Any] = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "y": {"$ref": "#/$defs/y"}},
    "required": ["x"],
    "additionalProperties": False,
    "$defs": {"y": {"enum": ["low", "high"]}},
}


def takes(grammar: str, text: str) -> bool:
    """Whether a reply may be this text, and end behind it."""
    assert flaw_of(grammar, TOKENIZER) == ""
    matcher = matcher_of(grammar, TOKENIZER)
    tokens = list(text.encode())
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def wanted(**fields: Any) -> Structure | None:
    body = parsed(ChatBody, **fields)
    assert isinstance(body, ChatBody)
    return structure_of(body)


TAGS: dict[str, Any] = {
    "type": "structural_tag",
    "structures": [
        {"begin": "<f=move>", "schema": POINT, "end": "</f>"},
        {"begin": "<f=stop>", "schema": {"type": "object"}, "end": "</f>"},
        {"begin": "[[", "schema": {"type": "integer"}, "end": "]]"},
    ],
    "triggers": ["<f=", "[["],
}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "point", "schema": POINT, "strict": True}}


@pytest.mark.parametrize(
    ("fields", "good", "bad"),
    [
        ({"response_format": {"type": "json_object"}}, ['{}', '{"a": [1, {}]}'], ["[]", "a"]),
        ({"response_format": SCHEMA}, ['{"x":1}', '{\n  "x": 1,\n  "y": "low"\n}'], ['{"y": 1}']),
        ({"guided_json": POINT}, ['{"x": 1}'], ['{"x": "1"}', '{"x": 1, "z": 2}', '{"x":\n\n1}']),
        ({"guided_json": '{"type": "integer"}'}, ["17"], ["1.5", ""]),
        ({"guided_json": True}, ["[]", "null"], ["a"]),
        (
            {"guided_json": POINT, "guided_whitespace_pattern": r"\t*"},
            ['{"x":\t\t1}'], ['{"x": 1}'],
        ),
        ({"guided_regex": r"\d{3}-[a-z]+"}, ["123-abc"], ["123-", "x123-abc"]),
        (
            {"guided_choice": ["yes", 'no "way"\n', "é", "yes", "\x7f\x01"]},
            ["yes", 'no "way"\n', "é", "\x7f\x01"], ["no"],
        ),
        ({"guided_grammar": 'start: "a" start "b" | "c"'}, ["aacbb"], ["aacb"]),
        ({"guided_grammar": 'root ::= "a" root "b" | "c"'}, ["aacbb"], ["aacb"]),
        ({"structured_outputs": {"json": POINT}}, ['{"x": 1}'], ["1"]),
        (
            {"structured_outputs": {"json": POINT, "disable_any_whitespace": True}},
            ['{"x":1}'], ['{"x": 1}'],
        ),
        ({"structured_outputs": {"json_object": True}}, ["{}"], ["1"]),
        ({"structured_outputs": {"choice": ["a"]}}, ["a"], ["b"]),
        ({"structured_outputs": {"regex": "a|b"}}, ["a"], ["ab"]),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, ["a"], ["ab"]),
        ({"json_schema": '{"type": "null"}'}, ["null"], ["0"]),
        ({"regex": "a+"}, ["aa"], [""]),
        ({"ebnf": 'root ::= "a" | "b"'}, ["b"], ["c"]),
        ({"grammar": 'root ::= [a-c]+'}, ["abc"], ["d"]),
    ],
)  # fmt: skip
def test_every_field_becomes_a_grammar(
    fields: dict[str, Any], good: list[str], bad: list[str]
) -> None:
    structure = wanted(**fields)
    assert structure is not None and structure.name.partition(".")[0] in fields
    grammar = grammar_of(structure)
    assert [text for text in good if not takes(grammar, text)] == []
    assert [text for text in bad if takes(grammar, text)] == []


@pytest.mark.parametrize("fields", [{}, {"response_format": {"type": "text"}}, {"regex": None}])
def test_a_reply_may_be_anything(fields: dict[str, Any]) -> None:
    assert wanted(**fields) is None


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema: give"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "schema: give a JSON"),
        ({"response_format": {"type": "xml"}}, "response_format: this value is not supported"),
        ({"response_format": {}}, "response_format: this value is not supported"),
        ({"guided_json": "{"}, "guided_json: this is no JSON"),
        ({"guided_json": 7}, "guided_json: give a JSON schema"),
        ({"guided_json": " " * (GRAMMAR_BYTES_MAX + 1)}, "guided_json: more than"),
        ({"guided_json": {"enum": ["x" * GRAMMAR_BYTES_MAX]}}, "guided_json: more than"),
        ({"guided_json": '{"not":' * 1000 + "{}" + "}" * 1000}, "guided_json: "),
        ({"guided_choice": []}, "guided_choice: give 1 to"),
        ({"guided_choice": "yes"}, "guided_choice: give 1 to"),
        ({"guided_choice": ["a", ""]}, "guided_choice: give 1 to"),
        ({"guided_choice": ["a", 7]}, "guided_choice: give 1 to"),
        ({"guided_choice": ["a" * GRAMMAR_BYTES_MAX, "b"]}, "guided_choice: more than"),
        ({"regex": ""}, "regex: give a text"),
        ({"regex": "a" * (GRAMMAR_BYTES_MAX + 1)}, "regex: more than"),
        ({"structured_outputs": {}}, "structured_outputs: give one of"),
        ({"structured_outputs": {"regex": 7}}, "structured_outputs.regex: give a text"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structural_tag: structures: give 1"),
        ({"structured_outputs": {"structural_tag": "{"}}, "structural_tag: this is no JSON"),
        ({"structured_outputs": {"structural_tag": 7}}, "structural_tag: give an object"),
        ({"response_format": TAGS | {"format": {}}}, "only the form with structures"),
        ({"response_format": TAGS | {"triggers": []}}, "triggers: give 1 to"),
        ({"response_format": TAGS | {"triggers": ["<f=", "[[", "("]}}, "the trigger '('"),
        ({"response_format": TAGS | {"triggers": ["("]}}, "none of the triggers begins '<f=move>'"),
        ({"response_format": TAGS | {"triggers": ["<f=", "<"]}}, "more than one of the triggers"),
        ({"response_format": TAGS | {"structures": ["x"]}}, "structures: give objects"),
        ({"response_format": TAGS | {"structures": [{"begin": "<f=", "end": 7}]}}, "end: give a"),
        ({"structured_outputs": {"json": {}, "whitespace_pattern": 1}}, "whitespace_pattern: give"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "only one of them"),
        ({"regex": "a", "guided_json": {}}, "guided_json and regex: only one of them"),
        ({"regex": "a", "allowed_token_ids": [1]}, "allowed_token_ids: not together with regex"),
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern: only with guided_json"),
    ],
)
def test_what_is_no_structure_is_refused_by_name(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        wanted(**fields)
    assert says in caught.value.message and len(caught.value.message) < 300


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"regex": "(a"}, "unclosed group"),
        ({"ebnf": "root ::= ("}, ""),
        ({"guided_json": {"type": "cat"}}, "at #/type: give one of null"),
        ({"guided_json": False}, "Unsatisfiable"),
        ({"guided_json": {"items": {"if": {}, "else": False}}}, "at #/items/if: no reply"),
    ],
)
def test_what_cannot_be_compiled_says_why(fields: dict[str, Any], says: str) -> None:
    structure = wanted(**fields)
    assert structure is not None
    try:
        flaw = flaw_of(grammar_of(structure), TOKENIZER)
    except ValueError as error:
        flaw = str(error)
    assert flaw and says in flaw


def test_marked_parts_are_held_and_what_is_between_is_not() -> None:
    structure = wanted(response_format=TAGS)
    assert structure is not None
    grammar = LLMatcher.grammar_from_lark(tags_grammar(structure.value, literal))
    for good in (
        "", "Nothing to do.", "a < b", "[", '<f=move>{"x": 1}</f>',
        'First <f=move>{"x": 1}</f>, then [[17]], <f=stop>{}</f> and rest.',
    ):  # fmt: skip
        assert takes(grammar, good), good
    for bad in ("<f=run>{}</f>", "<f=move>{}</f>", '<f=move>{"x": 1}', "[[x]]", "[[1]] <f="):
        assert not takes(grammar, bad), bad


RULES = [CallRule("move", POINT), CallRule("wait")]
STRICT = [CallRule("move", POINT, is_strict=True), CallRule("wait", POINT)]


@pytest.mark.parametrize(
    ("name", "names_outside"), [("hermes", False), ("mistral", False), ("mistral", True)]
)
@pytest.mark.parametrize("is_one", [False, True])
def test_who_may_call_is_held_to_what_is_strict(
    name: str, names_outside: bool, is_one: bool
) -> None:
    rules = calls_grammar(
        FAMILIES[name], STRICT, is_one=is_one, names_outside=names_outside, marked=literal,
        is_free=True,
    )  # fmt: skip
    grammar = LLMatcher.grammar_from_lark(rules)
    two = two_calls(name, names_outside)
    for text in ("", "It rains.", '{"name": "wait"}', "a < b [1]"):
        assert takes(grammar, text), text
    assert takes(grammar, f"I shall. {two}") is not is_one
    one = two_calls(name, names_outside, num=1)
    assert takes(grammar, f"I shall. {one}"), "arguments of what is not strict are any"
    assert not takes(grammar, one.replace("wait", "sing")), "no tool is called so"
    moved = one.replace("wait", "move")
    assert not takes(grammar, moved)
    assert takes(grammar, moved.replace("{}", '{"x": 1}'))
    assert not takes(grammar, moved.replace("{}", '{"x": "1"}'))


@pytest.mark.parametrize("name", list(FAMILIES))
@pytest.mark.parametrize("names_outside", [False, True])
@pytest.mark.parametrize("is_one", [False, True])
def test_forced_replies_are_read_as_calls(name: str, names_outside: bool, is_one: bool) -> None:
    """The shortest reply that its grammar takes, whatever the family."""
    family = FAMILIES[name]
    rules = calls_grammar(family, RULES, is_one=is_one, names_outside=names_outside, marked=literal)
    grammar = LLMatcher.grammar_from_lark(rules)
    assert flaw_of(grammar, TOKENIZER) == ""
    reply = shortest(grammar)
    parser = ToolParser(family, {"move", "wait"}, 1 if is_one else None)
    events = [*parser.feed(reply), *parser.finish()]
    names = [event.name for event in events if isinstance(event, Called)]
    assert names in (["move"], ["wait"]), reply
    assert takes(calls_grammar_of_arguments(names[0]), arguments_of(events))
    assert not takes(grammar, reply + "x") and not takes(grammar, "No.")
    assert takes(grammar, two_calls(name, names_outside)) is (not is_one and name != "llama3")


def test_an_answer_may_stand_in_place_of_calls() -> None:
    rules = calls_grammar(
        FAMILIES["hermes"], RULES, is_one=True, names_outside=False, marked=literal,
        or_else='"no " /[a-z]+/',
    )  # fmt: skip
    grammar = LLMatcher.grammar_from_lark(rules)
    assert takes(grammar, "no idea") and not takes(grammar, "idea")
    assert takes(grammar, '<tool_call>\n{"name": "wait", "arguments": {}}\n</tool_call>')


def calls_grammar_of_arguments(name: str) -> str:
    schema = POINT if name == "move" else {"type": "object"}
    return grammar_of(Structure("arguments", "json", schema))


def arguments_of(events: list[Any]) -> str:
    return "".join(event.text for event in events if isinstance(event, Argued))


def shortest(grammar: str) -> str:
    """What is said by whoever closes everything as soon as it can be."""
    matcher, said = matcher_of(grammar, TOKENIZER), b""
    while not matcher.is_stopped() and len(said) < 200:
        allowed = tokens_in(matcher.compute_bitmask()).tolist()
        token = next((t for t in (256, *b'"}]<,:{0') if t in allowed), allowed[0])
        if token == 256:
            break
        assert matcher.consume_token(token)
        said += bytes([token])
    return said.decode()


def two_calls(name: str, names_outside: bool, num: int = 2) -> str:
    call = '{"name": "wait", "%s": {}}' % ("parameters" if name == "llama3" else "arguments")
    match name:
        case "hermes":
            return "\n".join([f"<tool_call>\n{call}\n</tool_call>"] * num)
        case "mistral" if names_outside:
            return "[TOOL_CALLS]wait[ARGS]{}" * num
        case "mistral":
            return f"[TOOL_CALLS][{', '.join([call] * num)}]"
        case _:
            return f"[{call}, {call}]"


def test_a_user_s_options_of_the_library_are_not_heard() -> None:
    schema = {"type": "object", "x-guidance": {"item_separator": "XX", "lenient": True}}
    assert "XX" not in grammar_of(Structure("s", "json", schema)) + embedded(schema)
