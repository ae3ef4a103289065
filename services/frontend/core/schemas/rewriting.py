"""A schema as the grammar's library takes it, and holds it whole.

Left out is what constrains nothing; refused, by JSON pointer, is what no grammar holds and what is
no schema. References are resolved here: what they name stands in ``$defs``.
"""

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from services.frontend.core.schemas.keywords import (
    FORMATS,
    TYPES,
    UNHELD,
    UNHELD_OF_TYPE,
    VALUES,
    constrains,
    flaw_in_value,
)
from services.frontend.core.schemas.numbers import Multiples, check_literal, with_bounds
from services.frontend.core.schemas.places import NODES_MAX, Place, Places, Schema

MAPS = ("properties", "patternProperties")
LISTS = ("allOf", "anyOf", "oneOf")


def rewritten(schema: Schema, pointer: str = "#") -> dict[str, Any]:
    """The same schema in fewer words.

    Args:
        pointer: to the part of it that is wanted, as `parts_of` gives them.

    Raises:
        SchemaError: it cannot be held, or is none; says where.
    """
    return _Rewriting(schema).run(pointer)


def parts_of(place: Place) -> Iterator[Place]:
    """Schemas that stand in a schema, one level down."""
    node = place.node
    if not isinstance(node, dict):
        return
    for name in ("items", "additionalItems", "additionalProperties"):
        if isinstance(node.get(name), dict):
            yield place.at(name)
    for name in (*MAPS, *LISTS, "prefixItems", "items", "$defs", "definitions"):
        inner = node.get(name)
        if isinstance(inner, dict) and name != "items":
            yield from (place.at(name, each) for each in inner if isinstance(inner[each], dict))
        elif isinstance(inner, list):
            yield from (place.at(name, n) for n, e in enumerate(inner) if isinstance(e, dict))


class _Rewriting:
    def __init__(self, root: Schema) -> None:
        self._places = Places(root)
        self._root = self._places.of("", Place(root))
        self._names: dict[str, str] = {}  # of definitions, by the pointer to what they are of
        self._ending: set[str] = set()  # pointers to references that lead to a schema
        self._within: set[str] = set()  # pointers to what stands in place of references to it
        self._waiting: list[tuple[str, Place]] = []
        self._multiples = Multiples()
        self._num_nodes = 0

    def run(self, pointer: str) -> dict[str, Any]:
        start = self._places.of("#" + quote(pointer[1:], safe="/~"), self._root)
        made = self._node(start)
        if isinstance(made, bool):
            made = {} if made else {"enum": []}
        made = dict(made)
        defs = {}
        while self._waiting:
            name, place = self._waiting.pop()
            defs[name] = self._node(place)
        self._multiples.check()
        return {**made, "$defs": defs} if defs else made

    def _node(self, place: Place) -> Schema:
        node = place.node
        if isinstance(node, bool):
            return node
        if not isinstance(node, dict):
            raise place.error("a schema is an object, true or false")
        self._num_nodes += 1
        if self._num_nodes > NODES_MAX:
            raise place.error(f"it has more than {NODES_MAX} parts")
        for name in node:
            if name in VALUES and (flaw := flaw_in_value(name, node[name])):
                raise place.error(flaw, name)
        types = _types(node)
        self._refuse_unheld(place, types)
        made: dict[str, Any] = {}
        if "type" in node:
            made["type"] = node["type"] if len(types) != 1 else types[0]
        if "string" in types:
            made |= _of_string(node)
        if "number" in types or "integer" in types:
            made |= with_bounds(place, is_whole="number" not in types)
            if "multipleOf" in made:
                self._multiples.add(place, made["multipleOf"])
        if "array" in types:
            made |= self._of_array(place)
        if "object" in types:
            made |= self._of_object(place)
        return made | self._in_place(place)  # which the library applies to all before

    def _refuse_unheld(self, place: Place, types: tuple[str, ...]) -> None:
        node = place.node
        names = [*UNHELD, *(n for kind in types for n in UNHELD_OF_TYPE.get(kind, ()))]
        for name in names:
            if name in node and constrains(name, node) and not _is_plain_end(name, node):
                raise place.error("no reply can be held to this keyword", name)

    def _in_place(self, place: Place) -> dict[str, Any]:
        """What applies to the same value."""
        node, made = place.node, dict[str, Any]()
        for name in ("const", "enum"):
            if name in node:
                for value in node[name] if name == "enum" else [node[name]]:
                    check_literal(place, name, value)
                made[name] = node[name]
        if "$ref" in node:
            made["$ref"] = self._reference(place)
        for name in LISTS:
            if name not in node:
                continue
            parts = [place.at(name, number) for number in range(len(node[name]))]
            make = self._seen_through if name == "oneOf" else self._node
            made[name] = list(map(make, parts))
        return made

    def _reference(self, place: Place) -> str:
        target = self._target(place)
        name = self._names.get(target.pointer)
        if name is None:
            name = self._names[target.pointer] = str(len(self._names))
            self._waiting.append((name, target))
        return f"#/$defs/{name}"

    def _target(self, place: Place) -> Place:
        """What a reference names. One that leads back to itself, by references alone, names
        nothing."""
        first = target = self._places.of(place.node["$ref"], place)
        seen = {place.pointer}
        while isinstance(target.node, dict) and isinstance(target.node.get("$ref"), str):
            if target.pointer in self._ending:
                break
            if target.pointer in seen:
                raise place.error("it refers to itself", "$ref")
            seen.add(target.pointer)
            target = self._places.of(target.node["$ref"], target)
        self._ending |= seen
        return first

    def _seen_through(self, place: Place) -> Schema:
        """A schema, or what it refers to, if it only refers: whether two exclude each other the
        library sees of what stands in place alone."""
        target = place
        while isinstance(target.node, dict) and isinstance(target.node.get("$ref"), str):
            if any(name in VALUES and name != "$ref" for name in target.node):
                break
            target = self._target(target)
        if target is place or target.pointer in self._within:
            return self._node(place)
        self._within.add(target.pointer)
        made = self._node(target)
        self._within.remove(target.pointer)
        return made

    def _of_array(self, place: Place) -> dict[str, Any]:
        node = place.node
        made: dict[str, Any] = _counts(node, "minItems", "maxItems")
        items = node.get("items")
        first, rest = "prefixItems", "items"
        if isinstance(items, list):  # as drafts before 2020-12 have it
            first, rest = "items", "additionalItems"
        if node.get(first):
            parts = range(len(node[first]))
            made["prefixItems"] = [self._node(place.at(first, number)) for number in parts]
        if rest in node:
            made["items"] = self._node(place.at(rest))
        elif "unevaluatedItems" in node and node["unevaluatedItems"] is False:
            made["items"] = False
        return made

    def _of_object(self, place: Place) -> dict[str, Any]:
        node = place.node
        made: dict[str, Any] = {}
        for name in MAPS:
            if node.get(name):
                made[name] = {each: self._node(place.at(name, each)) for each in node[name]}
        if "additionalProperties" in node:
            made["additionalProperties"] = self._node(place.at("additionalProperties"))
        elif "unevaluatedProperties" in node and node["unevaluatedProperties"] is False:
            made["additionalProperties"] = False
        if node.get("required"):
            made["required"] = list(dict.fromkeys(node["required"]))
        return made | _property_counts(place, made)


