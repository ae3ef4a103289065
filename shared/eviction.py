"""The one order in which idle blocks give their pages, in a worker's pool and in a host's arena.

Idle blocks that were last used together are a *group*. Which group is next is decided here; which
of its blocks gives which page, by the owner of the blocks. Policies:

- `session`: the least recently used group gives, the highest layer of all its blocks first, and
  within a layer the deepest block.
- `lru`: the least recently used group gives whole blocks, the deepest first: no priority by layer.
- `layer`: as `session` among *cold* groups. After them come *warm* ones, those that are expected or
  were used within `RECENT_NS`: the last layer of all of them before the second-last of any, and
  within a layer the least recently used group first. For a pass that has its first layers begins,
  and the later ones stream in behind it. Warm ends, since otherwise sessions that never come back
  would keep their low layers for ever, and every session's share would sink to layer 0.

Source: SYMPHONY, section 3.4 (priority-based KV cache management). The paper gives the order; where
"recently" ends is ours.
"""

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from typing import Literal, TypeAlias

EvictionName: TypeAlias = Literal["layer", "session", "lru"]
Key: TypeAlias = tuple[int, int, int]

RECENT_NS = 120_000_000_000
STALE_MIN = 64


def eviction_key(policy: EvictionName, used_at_ns: int, layer: int, *, is_warm: bool) -> Key:
    """Where a group stands whose next pages are of `layer`: the least gives first.

    >>> def key(*args): return eviction_key("layer", *args, is_warm=True)
    >>> eviction_key("layer", 9, 0, is_warm=False) < key(2, 7) < key(3, 7) < key(1, 6)
    True
    """
    if policy == "layer" and is_warm:
        return 1, -layer, used_at_ns
    return 0, used_at_ns, 0


@dataclass(slots=True)
class _Place:
    """Attributes:
    expected_until_ns: 0 once that was seen to be over.
    """

    used_at_ns: int
    layer: int
    expected_until_ns: int


@dataclass(slots=True)
class _Queue:
    """Groups by key. One that has left, or has another key since, is found out when it is next."""

    keys: dict[int, Key] = field(default_factory=dict)
    _heap: list[tuple[Key, int]] = field(default_factory=list)

    def put(self, group: int, key: Key) -> None:
        self.keys[group] = key
        heap = self._heap
        if heap and heap[0][1] == group:  # as it mostly is: the next one moves
            heapreplace(heap, (key, group))
        elif len(heap) >= 2 * len(self.keys) + STALE_MIN:
            heap[:] = [(each, name) for name, each in self.keys.items()]
            heapify(heap)
        else:
            heappush(heap, (key, group))

    def first(self) -> tuple[Key, int] | None:
        heap = self._heap
        while heap:
            key, group = first = heap[0]
            if self.keys.get(group) == key:
                return first
            heappop(heap)
        return None


class EvictionOrder:
    """Which group gives next.

    Unexpected ones wait by their use, and under `layer` by their next layer as well: if
    not even the least recently used of them is cold, none is. Expected ones wait by themselves,
    since prefetches spare them, and join the others when that is over: O(log n) a group.

    Args:
        policy: see the module.
    """

    def __init__(self, policy: EvictionName) -> None:
        self._policy: EvictionName = policy
        self._places: dict[int, _Place] = {}
        self._by_use = _Queue()
        self._by_layer = _Queue()
        self._expected = _Queue()
        self._expiries = _Queue()

    def add(self, group: int, used_at_ns: int, layer: int, expected_until_ns: int = 0) -> None:
        """A group, by a number of its own, whose next pages are of `layer`."""
        place = self._places[group] = _Place(used_at_ns, layer, expected_until_ns)
        if expected_until_ns:
            self._expected.put(group, self._key(place))
            self._expiries.put(group, (expected_until_ns, 0, 0))
        else:
            self._release(group, place)

    def move(self, group: int, layer: int) -> None:
        """Its next pages are of this layer."""
        place = self._places[group]
        if place.layer != layer:
            place.layer = layer
            if place.expected_until_ns:
                self._expected.put(group, self._key(place))
            elif self._policy == "layer":
                self._by_layer.put(group, self._key(place))

    def remove(self, group: int) -> None:
        """It has nothing left to give."""
        del self._places[group]
        for queue in (self._by_use, self._by_layer, self._expected, self._expiries):
            queue.keys.pop(group, None)

    def is_expected(self, group: int, now_ns: int) -> bool:
        return now_ns < self._places[group].expected_until_ns

    def first(self, now_ns: int) -> int | None:
        """The group that gives a page that is needed now; None: there is none."""
        self._expire(now_ns)
        first, expected = self._first_of_others(now_ns), self._expected.first()
        if first is None or (expected is not None and expected < first):
            first = expected
        return None if first is None else first[1]

    def first_for_prefetch(self, now_ns: int, layer: int) -> int | None:
        """The group that gives to an announced turn that lacks a page of `layer`: one that is not
        expected. Under `layer`, if there is none, one that gives of a layer above: so all that are
        announced have their low layers first. What is filled so is always below what is taken, so
        that two cannot take from each other for ever.
        """
        self._expire(now_ns)
        first = self._first_of_others(now_ns)
        if first is None and self._policy == "layer":
            first = self._expected.first()
            if first is not None and self._places[first[1]].layer <= layer:
                return None
        return None if first is None else first[1]

    def _first_of_others(self, now_ns: int) -> tuple[Key, int] | None:
        first = self._by_use.first()
        if self._policy != "layer" or first is None:
            return first
        is_cold = self._places[first[1]].used_at_ns + RECENT_NS <= now_ns
        return first if is_cold else self._by_layer.first()

    def _expire(self, now_ns: int) -> None:
        while (first := self._expiries.first()) is not None and first[0][0] <= now_ns:
            group = first[1]
            place = self._places[group]
            place.expected_until_ns = 0
            del self._expiries.keys[group], self._expected.keys[group]
            self._release(group, place)

    def _release(self, group: int, place: _Place) -> None:
        """It is not expected (any more)."""
        key = eviction_key(self._policy, place.used_at_ns, place.layer, is_warm=False)
        self._by_use.put(group, key)
        if self._policy == "layer":
            self._by_layer.put(group, self._key(place))

    def _key(self, place: _Place) -> Key:
        """While it is warm."""
        return eviction_key(self._policy, place.used_at_ns, place.layer, is_warm=True)
