"""The one order in which idle blocks give their pages, in a worker's pool, in a host's arena and on
its disk.

Idle blocks that were last used together are a *group*. Which group is next is decided here; which
of its blocks gives which page, by the owner of the blocks. Policies:

- `predicted`: the group whose pages save the least time a second of keeping them: the rate at which
  such groups return at this age (`ReturnModel`), times what a return saves by the page. Where
  nothing is known of what returns, that is the least recently used group.
- `lru`: the least recently used group gives whole blocks, the deepest first: no priority by layer.
- `layer`: *cold* groups by use, the highest layer of all blocks first. After them come *warm* ones,
  those that are expected or were used within `RECENT_NS`: the last layer of all of them before the
  second-last of any, and within a layer the least recently used group first. For a pass that has
  its first layers begins, and the later ones stream in behind it. Warm ends, since otherwise
  sessions that never come back would keep their low layers for ever.

Expected groups, those of announced turns, return for certain: they give after all others, by layer.

Source: SYMPHONY, section 3.4 (priority-based KV cache management). The paper gives the order by
layer; prediction, and where "recently" ends, are ours.
"""

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from typing import Literal, TypeAlias

from shared.eviction.guard import Guard
from shared.eviction.hazard import EDGES_NS, NUM_BINS, bin_of
from shared.eviction.returns import UNKNOWN_KIND, ReturnModel

EvictionName: TypeAlias = Literal["predicted", "layer", "lru"]
Key: TypeAlias = tuple[
    int, float, float
]  # what gives last is 1, the others 0; then the least first

RECENT_NS = 120_000_000_000
STALE_MIN = 64
HALF_WORTH_LAYER = 32  # loading a higher layer hides behind computing those below
DEPTH_BLOCKS = 512  # 32,768 tokens, of an 8B model


