"""Values that a JSON schema allows, drawn by a seeded generator.

Knows the words of the frontend's own ``/openapi.json``; rules on several fields are not looked at,
so some of what is drawn is refused.
"""

import random
from collections.abc import Callable, Mapping
from typing import Any

Schema = Mapping[str, Any]

OPTIONAL_SHARE = 0.12
EDGE_SHARE = 0.15
NULL_SHARE = 0.1
ITEMS_MORE = 3
STEP = 8  # how far beyond its minimum a number usually is
TEXTS: tuple[str, ...] = (
    "hello",
    "a fox",
    "the dog of the old man",
    "x",
    "\u00e9\u4e2d\U0001f98a",
    "<|im_end|>",
)


def value_of(schema: Schema, rng: random.Random) -> Any:
    """A value that the schema allows, mostly small, sometimes at an edge."""
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return rng.choice(schema["enum"])
    if options := schema.get("anyOf") or (
        schema.get("oneOf") if "properties" not in schema else None
    ):
        return value_of(_option(options, rng), rng)
    make = _MAKERS.get(schema.get("type", ""))
    return make(schema, rng) if make is not None else rng.choice([None, 1, "a", [], {}, True])


def _option(options: list[Schema], rng: random.Random) -> Schema:
    others = [option for option in options if option.get("type") != "null"]
    return rng.choice(options if not others or rng.random() < NULL_SHARE else others)


def _object(schema: Schema, rng: random.Random) -> dict[str, Any]:
    wanted = set(schema.get("required", ()))
    if one_of := schema.get("oneOf"):
        wanted |= set(rng.choice(one_of).get("required", ()))
    made = {
        name: value_of(inner, rng)
        for name, inner in schema.get("properties", {}).items()
        if name in wanted or rng.random() < OPTIONAL_SHARE
    }
    more = schema.get("additionalProperties")
    if isinstance(more, Mapping):
        made |= {str(rng.randrange(300)): value_of(more, rng) for _ in range(rng.randint(0, 3))}
    return made


def _array(schema: Schema, rng: random.Random) -> list[Any]:
    least = schema.get("minItems", 0)
    most = min(schema.get("maxItems", least + ITEMS_MORE), least + ITEMS_MORE)
    return [value_of(schema.get("items", {}), rng) for _ in range(rng.randint(least, most))]


def _text(schema: Schema, rng: random.Random) -> str:
    least: int = schema.get("minLength", 0)
    most: int = schema.get("maxLength", 10_000)
    if rng.random() < EDGE_SHARE:
        return "a" * rng.choice([least, min(most, 10_000)])
    return rng.choice(TEXTS)


def _integer(schema: Schema, rng: random.Random) -> int:
    least, most = schema.get("minimum", -(2**63)), schema.get("maximum", 2**63 - 1)
    if rng.random() < EDGE_SHARE:
        return int(rng.choice([least, most, min(least + 1, most)]))
    start = max(least, 0) if most >= 0 else least
    return int(rng.randint(start, min(most, start + STEP)))


def _number(schema: Schema, rng: random.Random) -> float:
    least = schema.get("minimum", schema.get("exclusiveMinimum", -1e300))
    most = schema.get("maximum", 1e300)
    if rng.random() < EDGE_SHARE:
        return float(rng.choice([most, least if "minimum" in schema else 5e-324]))
    return float(rng.uniform(max(least, -10), min(most, 1000))) or 0.5


_MAKERS: Mapping[str, Callable[[Schema, random.Random], Any]] = {
    "object": _object,
    "array": _array,
    "string": _text,
    "integer": _integer,
    "number": _number,
    "boolean": lambda _, rng: rng.random() < 0.5,
    "null": lambda *_: None,
}
