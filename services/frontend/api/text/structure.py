"""What a request wants its reply to look like: the fields of OpenAI, vLLM and SGLang for it."""

from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Any

import orjson

from services.frontend.api.bodies.base import unsupported
from services.frontend.api.bodies.text import Generate
from services.frontend.core.structural_tags import parse_tags
from services.frontend.core.structures import ANY_OBJECT, Kind, Structure
from shared.errors import InvalidRequest
from shared.wire.sampling import GRAMMAR_BYTES_MAX

CHOICES_MAX = 1024
ONE_OF = "json, regex, choice, grammar, structural_tag, json_object"
KINDS: tuple[Kind, ...] = ("json", "regex", "choice", "grammar")  # by vLLM's names
GUIDED: dict[str, Kind] = {f"guided_{kind}": kind for kind in KINDS}  # its older fields
SGLANG: dict[str, Kind] = {
    "json_schema": "json", "regex": "regex", "ebnf": "grammar", "grammar": "grammar",
}  # fmt: skip
CHARS_MAX = GRAMMAR_BYTES_MAX  # of what is to become a grammar; that is checked again


def structure_of(body: Generate) -> Structure | None:
    """What the reply is to look like; None: like anything.

    Raises:
        InvalidRequest: it is no such thing, or more than one.
    """
    whitespace = body.guided_whitespace_pattern
    if whitespace is not None and body.guided_json is None:
        raise InvalidRequest("guided_whitespace_pattern: only with guided_json")
    by_format = format_structure(body.response_format)
    found = [] if by_format is None else [by_format]
    given = {name: getattr(body, name) for name in (*GUIDED, *SGLANG)}
    found += [
        _made(name, kind, given[name], whitespace)
        for name, kind in GUIDED.items()
        if given[name] is not None
    ]
    found += _of_structured_outputs(body.structured_outputs)
    found += [
        _made(name, kind, given[name]) for name, kind in SGLANG.items() if given[name] is not None
    ]
    if len(found) > 1:
        names = " and ".join(each.name for each in found)
        raise InvalidRequest(f"{names}: only one of them", found[1].name)
    if found and body.allowed_token_ids:
        raise InvalidRequest(
            f"allowed_token_ids: not together with {found[0].name}", "allowed_token_ids"
        )
    return found[0] if found else None


def format_structure(given: Mapping[str, Any] | None) -> Structure | None:
    """What a chat's `response_format` asks for; None: anything.

    Raises:
        InvalidRequest: it is no such thing.
    """
    name = "response_format"
    if given is None:
        return None
    match given.get("type"):
        case "text":
            return None
        case "json_object":
            return Structure(name, "json", ANY_OBJECT)
        case "json_schema":
            described = given.get("json_schema")
            if not isinstance(described, dict):
                raise InvalidRequest(f"{name}.json_schema: give an object with a schema", name)
            schema = described.get("schema", described.get("json_schema"))  # LangChain's older name
            return Structure(name, "json", _schema(f"{name}.json_schema.schema", schema, name))
        case "structural_tag":
            return _tagged(name, given, name)
        case kind:
            served = (
                f"its type {str(kind)[:40]!r} is none of text, json_object, json_schema, "
                "structural_tag"
            )
            raise unsupported(name, served)


def _of_structured_outputs(given: Mapping[str, Any] | None) -> Iterator[Structure]:
    if given is None:
        return
    name = "structured_outputs"
    whitespace = given.get("whitespace_pattern")
    if given.get("disable_any_whitespace"):
        whitespace = ""
    if whitespace is not None and not isinstance(whitespace, str):
        raise InvalidRequest(f"{name}.whitespace_pattern: give an expression", name)
    num = 0
    for kind in KINDS:
        if (value := given.get(kind)) is not None:
            num += 1
            yield _made(f"{name}.{kind}", kind, value, whitespace)
    if (value := given.get("structural_tag")) is not None:
        num += 1
        yield _tagged(f"{name}.structural_tag", value, name)
    if given.get("json_object"):
        num += 1
        yield Structure(f"{name}.json_object", "json", ANY_OBJECT, whitespace)
    if not num:
        raise InvalidRequest(f"{name}: give one of {ONE_OF}", name)


def _made(name: str, kind: Kind, value: Any, whitespace: str | None = None) -> Structure:
    param = name.partition(".")[0]
    if kind == "json":
        return Structure(name, kind, _schema(name, value, param), whitespace)
    if kind == "choice":
        is_list = isinstance(value, list) and 0 < len(value) <= CHOICES_MAX
        if not is_list or not all(isinstance(each, str) and each for each in value):
            raise InvalidRequest(f"{name}: give 1 to {CHOICES_MAX} texts", param)
        _check_size(name, sum(map(len, value)), param)
        return Structure(name, kind, value)
    if not isinstance(value, str) or not value:
        raise InvalidRequest(f"{name}: give a text", param)
    _check_size(name, len(value), param)
    return Structure(name, kind, value)


def _tagged(name: str, given: Any, param: str) -> Structure:
    """Tags, or a text that is their JSON."""
    value = _json(name, given, dict, "an object with structures and triggers", param)
    try:
        return Structure(name, "tags", parse_tags(value))
    except ValueError as error:
        raise InvalidRequest(f"{name}: {error}", param) from None


def _schema(name: str, given: Any, param: str) -> dict[str, Any] | bool:
    """A JSON schema, or a text that is one's JSON."""
    schema: dict[str, Any] | bool = _json(name, given, dict | bool, "a JSON schema", param)
    return schema


def _json(name: str, given: Any, kind: type | UnionType, what: str, param: str) -> Any:
    """A value of this kind, or a text that is its JSON; neither is too large.

    Args:
        what: is to be given, for the error.
    """
    value = given
    if isinstance(given, str):
        _check_size(name, len(given), param)
        try:
            value = orjson.loads(given)
        except orjson.JSONDecodeError as error:
            raise InvalidRequest(f"{name}: this is no JSON: {error}", param) from None
    if not isinstance(value, kind):
        raise InvalidRequest(f"{name}: give {what}", param)
    try:
        _check_size(name, len(orjson.dumps(value)), param)
    except TypeError as error:  # what orjson says of what is nested too deep
        raise InvalidRequest(f"{name}: {error}", param) from None
    return value


def _check_size(name: str, num_chars: int, param: str) -> None:
    if num_chars > CHARS_MAX:
        raise InvalidRequest(f"{name}: more than {CHARS_MAX} characters", param)
