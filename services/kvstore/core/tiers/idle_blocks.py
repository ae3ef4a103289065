"""Blocks that are neither read nor filled, and which page of theirs goes first."""

from collections.abc import Callable
from dataclasses import dataclass, field

from services.kvstore.core.tiers.arena_block import NO_LAYER, ArenaBlock
from shared.blocks import BlockKey
from shared.eviction import EvictionName, EvictionOrder

GONE = object()
ALL_LAYERS = 0  # under which blocks stand that go with all their pages


class IdleBlocks:
    """Blocks that were last used at the same instant are a group. Which group gives pages next says
    `EvictionOrder`. Within it they go in this order: of the highest layer, then of the deepest in
    its sequence, then of the one that is older here; so that what remains of a session is what its
    next pass needs first. Under the policy `lru` blocks go as wholes, the deepest first. A block of
    which there is no copy below always does: without one layer the others are of no use. It stands
    at layer 0: to lose it costs computing it, to lose a layer of others costs a read.

    In a group blocks stand by the highest layer that they have: one that leaves is taken out of a
    dict, and only the blocks of the layer whose turn it is are ever sorted.

    Args:
        has_copy: whether a block is below, too, asked when it is added.
    """

    def __init__(
        self,
        policy: EvictionName = "layer",
        has_copy: Callable[[BlockKey], bool] = lambda key: True,
    ) -> None:
        self._is_whole = policy == "lru"
        self._has_copy = has_copy
        self._order = EvictionOrder(policy)
        self._groups: dict[int, _Group] = {}  # by when their blocks were last used
        self._group_of: dict[ArenaBlock, _Group] = {}

    def __len__(self) -> int:
        return len(self._group_of)

    def __contains__(self, block: ArenaBlock) -> bool:
        return block in self._group_of

    def add(self, block: ArenaBlock) -> None:
        """An idle block with pages, by when it was used; one that is here moves if it was used
        since."""
        used_at_ns = block.used_at_ns
        if (group := self._group_of.get(block)) is not None:
            if group.used_at_ns == used_at_ns:
                return
            self.discard(block)
        if (group := self._groups.get(used_at_ns)) is None:
            group = self._groups[used_at_ns] = _Group(used_at_ns)
        self._group_of[block] = group
        block.goes_whole = self._is_whole or not self._has_copy(block.key)
        layer = group.add(block)
        if group.layer == NO_LAYER:
            self._order.add(used_at_ns, used_at_ns, layer)
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
            group = self._groups[first]
            if group.highest == group.layer:
                group.take_layer(num_pages, is_stored, pages, emptied)
            if not group.by_layer:
                self._close(group)
            elif (highest := group.highest) < group.layer:
                self._move(group, highest)
        for block in emptied:
            del self._group_of[block]
        return pages, emptied

    def _move(self, group: "_Group", layer: int) -> None:
        group.layer = layer
        self._order.move(group.used_at_ns, layer)

    def _close(self, group: "_Group") -> None:
        del self._groups[group.used_at_ns]
        self._order.remove(group.used_at_ns)


@dataclass(slots=True)
class _Group:
    """Idle blocks last used at the same instant.

    Attributes:
        layer: where it stands in the order: at least the highest of which a block here has a page.
        by_layer: blocks by the highest layer of which they have a page, or under `ALL_LAYERS` if
            they go with all their pages; no layer without blocks.
    """

    used_at_ns: int
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
