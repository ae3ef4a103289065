"""Idle blocks of a pool by when they were last used, and which of them give their pages next."""

from collections.abc import Callable
from dataclasses import dataclass

from services.worker.core.kv.page_table import Block
from shared.eviction import EvictionName, EvictionOrder, Guard, ReturnModel

ALL_LAYERS = -1


@dataclass(slots=True)
class _Group:
    """Idle blocks last used together, in sequence order; those that have left since included.

    Attributes:
        layer, num_left: the next page to give is that of the block before `num_left`, in `layer`.
        is_begun: no block has a page above `layer`: looked up when its first page is wanted.
        is_alive: a block of it was seen that has not left, in `layer`.
    """

    blocks: list[Block]
    layer: int
    num_left: int
    is_begun: bool
    is_alive: bool = False


class IdleGroups:
    """A block is in the group whose number it has, and leaves it without a word. Within a group
    the highest layer of all blocks goes first, and within a layer the deepest block; or, under the
    policy `lru` and in a group that goes whole, the deepest block with all its layers. Which group
    is next says `EvictionOrder`.

    Args:
        highest_layer: of which any of these blocks has a page.
        returns: what is known of what returns.
        guard: says whether that is to be trusted.

    Attributes:
        num_candidates: in all groups, those that left them since included.
    """

    def __init__(
        self,
        policy: EvictionName,
        num_layers: int,
        highest_layer: Callable[[list[Block]], int],
        returns: ReturnModel,
        guard: Guard,
    ) -> None:
        self.num_candidates = 0
        self._is_whole = policy == "lru"
        self._num_layers = num_layers
        self._highest_layer = highest_layer
        self._order = EvictionOrder(policy, returns, guard)
        self._groups: dict[int, _Group] = {}
        self._next_number = 1

    def add(
        self, blocks: list[Block], now_ns: int, expected_until_ns: int, *, goes_whole: bool = False
    ) -> None:
        """These, of one kind, were used until now. Until `expected_until_ns` prefetches for other
        sessions spare them.

        Args:
            goes_whole: they have no copies from which single layers could be loaded again.
        """
        goes_whole |= self._is_whole
        number = self._next_number
        self._next_number += 1
        for block in blocks:
            block.group = number
        layer = ALL_LAYERS if goes_whole else self._num_layers - 1
        self._groups[number] = _Group(blocks, layer, len(blocks), goes_whole)
        kind = blocks[0].return_kind
        self._order.add(number, now_ns, layer, expected_until_ns, kind=kind)
        self.num_candidates += len(blocks)

    def make_whole(self, blocks: list[Block]) -> None:
        """These of one group go whole from now on, and are a group of their own."""
        used_at_ns, expected_until_ns = self._order.times_of(blocks[0].group)
        self.add(blocks, used_at_ns, expected_until_ns, goes_whole=True)

    def is_expected(self, group: int, now_ns: int) -> bool:
        """Whether the group is of an expected session."""
        return self._order.is_expected(group, now_ns)

    def next_run(
        self, count: int, now_ns: int, prefetch_layer: int | None = None
    ) -> tuple[list[Block], int] | None:
        """Blocks that give next, of one group or several, and the layer of which they give the page
        that they have there, or `ALL_LAYERS`: as many as make at most `count` pages, or that and a
        part of a block's.

        Args:
            prefetch_layer: of the page that is wanted for an announced turn, which must not take
                what others need as much (see `EvictionOrder`); None: it is in use.
        """
        num_blocks = count
        run: list[Block] = []
        layer = ALL_LAYERS
        while len(run) < num_blocks:
            if (number := self._first(now_ns, prefetch_layer)) is None:
                break
            group = self._groups[number]
            if not group.is_begun:
                self._begin(number, group)
                continue
            if run and group.layer != layer:
                break
            layer, end = group.layer, group.num_left
            if layer == ALL_LAYERS:
                num_blocks = -(-count // self._num_layers)
            group.num_left = max(end - num_blocks + len(run), 0)
            some = reversed(group.blocks[group.num_left : end])
            there = [block for block in some if block.group == number]
            group.is_alive |= bool(there)
            run += there
            if not group.num_left:
                self._descend(number, group)
        return (run, layer) if run else None

    def sweep(self) -> None:
        """Forget the candidates that left their groups."""
        for number, group in list(self._groups.items()):
            self._sweep(number, group)

    def _sweep(self, number: int, group: _Group) -> None:
        num_candidates = len(group.blocks)
        seen = group.blocks[group.num_left :]
        ahead = [block for block in group.blocks[: group.num_left] if block.group == number]
        group.num_left = len(ahead)
        group.blocks = ahead + [block for block in seen if block.group == number]
        self.num_candidates -= num_candidates - len(group.blocks)
        if not group.blocks:
            del self._groups[number]
            self._order.remove(number)

    def _begin(self, number: int, group: _Group) -> None:
        self._sweep(number, group)
        if group.blocks:
            group.is_begun = True
            group.layer = self._highest_layer(group.blocks)
            self._order.move(number, group.layer)

    def _first(self, now_ns: int, prefetch_layer: int | None) -> int | None:
        if prefetch_layer is None:
            return self._order.first(now_ns)
        return self._order.first_for_prefetch(now_ns, prefetch_layer)

    def _descend(self, number: int, group: _Group) -> None:
        """It has given all of a layer."""
        group.layer -= 1
        if group.layer < 0 or not group.is_alive:
            self.num_candidates -= len(self._groups.pop(number).blocks)
            self._order.remove(number)
            return
        group.num_left, group.is_alive = len(group.blocks), False
        self._order.move(number, group.layer)
