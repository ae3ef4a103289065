"""JSON schemas as rows that people read."""

import json
from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]
HEAD = "| field | type | meaning |\n|---|---|---|\n"


def kind_of(schema: Json, link: str = "") -> str:
    """A schema's type in a few words.

    Args:
        link: what stands before the name of a referenced one to make it a link; empty: no links.

    >>> kind_of({"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]})
    'list of string, or null'
    >>> kind_of({"$ref": "#/components/schemas/TurnEnd"}, "#")
    '[TurnEnd](#turnend)'
    """
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}]({link}{name.lower()})" if link else name
    for word in ("anyOf", "oneOf"):
        if word in schema:
            kinds = list(dict.fromkeys(kind_of(each, link) for each in schema[word]))
            return ", or ".join(kinds)
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return ", ".join("null" if value is None else f"`{value}`" for value in values)
    match schema.get("type"):
        case "array":
            return f"list of {kind_of(schema.get('items', {}), link)}"
        case "object" if isinstance(schema.get("additionalProperties"), dict):
            return f"object of {kind_of(schema['additionalProperties'], link)}"
        case list(kinds):
            return " or ".join(kinds)
        case None:
            return "anything"
        case kind:
            return str(kind)


def rows(schema: Json, link: str = "", required: str = "needed") -> Iterator[str]:
    """A line of a table for each field.

    Args:
        required: what is said of those that must be there.
    """
    needed = set(schema.get("required", ()))
    for name, field in schema.get("properties", {}).items():
        default = field.get("default")
        parts = [field.get("description", "")]
        if name in needed:
            parts.insert(0, f"**{required}**")
        elif default not in (None, "", [], {}):
            parts.append(f"default `{json.dumps(default)}`")
        meaning = ". ".join(part for part in parts if part).replace("|", "\\|").replace("\n", " ")
        yield f"| `{name}` | {kind_of(field, link)} | {meaning} |\n"


def table(schema: Json, link: str = "", required: str = "needed") -> str:
    """All of them, or nothing where a schema has no fields."""
    found = "".join(rows(schema, link, required))
    return HEAD + found + "\n" if found else ""
