"""The grammar that a reply is held to, from all that a request says of it."""

from collections.abc import Callable, Iterable
from dataclasses import astuple
from functools import partial
from hashlib import sha256
from typing import Any

import orjson

from services.frontend.api.bodies import Generate
from services.frontend.api.text.reading import PLAIN, Reading
from services.frontend.api.text.structure import CHARS_MAX, structure_of
from services.frontend.api.text.tools import Tools
from services.frontend.app import App
from services.frontend.core.structural_tags import Tag, tags_grammar
from services.frontend.core.structures import (
    Structure,
    behind_thoughts,
    embedded,
    grammar_of,
    literal,
)
from services.frontend.core.tools.forcing import calls_grammar
from services.frontend.tokenizer import ModelTokenizer
from shared.errors import InvalidRequest
from shared.sampling import GRAMMAR_BYTES_MAX

Marked = Callable[[str], str]  # a mark as it stands in a grammar's rule


async def held_to(
    app: App, body: Generate, tokenizer: ModelTokenizer, reading: Reading = PLAIN
) -> str:
    """A grammar, which can be used; empty: the reply may be anything. What a model thinks is held
    to nothing.

    Args:
        reading: which tools it may call, or has to, and whether it thinks before.

    Raises:
        InvalidRequest: it cannot be held to what the request says, and why.
        NoCapacity: too many ask for that.
    """
    grammar = await _said(app, body, tokenizer, reading.tools)
    thinking = reading.thinking
    if not grammar or thinking is None:
        return grammar
    opening, closing = (_marked(tokenizer, mark) for mark in (thinking.opening, thinking.closing))
    whole = behind_thoughts(grammar, "" if reading.is_within else opening, closing)
    if len(whole.encode()) > GRAMMAR_BYTES_MAX:
        raise InvalidRequest(
            f"the reply's form: its grammar has more than {GRAMMAR_BYTES_MAX} bytes"
        )
    return whole


def _marked(tokenizer: ModelTokenizer, mark: str) -> str:
    """A mark in a grammar's rule, as the model's vocabulary has it."""
    token = tokenizer.special_id(mark)
    return literal(mark) if token is None else f"<[{token}]>"


async def _said(app: App, body: Generate, tokenizer: ModelTokenizer, tools: Tools | None) -> str:
    """The grammar of what is said."""
    wanted = structure_of(body)
    if tools is not None and tools.is_forced:
        if wanted is not None and wanted.name != "response_format":  # that is of what is said
            raise InvalidRequest(
                f"{wanted.name}: not together with a tool_choice that forces a call", wanted.name
            )
        return await _calls(app, tokenizer, tools)
    if wanted is None:
        return "" if tools is None or not tools.is_held else await _calls(app, tokenizer, tools)
    if wanted.kind == "tags":
        return await _tags(app, tokenizer, wanted)
    # What is not marked could be a call or the form from its first letter on: then it is the form.
    if tools is not None and wanted.kind == "json" and not tools.family.is_bare:
        return await _calls(app, tokenizer, tools, wanted)
    key = _key(wanted.kind, wanted.value, wanted.whitespace)
    return await app.grammars.make(key, lambda: grammar_of(wanted), wanted.name)


async def _calls(
    app: App, tokenizer: ModelTokenizer, tools: Tools, wanted: Structure | None = None
) -> str:
    """Calls, or what is wanted instead."""
    name = "tools" if wanted is None else wanted.name
    is_free = wanted is None and not tools.is_forced
    told = [(rule.name, rule.parameters, is_free and rule.is_strict) for rule in tools.rules]
    form = None if wanted is None else (wanted.value, wanted.whitespace)
    if len(_json([told, form])) > CHARS_MAX:
        raise InvalidRequest(f"{name}: more than {CHARS_MAX} characters of schemas", name)

    def written(marked: Marked) -> str:
        rules = calls_grammar(
            tools.family,
            tools.rules,
            is_one=tools.calls_max == 1,
            names_outside=tokenizer.names_outside,
            marked=marked,
            or_else="" if wanted is None else embedded(wanted.value, wanted.whitespace),
            is_free=is_free,
        )
        return grammar_of(Structure(name, "lark", rules))

    how = (tools.family.name, tools.calls_max == 1, tokenizer.names_outside, is_free)
    key = _key("calls", [how, told, form], None)
    marks = (tools.family.marker, tools.family.argument_marker, tools.family.end)
    return await _with_marks(app, tokenizer, key, written, marks, name)


async def _tags(app: App, tokenizer: ModelTokenizer, wanted: Structure) -> str:
    """Any text, with parts between marks that are held to schemas."""
    tags: dict[str, list[Tag]] = wanted.value

    def written(marked: Marked) -> str:
        return grammar_of(Structure(wanted.name, "lark", tags_grammar(tags, marked)))

    told = [[trigger, *map(astuple, its)] for trigger, its in tags.items()]
    marks = {*tags, *(tag.end for its in tags.values() for tag in its)}
    return await _with_marks(app, tokenizer, _key("tags", told, None), written, marks, wanted.name)


async def _with_marks(
    app: App,
    tokenizer: ModelTokenizer,
    key: bytes,
    written: Callable[[Marked], str],
    marks: Iterable[str],
    name: str,
) -> str:
    """A grammar with marks in it, which can be used. Special tokens are the model's own, and nobody
    else's vocabulary has them: what is compiled beforehand has texts in their place.
    """
    plain = await app.grammars.make(key, lambda: written(literal), name)
    has_tokens = any(map(tokenizer.is_special, marks))
    return written(partial(_marked, tokenizer)) if has_tokens else plain


def _key(kind: str, value: Any, whitespace: str | None) -> bytes:
    return sha256(_json([kind, value, whitespace])).digest()


def _json(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError as error:  # what orjson says of what is nested too deep
        raise InvalidRequest(f"tools: {error}", "tools") from None
