"""Grammars of replies that call tools, written as each family writes calls: that have to, or that
may, where a mark separates a call from a text.
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
        is_strict: calls are held to it also where none is forced.
    """

    name: str
    parameters: dict[str, Any] | None = None
    is_strict: bool = False

    def held_parameters(self, *, is_free: bool) -> dict[str, Any]:
        """The schema that its arguments are held to.

        Args:
            is_free: nothing forces a call.
        """
        if self.parameters is None or (is_free and not self.is_strict):
            return ANY_OBJECT
        return self.parameters


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
    around = _freely if is_free else _forced
    start, *lines = around(family, is_one=is_one, is_outside=is_outside, marked=marked)
    lines.insert(0, f"start: {start}" + (" | otherwise" if or_else else ""))
    lines += [f"otherwise: {or_else}"] if or_else else []
    lines.append("call: " + " | ".join(f"call_{at}" for at in range(len(rules))))
    key = "parameters" if family.name == "llama3" else "arguments"
    for at, rule in enumerate(rules):
        head, tail = literal(f'{{"name": {literal(rule.name)}, "{key}": '), ' "}"'
        if is_outside:
            head, tail = f"{literal(rule.name)} {marked(family.argument_marker)}", ""
        lines.append(f"call_{at}: {head} args_{at}{tail}")
        lines.append(f"args_{at}: {embedded(rule.held_parameters(is_free=is_free))}")
    return "\n".join(lines) + "\n"


def _freely(
    family: Family, *, is_one: bool, is_outside: bool, marked: Callable[[str], str]
) -> list[str]:
    """Any text with marked calls in it, and the rules that this needs."""
    assert family.is_marked, "nothing separates its calls from text"
    behind, again = _marked_calls(family, is_one=is_one, is_outside=is_outside, marked=marked)
    start = f"lead {behind} | TEXT" if again is None else f"(lead {behind})* TEXT"
    return [start, f"TEXT: {ANY_TEXT}", *lead("lead", marked(family.marker))]


def _forced(
    family: Family, *, is_one: bool, is_outside: bool, marked: Callable[[str], str]
) -> list[str]:
    """Calls, and nothing else."""
    match family.name:
        case "llama3":  # which calls one tool a reply
            return ["call"]
        case "json":
            return ["call" if is_one else 'call | "[" call (", " call)* "]"']
    behind, again = _marked_calls(family, is_one=is_one, is_outside=is_outside, marked=marked)
    one = f"{marked(family.marker)} {behind}"
    return [one if again is None else f"{one} ({again}{one})*"]


def _marked_calls(
    family: Family, *, is_one: bool, is_outside: bool, marked: Callable[[str], str]
) -> tuple[str, str | None]:
    """What follows a family's mark, and what stands before another mark; None: none comes."""
    if is_outside:
        return "call", None if is_one else ""
    if family.name == "hermes":
        return f'"\\n" call "\\n" {marked(family.end)}', None if is_one else '"\\n" '
    more = "" if is_one else ' (", " call)*'
    return f'"[" call{more} "]"', None
