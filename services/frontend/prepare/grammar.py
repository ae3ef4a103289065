"""The grammar that constrains a reply: of its structure, its tools and its thoughts."""

from collections.abc import Iterable
from dataclasses import astuple, dataclass
from hashlib import sha256
from typing import Any

import orjson

from services.frontend.compiling.maker import GrammarMaker
from services.frontend.core.replies.forms import NOT_HELD, Calls, Form, Held
from services.frontend.core.structural_tags import Tag
from services.frontend.core.structures import Structure, literal
from services.frontend.prepare.reading import PLAIN, Reading, Tools
from services.frontend.rendering.tokenizer import ModelTokenizer
from shared.errors import InvalidRequest
from shared.ids import TenantId
from shared.wire.sampling import GRAMMAR_BYTES_MAX

CHARS_MAX = GRAMMAR_BYTES_MAX  # of schemas in tools; what they become is checked again


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is said.

    Attributes:
        name: of the field that says so.
        marks: that stand in it.
        json_after: marks behind which JSON comes; empty text: it begins with it.
    """

    wanted: Structure | Calls
    name: str
    key: list[Any]
    marks: Iterable[str] = ()
    json_after: tuple[str, ...] = ()


async def held_to(
    grammars: GrammarMaker,
    tenant: TenantId,
    structure: Structure | None,
    tokenizer: ModelTokenizer,
    reading: Reading = PLAIN,
) -> Held:
    """A grammar, which can be used. What a model thinks is held to nothing.

    Args:
        structure: that the request asks for.
        reading: which tools it may call, or has to, and whether it thinks before.

    Raises:
        InvalidRequest: it cannot be held to what the request says, and why.
        NoCapacity: too many ask for that, or it took too long.
    """
    said = _said(structure, tokenizer, reading.tools)
    if said is None:
        return NOT_HELD
    ids = {mark: tokenizer.special_id(mark) for mark in said.marks}
    tokens = {mark: token for mark, token in ids.items() if token is not None}
    thinking, json_after, around = reading.thinking, said.json_after, None
    if thinking is not None:
        opening, closing = (_rule(tokenizer, m) for m in (thinking.opening, thinking.closing))
        around = ("" if reading.is_within else opening, closing)
        if "" in json_after:
            first = () if reading.is_within else ("",)
            json_after = (*first, thinking.closing, *filter(None, json_after))
    key = _json([said.key, tokens, around])
    form = Form(said.wanted, tokens, around)
    made = await grammars.make(tenant, sha256(key).digest(), form, said.name)
    return Held(made.grammar, json_after if made.is_open else ())


def _rule(tokenizer: ModelTokenizer, mark: str) -> str:
    """A mark in a grammar's rule, as the model's vocabulary has it."""
    token = tokenizer.special_id(mark)
    return literal(mark) if token is None else f"<[{token}]>"


def _said(
    wanted: Structure | None, tokenizer: ModelTokenizer, tools: Tools | None
) -> _Wanted | None:
    """What is said; None: anything."""
    if tools is not None and tools.is_forced:
        if wanted is not None and wanted.name != "response_format":  # that is of what is said
            raise InvalidRequest(
                f"{wanted.name}: not together with a tool_choice that forces a call", wanted.name
            )
        return _calls(tokenizer, tools)
    if wanted is None:
        return None if tools is None or not tools.is_held else _calls(tokenizer, tools)
    if wanted.kind == "tags":
        return _tags(wanted)
    # What is not marked could be a call or the form from its first letter on: then it is the form.
    if tools is not None and wanted.kind == "json" and not tools.family.is_bare:
        return _calls(tokenizer, tools, wanted)
    key = [wanted.kind, wanted.value, wanted.whitespace]
    return _Wanted(wanted, wanted.name, key, json_after=("",) if wanted.kind == "json" else ())


def _calls(tokenizer: ModelTokenizer, tools: Tools, wanted: Structure | None = None) -> _Wanted:
    """Calls, or what is wanted instead."""
    name = "tools" if wanted is None else wanted.name
    family, is_one = tools.family, tools.calls_max == 1
    is_free = wanted is None and not tools.is_forced
    described = [(rule.name, rule.parameters, is_free and rule.is_strict) for rule in tools.rules]
    form = None if wanted is None else (wanted.value, wanted.whitespace)
    if len(_json([described, form])) > CHARS_MAX:
        raise InvalidRequest(f"{name}: more than {CHARS_MAX} characters of schemas", name)
    outside = tokenizer.names_outside
    calls = Calls(family, tools.rules, is_one, outside, is_free=is_free, or_else=wanted)
    before = family.argument_marker if outside and family.argument_marker else family.marker
    json_after = ["" if family.is_bare else before] + ([] if wanted is None else [""])
    return _Wanted(
        calls,
        name,
        ["calls", family.name, is_one, outside, is_free, described, form],
        marks=filter(None, (family.marker, family.argument_marker, family.end)),
        json_after=tuple(json_after),
    )


def _tags(wanted: Structure) -> _Wanted:
    """Any text, with parts between marks that are held to schemas."""
    tags: dict[str, list[Tag]] = wanted.value
    described = [[trigger, *map(astuple, its)] for trigger, its in tags.items()]
    all_tags = [tag for its in tags.values() for tag in its]
    marks = dict.fromkeys([*tags, *(tag.end for tag in all_tags if tag.end)])
    json_after = tuple(dict.fromkeys(tag.begin for tag in all_tags))
    return _Wanted(wanted, wanted.name, ["tags", described], marks, json_after)


def _json(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError as error:  # what orjson says of what is nested too deep
        raise InvalidRequest(f"tools: {error}", "tools") from None
