"""Places in a schema: JSON pointers, and what references name."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

Schema = dict[str, Any] | bool
NODES_MAX = 50_000


class SchemaError(ValueError):
    """A schema that cannot be held, and where."""

    def __init__(self, pointer: str, why: str) -> None:
        super().__init__(f"at {pointer[:200]}: {why}")


@dataclass(frozen=True, slots=True)
class Place:
    """Attributes:
    node: the schema there.
    pointer: to it, from the root, as a URI's fragment.
    base: of references in it.
    """

    node: Any
    pointer: str = "#"
    base: str = ""

    def at(self, *names: str | int) -> "Place":
        """What stands in it."""
        node, pointer = self.node, self.pointer
        for name in names:
            node = node[name]
            pointer += "/" + str(name).replace("~", "~0").replace("/", "~1")
        return Place(node, pointer, based(node, self.base))

    def error(self, why: str, *names: str | int) -> SchemaError:
        """That it cannot be held, or a keyword of it."""
        return SchemaError("/".join([self.pointer, *map(str, names)]), why)


def based(node: Any, base: str) -> str:
    """The base of references within a node that stands where `base` is theirs."""
    given = node.get("$id", node.get("id")) if isinstance(node, dict) else None
    return urldefrag(urljoin(base, given)).url if isinstance(given, str) else base


class Places:
    """Whatever references in a schema may name: places by pointer, ``$id`` and ``$anchor``.

    Raises:
        SchemaError: it has too many nodes.
    """

    def __init__(self, root: Any) -> None:
        self._by_uri: dict[str, Place] = {}
        first = Place(root, base=based(root, ""))
        self._by_uri[""] = first
        for number, place in enumerate(_all(first)):
            if number > NODES_MAX:
                raise SchemaError("#", f"it has more than {NODES_MAX} parts")
            node = place.node
            if isinstance(node.get("$id", node.get("id")), str):
                self._by_uri.setdefault(place.base, place)
            for name in ("$anchor", "$dynamicAnchor"):
                if isinstance(anchor := node.get(name), str):
                    self._by_uri.setdefault(f"{place.base}#{anchor}", place)
        self._by_uri.setdefault(first.base, first)

    def of(self, reference: str, place: Place) -> Place:
        """What a reference in a place names.

        Raises:
            SchemaError: nothing in this schema.
        """
        uri = urljoin(place.base, reference) if reference else place.base
        document, fragment = urldefrag(uri)
        found = self._by_uri.get(uri.rstrip("#")) or self._by_uri.get(f"{document}#{fragment}")
        if found is not None:
            return found
        found = self._by_uri.get(document)
        if found is None or (fragment and not fragment.startswith("/")):
            raise place.error(f"{reference[:100]!r} names nothing within this schema", "$ref")
        for step in fragment.split("/")[1:]:
            name: str | int = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(found.node, list) and str(name).isdecimal():
                name = int(name)
            try:
                found = found.at(name)
            except (KeyError, IndexError, TypeError):
                why = f"{reference[:100]!r} names nothing within this schema"
                raise place.error(why, "$ref") from None
        return found


def _all(root: Place) -> Iterator[Place]:
    """Every object in it, schema or not."""
    waiting = [root] if isinstance(root.node, dict | list) else []
    while waiting:
        place = waiting.pop()
        if isinstance(place.node, dict):
            yield place
            names: Any = place.node
        else:
            names = range(len(place.node))
        waiting += [place.at(name) for name in names if isinstance(place.node[name], dict | list)]
