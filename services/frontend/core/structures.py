"""What a reply is to look like, as a grammar."""

import json
from dataclasses import dataclass
from typing import Any, Literal

from llguidance import LLMatcher, grammar_from

Kind = Literal["json", "regex", "choice", "grammar", "lark"]

# Between JSON's tokens: what models write who set it out nicely, and not without end, as small ones
# write it.
WHITESPACE = r"[ \n]?[ \t]{0,40}"
ANY_OBJECT = {"type": "object"}


@dataclass(frozen=True, slots=True)
class Structure:
    """What a request wants of a reply.

    Attributes:
        name: of the field that says it.
        value: a JSON schema, an expression, texts to choose from, or rules, by `kind`; `grammar` is
            Lark's or llama.cpp's (GBNF), `lark` is ours.
        whitespace: between the tokens of JSON, as an expression; None: `WHITESPACE`.
    """

    name: str
    kind: Kind
    value: Any
    whitespace: str | None = None


def grammar_of(structure: Structure) -> str:
    """It as llguidance takes it, to be compiled.

    Raises:
        ValueError: it is none; says why.
    """
    value = structure.value
    match structure.kind:
        case "json":
            between = WHITESPACE if structure.whitespace is None else structure.whitespace
            return json_grammar(value, between)
        case "regex":
            return LLMatcher.grammar_from_regex(value)
        case "choice":
            return LLMatcher.grammar_from_lark(
                "start: " + " | ".join(map(literal, dict.fromkeys(value)))
            )
        case "grammar":
            return grammar_from("grammar", value)
        case "lark":
            return LLMatcher.grammar_from_lark(value)


def json_grammar(schema: dict[str, Any] | bool, whitespace: str) -> str:
    """Whatever a schema takes."""
    options: Any = {"whitespace_pattern": whitespace}
    if not whitespace:
        options = {"whitespace_flexible": False}
    return LLMatcher.grammar_from_json_schema(_as_object(schema), overrides=options)


def literal(text: str) -> str:
    r"""A text in a grammar's rule.

    >>> literal('say "hi"\n')
    '"say \\"hi\\"\\n"'
    """
    return json.dumps(text, ensure_ascii=False)


def embedded(schema: dict[str, Any] | bool) -> str:
    """A schema within a rule; its references stay its own."""
    options = {"whitespace_pattern": WHITESPACE}
    return "%json " + json.dumps({**_as_object(schema), "x-guidance": options})


def _as_object(schema: dict[str, Any] | bool) -> dict[str, Any]:
    """A schema may be true, or false.

    >>> _as_object(True), _as_object({"type": "null"})
    ({}, {'type': 'null'})
    """
    if isinstance(schema, bool):
        return {} if schema else {"enum": []}
    return schema
