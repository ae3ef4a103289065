"""What a reply is to look like, as a grammar."""

import json
from dataclasses import dataclass
from typing import Any, Literal, cast

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import gbnf_to_lark

from services.frontend.core.schemas import rewritten

Kind = Literal["json", "regex", "choice", "grammar", "lark", "tags"]

# Between JSON's tokens: what models write that format it, with an end, which small models forget.
WHITESPACE = r"[ \n]?[ \t]{0,40}"
GBNF_CHARS_MAX = 16_384  # to turn it into Lark's words takes ever longer
OPTIONS = "x-guidance"  # by which a schema could have it otherwise
ANY_OBJECT = {"type": "object"}


@dataclass(frozen=True, slots=True)
class Structure:
    """What a request wants of a reply.

    Attributes:
        name: of the field that says it.
        value: a JSON schema, an expression, texts to choose from, or rules, by `kind`; `grammar` is
            Lark's or llama.cpp's (GBNF), `lark` is ours; `tags` are those of `structural_tags`,
            which makes a grammar of them.
        whitespace: between the tokens of JSON, as an expression; None: `WHITESPACE`.
    """

    name: str
    kind: Kind
    value: Any
    whitespace: str | None = None


def grammar_of(structure: Structure) -> str:
    """It as llguidance takes it, to be compiled. May take a while.

    Raises:
        ValueError: it is none; says why.
    """
    value = structure.value
    match structure.kind:
        case "json":
            return LLMatcher.grammar_from_json_schema(
                rewritten(value), overrides=cast(Any, _options(structure.whitespace))
            )
        case "regex":
            return LLMatcher.grammar_from_regex(value)
        case "choice":
            return LLMatcher.grammar_from_lark(
                "start: " + " | ".join(map(literal, dict.fromkeys(value)))
            )
        case "grammar":
            return LLMatcher.grammar_from_lark(_as_lark(value))
        case "lark":
            return LLMatcher.grammar_from_lark(value)
        case "tags":
            raise AssertionError("it is made where a model's marks are known")


def behind_thoughts(grammar: str, opening: str, closing: str) -> str:
    """What a reply is to look like that may think before.

    Args:
        grammar: of what it says, as llguidance takes it.
        opening: the mark before thoughts, in a rule's words; empty: it begins in them.
        closing: the one behind them.
    """
    try:
        grammars = json.loads(grammar)["grammars"]
    except ValueError:  # in Lark's words
        grammars = [{"lark_grammar": grammar}]
    before = "thoughts GAP" if not opening else "(open thoughts GAP)?"
    if closing.startswith('"'):
        thoughts = f"thoughts[suffix={closing}]: /(?s:.*)/"
    else:  # a token, which no text is
        thoughts = f"thoughts: /(?s:.*)/ {closing}"
    rules = [f"start: {before} @said", "GAP: /[ \n]{0,4}/", thoughts]
    rules += [f"open: {opening}"] if opening else []
    whole = {"name": "whole", "lark_grammar": "\n".join(rules) + "\n"}
    return json.dumps({"grammars": [whole, {**grammars[0], "name": "said"}, *grammars[1:]]})


def literal(text: str) -> str:
    r"""A text in a grammar's rule.

    >>> literal('say "hi"\n')
    '"say \\"hi\\"\\n"'
    """
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\x7f")


def embedded(schema: dict[str, Any] | bool, whitespace: str | None = None) -> str:
    """A schema within a rule; its references stay its own."""
    return "%json " + json.dumps({**rewritten(schema), OPTIONS: _options(whitespace)})


def _options(whitespace: str | None) -> dict[str, Any]:
    if whitespace is None:
        whitespace = WHITESPACE
    return {"whitespace_pattern": whitespace} if whitespace else {"whitespace_flexible": False}


def _as_lark(text: str) -> str:
    """Lark's words as they are, llama.cpp's in those."""
    if "::=" not in text:
        return text
    if len(text) > GBNF_CHARS_MAX:
        raise ValueError(f"more than {GBNF_CHARS_MAX} characters of GBNF")
    try:
        lark: str = gbnf_to_lark(text)
    except Exception as error:  # its own kinds, and what they come from
        raise ValueError(str(error)) from None
    return lark
