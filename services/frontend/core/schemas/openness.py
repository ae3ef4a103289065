"""Whether objects of a schema may have keys that it does not name."""

from collections.abc import Iterator, Mapping
from typing import Any

from services.frontend.core.schemas.keywords import OF_TYPE

IN_PLACE = ("$ref", "allOf", "anyOf", "oneOf")


def is_open(schema: Mapping[str, Any]) -> bool:
    """Whether some object that a rewritten schema allows may have keys of any name, or by a
    pattern: those a grammar does not keep from repeating.

    >>> is_open({"type": "object"}), is_open({"type": "array", "items": {"type": "null"}})
    (True, False)
    """
    return any(map(_opens, _schemas(schema)))


def _schemas(root: Any) -> Iterator[Any]:
    waiting: list[Any] = [root]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, dict):
            continue
        for name, value in node.items():
            if name in ("items", "additionalProperties"):
                waiting.append(value)
            elif name in ("properties", "patternProperties", "$defs"):
                waiting += value.values()
            elif name in ("allOf", "anyOf", "oneOf", "prefixItems"):
                waiting += value


def _opens(node: Any) -> bool:
    """Whether a schema by itself has such objects; what stands in it is looked at apart."""
    if isinstance(node, bool):
        return node
    if "const" in node or "enum" in node:
        return False
    given = node.get("type")
    types = given if isinstance(given, list) else [given]
    is_in_place = any(name in node for name in IN_PLACE)
    if given is None or "array" in types:
        has_any_item = "items" not in node and node.get("maxItems") != 0
        if has_any_item and not (is_in_place and not _has_any(node, "array")):
            return True
    if given is None or "object" in types:
        if is_in_place and not _has_any(node, "object"):
            return False  # the others decide
        return node.get("additionalProperties") is not False or bool(node.get("patternProperties"))
    return False


def _has_any(node: Mapping[str, Any], kind: str) -> bool:
    return any(name in node for name in OF_TYPE[kind])
