"""Schemas: what is left out, what is refused and where, and that replies are what they say."""

import doctest
from typing import Any

import pytest

from loadtest.fuzz.schemas import tried
from services.frontend.core.replies.forms import Form, pointed_flaw
from services.frontend.core.schemas import is_open, keywords, openness, rewritten
from services.frontend.core.structures import Structure, grammar_of
from shared.wire.grammar import byte_tokenizer, flaw_of

ANNOTATIONS: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$id": "https://a.example/b",
    "$anchor": "top",
    "$comment": "x",
    "title": "x",
    "description": "x",
    "default": 1,
    "examples": [1],
    "deprecated": True,
    "readOnly": True,
    "writeOnly": True,
    "x-order": [1],
    "contentEncoding": "base64",
    "contentMediaType": "image/png",
    "contentSchema": {"type": 7},
    "nullable": True,
    "discriminator": {"propertyName": "a"},
    "uniqueItems": False,
    "not": False,
    "if": {"type": "null"},
    "else": {},
    "minContains": 1,
    "unevaluatedProperties": True,
    "dependentRequired": {"a": []},
    "$defs": {"unused": {"not": {}, "type": "cat"}},
    "definitions": {"unused": {"uniqueItems": True}},
    "$vocabulary": {},
    "format": "color",
    "propertyNames": {},
}


@pytest.mark.parametrize("name", sorted(ANNOTATIONS))
def test_what_constrains_nothing_is_left_out(name: str) -> None:
    schema = {"type": "array", "items": {"type": "null", name: ANNOTATIONS[name]}}
    assert rewritten(schema) == {"type": "array", "items": {"type": "null"}}
    assert rewritten({name: ANNOTATIONS[name]}) == {}


@pytest.mark.parametrize(
    "given",
    [
        "regex",
        "uri-reference",
        "iri",
        "idn-email",
        "password",
        "binary",
        "path",
        "json-string",
        "byte",
        "int32",
    ],
)
def test_an_unknown_format_is_an_annotation(given: str) -> None:
    assert rewritten({"type": "string", "format": given, "minLength": 1}) == {
        "type": "string",
        "minLength": 1,
    }
    assert rewritten({"type": "string", "format": "date"})["format"] == "date"


@pytest.mark.parametrize(
    ("schema", "same"),
    [
        ({"type": "string", "minimum": 7, "uniqueItems": True}, {"type": "string"}),
        ({"type": ["integer"], "maxLength": 2.0}, {"type": "integer"}),
        ({"type": "array", "uniqueItems": True, "maxItems": 1}, {"type": "array", "maxItems": 1}),
        (
            {"type": "array", "items": [{"type": "null"}], "additionalItems": False},
            {"type": "array", "prefixItems": [{"type": "null"}], "items": False},
        ),
        (
            {"type": "object", "unevaluatedProperties": False},
            {"type": "object", "additionalProperties": False},
        ),
        (
            {"type": "integer", "exclusiveMinimum": True, "minimum": 1},
            {"type": "integer", "exclusiveMinimum": 1},
        ),
        ({"type": "integer", "maximum": 2**63 - 1}, {"type": "integer", "maximum": 2**63 - 1024}),
        (
            {"type": "object", "required": ["a", "a"], "minProperties": 1},
            {"type": "object", "required": ["a"]},
        ),
        ({"$ref": "#top", "$defs": {"x": {"$anchor": "top", "const": 1}}}, {"const": 1}),
        ({"$id": "https://a.b/c", "$ref": "https://a.b/c#/x/0", "x": [{"const": 1}]}, {"const": 1}),
        ({"$ref": "#/x~1y", "x/y": {"const": 1}}, {"const": 1}),
        (
            {"$ref": "d", "$defs": {"d": {"$id": "d", "$ref": "#/e", "e": {"const": 1}}}},
            {"const": 1},
        ),
    ],
)
def test_a_schema_is_said_in_fewer_words(schema: Any, same: dict[str, Any]) -> None:
    made = rewritten(schema)
    defs = made.pop("$defs", {})
    while "$ref" in made:
        made = defs[made["$ref"].rpartition("/")[2]]
    assert made == same


