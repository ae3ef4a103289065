"""Grammars of replies that call tools, written as each family writes calls: that have to, or that
may, where a mark tells a call from a text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from services.frontend.core.structural_tags import ANY_TEXT, lead
from services.frontend.core.structures import ANY_OBJECT, embedded, literal
from services.frontend.core.tools.families import Family


@dataclass(frozen=True, slots=True)
class CallRule:
    """A tool that may be called.

    Attributes:
        parameters: JSON schema of its arguments; None: any object.
        is_strict: calls are held to it also where nobody has to call.
    """

    name: str
    parameters: dict[str, Any] | None = None
    is_strict: bool = False


def calls_grammar(
    family: Family,
    rules: Sequence[CallRule],
    *,
    is_one: bool,
    names_outside: bool,
    marked: Callable[[str], str],
    or_else: str = "",
    is_free: bool = False,
) -> str:
    """A reply that calls one of these tools, or some of them, in Lark's words.

    Args:
        is_one: once, and no more.
        names_outside: the family's template writes names outside of JSON, with a mark behind.
        marked: a mark as the model's vocabulary has it: a text, or one token.
        or_else: what the reply may be instead.
        is_free: any text may stand before and between calls, or in place of them; what the family's
            mark begins is a call. Arguments are held to what is strict.
    """
    is_outside = names_outside and bool(family.argument_marker)
    if is_free:
        lines = _freely(family, is_one=is_one, is_outside=is_outside, marked=marked)
    else:
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
        is_any = rule.parameters is None or (is_free and not rule.is_strict)
        schema = ANY_OBJECT if is_any else rule.parameters
        assert schema is not None
        lines.append(f"args_{at}: {embedded(schema)}")
    return "\n".join(lines) + "\n"


def _freely(
    family: Family, *, is_one: bool, is_outside: bool, marked: Callable[[str], str]
) -> list[str]:
    """Rules of any text with marked calls in it."""
    assert family.marker and not family.is_bare, "nothing tells its calls from text"
    if is_outside:
        behind = "call"
    elif family.name == "hermes":
        behind = f'"\\n" call "\\n" {marked(family.end)}'
    else:
        more = "" if is_one else ' (", " call)*'
        behind = f'"[" call{more} "]"'
    is_once = is_one or (family.name == "mistral" and not is_outside)
    start = f"lead {behind} | TEXT" if is_once else f"(lead {behind})* TEXT"
    return [f"start: {start}", f"TEXT: {ANY_TEXT}", *lead("lead", marked(family.marker))]


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
