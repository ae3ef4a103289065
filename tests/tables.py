"""How much an object remembers, whatever its tables are called."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Set
from enum import Enum
from typing import Any

PRODUCT = {"cli", "kernels", "loadtest", "services", "shared"}


def largest_table(root: object) -> int:
    """Entries of the largest dict, set, list or deque that is reachable from `root` through
    attributes of the project's own objects; of tests' fakes nothing is counted.
    """
    largest = 0
    seen, left = {id(root): root}, [root]
    while left:
        value = left.pop()
        if isinstance(value, Mapping | Set | list | deque):
            largest = max(largest, len(value))
        for child in _children(value):
            if id(child) not in seen and not isinstance(child, str | bytes | int | float):
                seen[id(child)] = child
                left.append(child)
    return largest


def _children(value: Any) -> Iterator[object]:
    if isinstance(value, Mapping):
        yield from value.keys()
        yield from value.values()
    elif isinstance(value, Set | list | tuple | deque):
        yield from value
    if isinstance(value, type | Enum) or type(value).__module__.split(".")[0] not in PRODUCT:
        return
    for name in {**getattr(value, "__dict__", {}), **dict.fromkeys(_slots(type(value)))}:
        yield getattr(value, name, None)


def _slots(kind: type) -> Iterable[str]:
    for each in kind.__mro__:
        slots = each.__dict__.get("__slots__", ())
        yield from [slots] if isinstance(slots, str) else slots