@pytest.mark.parametrize(
    ("schema", "where"),
    [
        ({"not": {}}, "#/not"),
        (
            {"properties": {"a": {"items": {"uniqueItems": True}}}},
            "#/properties/a/items/uniqueItems",
        ),
        ({"contains": {}}, "#/contains"),
        ({"if": {}, "then": {"type": "null"}}, "#/if"),
        ({"propertyNames": {"maxLength": 3}}, "#/propertyNames"),
        ({"dependentSchemas": {"a": {"required": ["b"]}}}, "#/dependentSchemas"),
        ({"dependencies": {"a": ["b"]}}, "#/dependencies"),
        ({"allOf": [{}], "unevaluatedProperties": False}, "#/unevaluatedProperties"),
        ({"$dynamicRef": "#a"}, "#/$dynamicRef"),
        ({"patternProperties": {"^a/b~": {"type": "cat"}}}, "#/patternProperties/^a~1b~0/type"),
        ({"type": ["null", "cat"]}, "#/type"),
        ({"anyOf": []}, "#/anyOf"),
        ({"anyOf": [{}, 7]}, "#/anyOf"),
        ({"properties": []}, "#/properties"),
        ({"properties": {"a": 7}}, "#/properties"),
        ({"required": [1]}, "#/required"),
        ({"enum": "a"}, "#/enum"),
        ({"minLength": -1}, "#/minLength"),
        ({"maxItems": 1.5}, "#/maxItems"),
        ({"minimum": "1"}, "#/minimum"),
        ({"minimum": True}, "#/minimum"),
        ({"pattern": 7}, "#/pattern"),
        ({"format": 7}, "#/format"),
        ({"multipleOf": 0}, "#/multipleOf"),
        ({"type": "integer", "multipleOf": 99_999_999}, "#/multipleOf"),
        ({"type": "number", "multipleOf": 1e-300}, "#/multipleOf"),
        ({"allOf": [{"multipleOf": 997}, {"multipleOf": 991}]}, "#/allOf/1/multipleOf"),
        ({"type": "number", "maximum": -(10**30)}, "#/maximum"),
        ({"type": "number", "minimum": 1e-300}, "#/minimum"),
        ({"const": 2**53 + 1}, "#/const"),
        ({"enum": [{"a": [2**60]}]}, "#/enum"),
        ({"$ref": "#"}, "#/$ref"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "#/$ref"),
        ({"items": {"$ref": "#/$defs/none"}}, "#/items/$ref"),
        ({"$ref": "http://127.0.0.1:9/x"}, "#/$ref"),
        ({"$ref": "#/$defs/a", "$defs": {"a": 7}}, "#/$defs/a"),
        ({"properties": {"a": {}}, "minProperties": 2}, "#/minProperties"),
        ({"properties": {"a": {}, "b": {}}, "maxProperties": 1}, "#/maxProperties"),
    ],
)
def test_what_cannot_be_held_is_refused_by_pointer(schema: Any, where: str) -> None:
    with pytest.raises(ValueError, match=r"^at ") as caught:
        rewritten(schema)
    assert str(caught.value).startswith(f"at {where}: ")


@pytest.mark.parametrize(
    "schema",
    [
        {
            "oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
            "$defs": {
                "a": {"type": "object", "properties": {"k": {"const": "a"}}, "required": ["k"]},
                "b": {
                    "type": "object",
                    "properties": {"k": {"const": "b"}, "n": {"$ref": "#"}},
                    "required": ["k"],
                },
            },
        },
        {"type": "array", "items": {"$ref": "#"}},
        {
            "anyOf": [
                {"type": "null"},
                {"oneOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#"}}]},
            ]
        },
    ],
)
def test_references_that_come_back_compile(schema: Any) -> None:
    assert flaw_of(grammar_of(Structure("s", "json", schema)), byte_tokenizer()) == ""


@pytest.mark.parametrize(
    ("schema", "wanted"),
    [
        ({}, True),
        ({"type": "string"}, False),
        ({"type": "array"}, True),
        ({"const": {}}, False),
        ({"type": "object", "additionalProperties": False}, False),
        ({"type": "object", "additionalProperties": False, "properties": {"a": {}}}, True),
        (
            {"type": "object", "additionalProperties": False, "patternProperties": {"a": False}},
            True,
        ),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"enum": [{"a": 1}]}}}, False),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": ["object", "null"]}}}, True),
        ({"type": "object", "allOf": [{"required": ["a"]}]}, True),
        ({"type": "array", "items": {"type": "null"}}, False),
        ({"type": "array", "prefixItems": [{"type": "null"}]}, True),
    ],
)
def test_which_objects_may_have_any_keys(schema: Any, wanted: bool) -> None:
    assert is_open(rewritten(schema)) is wanted


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"items": {"allOf": [{}, {"pattern": "(?=a)"}]}}, "at #/items/allOf/1: regex parse error"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "at #: its options may overlap"),
        (
            {"properties": {"50%20/x": {"patternProperties": {"a": {}, "b": {}}}}},
            "at #/properties/50%20~1x: patternProperty regexes",
        ),
    ],
)
def test_what_does_not_compile_is_pointed_at(schema: Any, says: str) -> None:
    form = Form(Structure("s", "json", schema))
    assert pointed_flaw(form, lambda grammar: flaw_of(grammar, byte_tokenizer())).startswith(says)


def test_replies_are_what_their_schemas_say() -> None:
    report = tried(range(150))
    assert not report.violations, report.violations
    assert report.counts["right"] > 200


@pytest.mark.slow
def test_replies_are_what_their_schemas_say_in_many_more() -> None:
    report = tried(range(1000, 6000))
    assert not report.violations, report.violations


@pytest.mark.parametrize("module", [keywords, openness])
def test_examples(module: Any) -> None:
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0