@dataclass(slots=True)
class _Group:
    """Attributes:
    layer: of its next pages.
    expected_until_ns: 0 once that was seen to be over.
    kind: of return, as `ReturnModel` has it.
    worth: what a return saves by a page, in parts of what it saves by one of another.
    rate: what keeping a page of layer 0 saves a second, as of when that was looked at.
    """

    used_at_ns: int
    layer: int
    expected_until_ns: int
    kind: int
    worth: float
    rate: float = 0.0


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
    """Which group gives next: O(log n) a group, each time it changes.

    Groups that are not expected wait by what they are worth, under `predicted`; else by use, and
    under `layer` by their next layer as well: if not even the least recently used of them is cold,
    none is. Expected ones wait by themselves, since prefetches spare them, and join the others when
    that is over.

    Under `predicted` a group is looked at again when it is so old that it is worth less; one that
    is worth more by now is found out when it is next.

    Args:
        policy: see the module.
        returns: what is known of what returns; used by `predicted` alone.
        guard: says whether prediction is to be trusted now.
    """

    def __init__(
        self,
        policy: EvictionName,
        returns: ReturnModel | None = None,
        guard: Guard | None = None,
    ) -> None:
        self._policy: EvictionName = policy
        self._returns = returns or ReturnModel()
        self._guard = guard or Guard(1)
        self._is_trusted = True
        self._groups: dict[int, _Group] = {}
        self._by_worth = _Queue()  # or by use, under the other policies
        self._by_layer = _Queue()
        self._expected = _Queue()
        self._changes = _Queue()  # when a group is to be looked at again

    def add(
        self, group: int, used_at_ns: int, layer: int, expected_until_ns: int = 0, *,
        kind: int = UNKNOWN_KIND, worth: float = 1.0,
    ) -> None:  # fmt: skip
        """A group, by a number of its own, whose next pages are of `layer`.

        Args:
            kind: of return, as `ReturnModel` has it.
            worth: what a return saves by a page, in parts of what it saves by one of another group.
        """
        each = self._groups[group] = _Group(used_at_ns, layer, expected_until_ns, kind, worth)
        if expected_until_ns:
            self._expected.put(group, self._expected_key(each))
            self._changes.put(group, (0, expected_until_ns, 0))
        else:
            self._release(group, each, used_at_ns)

    def move(self, group: int, layer: int) -> None:
        """Its next pages are of this layer."""
        each = self._groups[group]
        if each.layer == layer:
            return
        each.layer = layer
        if each.expected_until_ns:
            self._expected.put(group, self._expected_key(each))
        elif self._policy == "layer":
            self._by_layer.put(group, _warm_key(each))
        elif self._policy == "predicted":
            self._by_worth.put(group, _worth_key(each))

    def remove(self, group: int) -> None:
        """It has nothing left to give."""
        del self._groups[group]
        for queue in (self._by_worth, self._by_layer, self._expected, self._changes):
            queue.keys.pop(group, None)

    def times_of(self, group: int) -> tuple[int, int]:
        """When it was last used, and until when it is expected: as it was added."""
        each = self._groups[group]
        return each.used_at_ns, each.expected_until_ns

    def is_expected(self, group: int, now_ns: int) -> bool:
        """Whether an announced turn is to use it."""
        return now_ns < self._groups[group].expected_until_ns

    def first(self, now_ns: int) -> int | None:
        """The group that gives a page that is needed now; None: there is none."""
        self._look_again(now_ns)
        first, expected = self._first_of_others(now_ns), self._expected.first()
        if first is None or (expected is not None and expected < first):
            first = expected
        return None if first is None else first[1]

    def first_for_prefetch(self, now_ns: int, layer: int) -> int | None:
        """The group that gives to an announced turn that lacks a page of `layer`: one that is not
        expected. If there is none, one that gives of a layer above, but under `lru`: so all that
        are announced have their low layers first. What is filled so is always below what is taken,
        so that two cannot take from each other for ever.
        """
        self._look_again(now_ns)
        first = self._first_of_others(now_ns)
        if first is None and self._policy != "lru":
            first = self._expected.first()
            if first is not None and self._groups[first[1]].layer <= layer:
                return None
        return None if first is None else first[1]

    def _first_of_others(self, now_ns: int) -> tuple[Key, int] | None:
        first = self._by_worth.first()
        if first is None or self._policy == "lru":
            return first
        if self._policy == "layer":
            is_cold = self._groups[first[1]].used_at_ns + RECENT_NS <= now_ns
            return first if is_cold else self._by_layer.first()
        while first is not None:
            group = first[1]
            each = self._groups[group]
            if self._rate(each, bin_of(now_ns - each.used_at_ns)) <= each.rate:
                break
            self._release(group, each, now_ns)
            first = self._by_worth.first()
        return first

    def _look_again(self, now_ns: int) -> None:
        if self._is_trusted != self._guard.is_trusted:
            self._is_trusted = self._guard.is_trusted
            for group, each in self._groups.items():
                if not each.expected_until_ns:
                    self._release(group, each, now_ns)
        while (first := self._changes.first()) is not None and first[0][1] <= now_ns:
            group = first[1]
            each = self._groups[group]
            del self._changes.keys[group]
            if each.expected_until_ns:
                each.expected_until_ns = 0
                del self._expected.keys[group]
            self._release(group, each, now_ns)

    def _release(self, group: int, each: _Group, now_ns: int) -> None:
        """It is not expected (any more), or older than it was."""
        if self._policy == "layer":
            self._by_layer.put(group, _warm_key(each))
        if self._policy != "predicted":
            self._by_worth.put(group, _use_key(each))
            return
        age_bin = bin_of(now_ns - each.used_at_ns)
        each.rate = self._rate(each, age_bin)
        self._by_worth.put(group, _worth_key(each))
        for later in range(age_bin + 1, NUM_BINS):
            if self._rate(each, later) < each.rate:
                self._changes.put(group, (0, each.used_at_ns + EDGES_NS[later], 0))
                break

    def _expected_key(self, each: _Group) -> Key:
        return _use_key(each) if self._policy == "lru" else _warm_key(each)

    def _rate(self, each: _Group, age_bin: int) -> float:
        if not self._is_trusted:
            return 0.0
        return self._returns.index(each.kind, age_bin) * each.worth


def compute_share(depth: int) -> int:
    """What computing a block takes that has so many before it, in parts of a sequence's first: at
    `DEPTH_BLOCKS` attention takes as long as all else."""
    return 1 + max(depth, 0) // DEPTH_BLOCKS


def layer_share(layer: int) -> float:
    """What a page of this layer saves, in parts of one of the first."""
    return HALF_WORTH_LAYER / (HALF_WORTH_LAYER + max(layer, 0))


def _worth_key(each: _Group) -> Key:
    return 0, each.rate * layer_share(each.layer), each.used_at_ns


def _use_key(each: _Group) -> Key:
    return 0, each.used_at_ns, 0


def _warm_key(each: _Group) -> Key:
    return 1, -each.layer, each.used_at_ns
