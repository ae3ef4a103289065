"""Grammars of replies that have to call tools, written as each family writes calls."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from services.frontend.core.structures import ANY_OBJECT, embedded, literal
from services.frontend.core.tools.families import Family


@dataclass(frozen=True, slots=True)
class CallRule:
    """A tool that may be called.

    Attributes:
        parameters: JSON schema of its arguments; None: any object.
    """

    name: str
    parameters: dict[str, Any] | None = None


def calls_grammar(
    family: Family,
    rules: Sequence[CallRule],
    *,
    is_one: bool,
    names_outside: bool,
    marked: Callable[[str], str],
    or_else: str = "",
) -> str:
    """A reply that calls one of these tools, or some of them, in Lark's words.

    Args:
        is_one: once, and no more.
        names_outside: the family's template writes names outside of JSON, with a mark behind.
        marked: a mark as the model's vocabulary has it: a text, or one token.
        or_else: what the reply may be instead.
    """
    is_outside = names_outside and bool(family.argument_marker)
    if is_outside:
        one = f"{marked(family.marker)} call"
        start = one if is_one else f"{one} ({one})*"
    else:
        start = _around(family, is_one=is_one, marked=marked)
    lines = [f"start: {start}" + (" | otherwise" if or_else else "")]
    lines += [f"otherwise: {or_else}"] if or_else else []
    lines.append("call: " + " | ".join(f"call_{at}" for at in range(len(rules))))
    key = "parameters" if family.name == "llama3" else "arguments"
    for at, rule in enumerate(rules):
        head, tail = literal(f'{{"name": {literal(rule.name)}, "{key}": '), ' "}"'
        if is_outside:
            head, tail = f"{literal(rule.name)} {marked(family.argument_marker)}", ""
        lines.append(f"call_{at}: {head} args_{at}{tail}")
        schema = ANY_OBJECT if rule.parameters is None else rule.parameters
        lines.append(f"args_{at}: {embedded(schema)}")
    return "\n".join(lines) + "\n"


def _around(family: Family, *, is_one: bool, marked: Callable[[str], str]) -> str:
    """What stands around calls that are JSON objects."""
    match family.name:
        case "hermes":
            one = f'{marked(family.marker)} "\\n" call "\\n" {marked(family.end)}'
            return one if is_one else f'{one} ("\\n" {one})*'
        case "mistral":
            more = "" if is_one else ' (", " call)*'
            return f'{marked(family.marker)} "[" call{more} "]"'
        case "llama3":  # which calls one tool a reply
            return "call"
        case _:
            return "call" if is_one else 'call | "[" call (", " call)* "]"'
