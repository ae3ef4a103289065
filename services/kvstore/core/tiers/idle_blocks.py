"""Blocks that are neither read nor filled, and which page of theirs goes first."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from services.kvstore.core.tiers.arena_block import NO_LAYER, ArenaBlock
from shared.blocks import BlockKey
from shared.eviction import (
    UNKNOWN_KIND,
    EvictionName,
    EvictionOrder,
    Guard,
    ReturnModel,
    compute_share,
)

GONE = object()
ALL_LAYERS = 0  # under which blocks stand that go with all their pages
COMPUTED_WORTH = 6.0  # what computing a block takes, in reads of it from below: `bench vllm`

_Alike = tuple[int, int, float]  # when its blocks were last used, their kind, and their worth


class IdleBlocks:
    """Blocks that were last used at the same instant, of one kind and worth, are a group.
    `EvictionOrder` says which group gives pages next. Within it they go in this order: of the
    highest layer, then of the deepest in its sequence, then of the one that is older here; so that
    what remains of a session is what its next pass needs first. Under the policy `lru` blocks go as
    wholes, the deepest first. A block of which there is no copy below always does: without one
    layer the others are of no use. Losing it costs computing it, a layer of others costs a read.

    In a group blocks stand by the highest layer that they have: one that leaves is taken out of a
    dict, and only the blocks of the layer whose turn it is are ever sorted.

    Args:
        has_copy: whether a block is below, too, asked when it is added.
        returns: what is known of what returns.
        guard: says whether that is to be trusted.
    """

    def __init__(
        self,
        policy: EvictionName = "predicted",
        has_copy: Callable[[BlockKey], bool] = lambda key: True,
        returns: ReturnModel | None = None,
        guard: Guard | None = None,
    ) -> None:
        self._is_whole = policy == "lru"
        self._is_valued = policy == "predicted"
        self._has_copy = has_copy
        self._order = EvictionOrder(policy, returns, guard)
        self._groups: dict[_Alike, _Group] = {}
        self._numbers = count(0, -1)  # of equal groups the last goes first: of a sequence, its end
        self._by_number: dict[int, _Group] = {}
        self._group_of: dict[ArenaBlock, _Group] = {}

    def __len__(self) -> int:
        return len(self._group_of)

    def __contains__(self, block: ArenaBlock) -> bool:
        return block in self._group_of

    def add(self, block: ArenaBlock) -> None:
        """An idle block with pages, by when it was used; one that is here moves if it was used
        since, or is of another kind."""
        if (group := self._group_of.get(block)) is not None:
            if group.alike[:2] == (block.used_at_ns, self._kind_of(block)):
                return
            self.discard(block)
        has_copy = self._has_copy(block.key)
        block.goes_whole = self._is_whole or not has_copy
        worth = worth_of(block) if self._is_valued and not has_copy else 1.0
        alike = block.used_at_ns, self._kind_of(block), worth
        if (group := self._groups.get(alike)) is None:
            group = self._groups[alike] = _Group(next(self._numbers), alike)
            self._by_number[group.number] = group
        self._group_of[block] = group
        layer = group.add(block)
        if group.layer == NO_LAYER:
            self._order.add(group.number, block.used_at_ns, layer, kind=alike[1], worth=worth)
            group.layer = layer
        elif layer > group.layer:
            self._move(group, layer)

    def discard(self, block: ArenaBlock) -> None:
        """It is used again, or forgotten; its pages are those that it had here."""
        if (group := self._group_of.pop(block, None)) is not None:
            group.remove(block)
            if not group.by_layer:
                self._close(group)

    def take(
        self, num_pages: int, is_stored: Callable[[BlockKey], bool], now_ns: int
    ) -> tuple[list[int], list[ArenaBlock]]:
        """Strip blocks of `num_pages` pages, or some more, or all that there are. Returns the
        pages, and the blocks that have none left and are here no more.
        """
        pages: list[int] = []
        emptied: list[ArenaBlock] = []
        while len(pages) < num_pages and (first := self._order.first(now_ns)) is not None:
            group = self._by_number[first]
            if group.highest == group.layer:
                group.take_layer(num_pages, is_stored, pages, emptied)
            if not group.by_layer:
                self._close(group)
            elif (highest := group.highest) < group.layer:
                self._move(group, highest)
        for block in emptied:
            del self._group_of[block]
        return pages, emptied

    def _kind_of(self, block: ArenaBlock) -> int:
        return block.return_kind if self._is_valued else UNKNOWN_KIND

    def _move(self, group: "_Group", layer: int) -> None:
        group.layer = layer
        self._order.move(group.number, layer)

    def _close(self, group: "_Group") -> None:
        del self._groups[group.alike], self._by_number[group.number]
        self._order.remove(group.number)


def worth_of(block: ArenaBlock) -> float:
    """What it saves that a page of a block is here of which there is no copy below, in parts of
    what that saves by one that is below, too."""
    return COMPUTED_WORTH * compute_share(block.depth)


@dataclass(slots=True)
class _Group:
    """Idle blocks last used at the same instant, of the same kind and worth.

    Attributes:
        layer: where it stands in the order: at least the highest of which a block here has a page.
        by_layer: blocks by the highest layer of which they have a page, or under `ALL_LAYERS` if
            they go with all their pages; no layer without blocks.
    """

    number: int
    alike: "_Alike"
    layer: int = NO_LAYER
    by_layer: dict[int, dict[ArenaBlock, None]] = field(default_factory=dict)
    _order: list[ArenaBlock] = field(default_factory=list)  # the next is last; some have left
    _order_layer: int = NO_LAYER  # whose blocks are all in `_order`

    @property
    def highest(self) -> int:
        """The group whose pages are next."""
        return max(self.by_layer)

    def add(self, block: ArenaBlock) -> int:
        """Returns the layer under which it stands."""
        layer = _standing(block)
        self.by_layer.setdefault(layer, {})[block] = None
        if layer == self._order_layer:
            self._order_layer = NO_LAYER
        return layer

    def remove(self, block: ArenaBlock) -> None:
        layer = _standing(block)
        del self.by_layer[layer][block]
        self._close_if_empty(layer)

    def take_layer(
        self,
        num_pages: int,
        is_stored: Callable[[BlockKey], bool],
        pages: list[int],
        emptied: list[ArenaBlock],
    ) -> None:
        """Add to `pages` until there are so many, or nothing is left here of `layer`, which is the
        highest, and to `emptied`."""
        layer = self.layer
        blocks, order = self.by_layer[layer], self._sorted(layer)
        lower: dict[int, list[ArenaBlock]] = {}
        while order and len(pages) < num_pages:
            block = order.pop()
            if blocks.pop(block, GONE) is GONE:  # it has left since they were sorted
                continue
            if block.goes_whole or not is_stored(block.key):
                pages += block.strip_all()
                emptied.append(block)
                continue
            pages.append(block.pages[layer])
            below = block.strip_highest(layer)
            if below == NO_LAYER:
                emptied.append(block)
            elif below in lower:
                lower[below].append(block)
            else:
                lower[below] = [block]
        assert order or not blocks, "a block has no place in the order"
        self._close_if_empty(layer)
        for below, moved in lower.items():
            self._move(moved, below)

    def _sorted(self, layer: int) -> list[ArenaBlock]:
        if layer != self._order_layer:
            self._order = sorted(self.by_layer[layer], key=_rank)
            self._order_layer = layer
        return self._order

    def _move(self, blocks: list[ArenaBlock], layer: int) -> None:
        """These, in their order, have `layer` as the highest now."""
        if layer in self.by_layer:
            self.by_layer[layer].update(dict.fromkeys(blocks))
            return
        self.by_layer[layer] = dict.fromkeys(blocks)
        if self._order_layer == NO_LAYER:  # as it mostly is: all of a layer went one down
            blocks.reverse()
            self._order, self._order_layer = blocks, layer

    def _close_if_empty(self, layer: int) -> None:
        if not self.by_layer[layer]:
            del self.by_layer[layer]
            if layer == self._order_layer:
                self._order, self._order_layer = [], NO_LAYER


def _standing(block: ArenaBlock) -> int:
    return ALL_LAYERS if block.goes_whole else block.highest_layer(below=block.num_layers)


def _rank(block: ArenaBlock) -> tuple[int, int]:
    return block.depth, -block.block_id
