"""What each keyword's value may be, and which keywords a grammar cannot hold.

Names that are no keywords, and those that only describe (``title``, ``default``, ``deprecated``,
...), constrain nothing and are left out.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")

OF_TYPE: Mapping[str, tuple[str, ...]] = {
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "array": ("minItems", "maxItems", "prefixItems", "items"),
    "object": (
        "properties", "patternProperties", "additionalProperties", "required", "minProperties",
        "maxProperties",
    ),
}  # fmt: skip

# Formats that are held. Others are annotations, as JSON Schema has it.
FORMATS = frozenset(
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"]
)

# No grammar holds these, where they constrain anything.
UNHELD_OF_TYPE: Mapping[str, tuple[str, ...]] = {
    "array": ("contains", "uniqueItems", "unevaluatedItems"),
    "object": (
        "propertyNames", "dependentRequired", "dependentSchemas", "dependencies",
        "unevaluatedProperties",
    ),
}  # fmt: skip
UNHELD = ("not", "if", "$dynamicRef", "$recursiveRef")


def constrains(name: str, node: Mapping[str, Any]) -> bool:
    """Whether a keyword that no grammar holds refuses anything at all.

    >>> constrains("uniqueItems", {"uniqueItems": False}), constrains("not", {"not": {}})
    (False, True)
    """
    value = node[name]
    match name:
        case "uniqueItems":
            most: Any = node.get("maxItems")
            return value is True and not (_is_number(most) and most <= 1)
        case "not":
            return value is not False
        case "if":
            return any(node.get(each, True) not in (True, {}) for each in ("then", "else"))
        case "contains":
            least, most = node.get("minContains", 1), node.get("maxContains")
            return least != 0 or most is not None
        case "dependentRequired" | "dependentSchemas" | "dependencies":
            return not isinstance(value, Mapping) or any(
                each not in (True, {}, []) for each in value.values()
            )
        case "unevaluatedItems" | "unevaluatedProperties" | "propertyNames":
            return value not in (True, {})
    return True


def flaw_in_value(name: str, value: Any) -> str:
    """What is wrong with a keyword's value; empty: nothing.

    >>> flaw_in_value("minLength", -1)
    'give a whole number that is not negative'
    """
    wanted, is_good = VALUES[name]
    return "" if is_good(value) else f"give {wanted}"


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value)


def _is_count(value: Any) -> bool:
    return _is_number(value) and value == int(value) and 0 <= value < 2**53


def _is_schema(value: Any) -> bool:
    return isinstance(value, dict | bool)


def _is_schemas(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_schema, value))


def _is_schema_map(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_schema, value.values()))


def _is_types(value: Any) -> bool:
    types = value if isinstance(value, list) else [value]
    return bool(types) and all(isinstance(each, str) and each in TYPES for each in types)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


_Check = tuple[str, Callable[[Any], bool]]
_COUNT: _Check = ("a whole number that is not negative", _is_count)
_NUMBER: _Check = ("a number", _is_number)
_BOUND: _Check = ("a number", lambda value: isinstance(value, bool) or _is_number(value))
_SCHEMA: _Check = ("a schema: an object, true or false", _is_schema)
_SCHEMAS: _Check = ("a list of schemas that is not empty", _is_schemas)
_SCHEMA_MAP: _Check = ("an object of schemas", _is_schema_map)
_TEXT: _Check = ("a text", lambda value: isinstance(value, str))
VALUES: Mapping[str, _Check] = {
    "type": (f"one of {', '.join(TYPES)}, or a list of them", _is_types),
    "enum": ("a list that is not empty", lambda value: isinstance(value, list) and bool(value)),
    "const": ("a value", lambda _: True),
    "$ref": _TEXT,
    **dict.fromkeys(("anyOf", "oneOf", "allOf"), _SCHEMAS),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), _COUNT),
    **dict.fromkeys(("minProperties", "maxProperties"), _COUNT),
    **dict.fromkeys(("minimum", "maximum"), _NUMBER),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), _BOUND),
    "multipleOf": ("a number above zero", lambda value: _is_number(value) and value > 0),
    **dict.fromkeys(("pattern", "format"), _TEXT),
    "prefixItems": _SCHEMAS,
    "items": (
        "a schema, or a list of schemas",
        lambda v: _is_schema(v) or _is_schemas(v) or v == [],
    ),
    "additionalItems": _SCHEMA,
    **dict.fromkeys(("properties", "patternProperties"), _SCHEMA_MAP),
    "additionalProperties": _SCHEMA,
    "required": ("a list of texts", _is_texts),
}
