"""The format that a request requires of its reply, as data from which another process compiles a
grammar.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from services.frontend.core import schemas
from services.frontend.core.structural_tags import tags_grammar
from services.frontend.core.structures import (
    Structure,
    behind_thoughts,
    embedded,
    grammar_of,
    literal,
)
from services.frontend.core.tools.families import Family
from services.frontend.core.tools.forcing import CallRule, calls_grammar
from shared.wire.sampling import GRAMMAR_BYTES_MAX

OVERLAP = "its options may overlap, as far as can be seen: say anyOf"  # an option of the library's
PARTS_TRIED_MAX = 32  # of a schema, to say where its flaw is


@dataclass(frozen=True, slots=True)
class Calls:
    """Tool calls; arguments as those of `calls_grammar`.

    Attributes:
        or_else: what the reply may be instead.
    """

    family: Family
    rules: tuple[CallRule, ...]
    is_one: bool
    names_outside: bool
    is_free: bool = False
    or_else: Structure | None = None


@dataclass(frozen=True, slots=True)
class Form:
    """Attributes:
    wanted: format of the reply.
    tokens: token ids of marks in it that are one token of the model's vocabulary.
    thinking: marks around reasoning before it, as grammar rules (see `behind_thoughts`).
    """

    wanted: Structure | Calls
    tokens: Mapping[str, int] = field(default_factory=dict)
    thinking: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """The constraint on a reply.

    Attributes:
        grammar: empty: the reply may be anything.
        json_after: as `SamplingParams.json_after`.
    """

    grammar: str = ""
    json_after: tuple[str, ...] = ()


NOT_HELD = Held()


def plain_grammar(form: Form) -> str:
    """The grammar of the reply, with texts in place of the model's special tokens, so that it can
    be compiled without the model's vocabulary.

    Raises:
        ValueError: there is none; says why.
    """
    return _written(form.wanted, literal)


def whole_grammar(form: Form, plain: str) -> str:
    """The grammar for the model's vocabulary.

    Args:
        plain: what `plain_grammar` gave.

    Raises:
        ValueError: it is too long.
    """

    def marked(mark: str) -> str:
        token = form.tokens.get(mark)
        return literal(mark) if token is None else f"<[{token}]>"

    whole = _written(form.wanted, marked) if form.tokens else plain
    if form.thinking is not None:
        whole = behind_thoughts(whole, *form.thinking)
    if (num_bytes := len(whole.encode())) > GRAMMAR_BYTES_MAX:
        raise ValueError(f"its grammar takes {num_bytes} bytes; at most {GRAMMAR_BYTES_MAX} may be")
    return whole


def is_open(form: Form) -> bool:
    """Whether objects in it may have keys of any name, which the grammar does not keep from
    repeating."""
    return any(schemas.is_open(schemas.rewritten(schema)) for schema in _schemas_of(form.wanted))


def pointed_flaw(form: Form, flaw_of: Callable[[str], str]) -> str:
    """Where in a schema lies what keeps it from being compiled, and why; empty: it is not known.

    Args:
        flaw_of: of a grammar.
    """
    for schema in _schemas_of(form.wanted):
        place, found, left = schemas.Place(schema), "", PARTS_TRIED_MAX
        parts = [place]
        while parts and left:
            left -= 1
            part = parts.pop(0)
            if why := _flaw_of_part(schema, part, flaw_of):
                found, parts = f"at {part.pointer[:200]}: {why}", list(schemas.parts_of(part))
        if found:
            return found
    return ""


def _flaw_of_part(
    schema: schemas.Schema, part: schemas.Place, flaw_of: Callable[[str], str]
) -> str:
    try:
        made = schemas.rewritten(schema, part.pointer)
        why = flaw_of(grammar_of(Structure("part", "json", made)))
        return OVERLAP if "coerce_one_of" in why else why
    except ValueError as error:
        return str(error)


def _schemas_of(wanted: Structure | Calls) -> Iterator[schemas.Schema]:
    if isinstance(wanted, Calls):
        for rule in wanted.rules:
            yield rule.held_parameters(is_free=wanted.is_free)
        if wanted.or_else is not None:
            yield wanted.or_else.value
    elif wanted.kind == "json":
        yield wanted.value
    elif wanted.kind == "tags":
        for tags in wanted.value.values():
            yield from (tag.schema for tag in tags)


def _written(wanted: Structure | Calls, marked: Callable[[str], str]) -> str:
    if isinstance(wanted, Structure):
        if wanted.kind != "tags":
            return grammar_of(wanted)
        return grammar_of(Structure(wanted.name, "lark", tags_grammar(wanted.value, marked)))
    or_else = wanted.or_else
    rules = calls_grammar(
        wanted.family,
        wanted.rules,
        is_one=wanted.is_one,
        names_outside=wanted.names_outside,
        marked=marked,
        or_else="" if or_else is None else embedded(or_else.value, or_else.whitespace),
        is_free=wanted.is_free,
    )
    return grammar_of(Structure("tools", "lark", rules))