def _types(node: dict[str, Any]) -> tuple[str, ...]:
    given = node.get("type", TYPES)
    return (given,) if isinstance(given, str) else tuple(dict.fromkeys(given))


def _is_plain_end(name: str, node: dict[str, Any]) -> bool:
    """Whether ``unevaluated...`` is false beside nothing that evaluates elsewhere: then it says
    what ``additionalProperties`` or ``items`` would."""
    if name not in ("unevaluatedItems", "unevaluatedProperties") or node[name] is not False:
        return False
    return not any(each in node for each in (*LISTS, "$ref"))


def _of_string(node: dict[str, Any]) -> dict[str, Any]:
    made = _counts(node, "minLength", "maxLength")
    if "pattern" in node:
        made["pattern"] = node["pattern"]
    if node.get("format") in FORMATS:
        made["format"] = node["format"]
    return made


def _counts(node: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: int(node[name]) for name in names if name in node}


def _property_counts(place: Place, made: dict[str, Any]) -> dict[str, Any]:
    """Of properties. The library counts those that may be missing only where at most one is named
    for, or at least one of them has to be there.
    """
    counts = _counts(place.node, "minProperties", "maxProperties")
    required = made.get("required", ())
    named = {*made.get("properties", ()), *required}
    is_closed = made.get("additionalProperties") is False and "patternProperties" not in made
    least, most = counts.get("minProperties", 0), counts.get("maxProperties")
    if least <= len(required):
        counts.pop("minProperties", None)
        least = 0
    if is_closed and most is not None and most >= len(named):
        counts.pop("maxProperties")
        most = None
    if not counts or len(named) == len(required):
        return counts
    is_one = least <= len(required) + 1 and (most is None or most == len(required) + 1)
    if is_one and is_closed:
        return counts
    name = next(iter(counts))
    raise place.error("properties that may be missing cannot be counted", name)
