"""Blocks that nobody reads or fills, and which page of theirs goes first."""

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from services.kvstore.core.arena_block import ArenaBlock
from shared.blocks import BlockKey

NO_LAYER = -1
INSTANTS_MIN = 64  # kept in the heap, however few of them still have blocks


class IdleBlocks:
    """Pages go in this order: of the least recently used block, then of the highest layer, then of
    the deepest in its sequence, then of the one that is older here; so that what remains of a
    session is what its next pass needs first. A block of which there is no copy on disk goes as a
    whole: without one layer the others are of no use.

    Source: SYMPHONY, section 3.4 (cooperative memory: the highest layers go first).

    Blocks that were last used at the same instant are a group, and in it stand by the highest layer
    that they have: one that leaves is taken out of a dict, and only the blocks of the layer whose
    turn it is are ever sorted.
    """

    def __init__(self) -> None:
        self._groups: dict[int, _Group] = {}  # by when their blocks were last used
        self._instants: list[int] = []  # a heap; of groups that are gone as well
        self._group_of: dict[ArenaBlock, _Group] = {}

    def __len__(self) -> int:
        return len(self._group_of)

    def __contains__(self, block: ArenaBlock) -> bool:
        return block in self._group_of

    def add(self, block: ArenaBlock) -> None:
        """An idle block with pages, by when it was used; one that is here moves if it was used
        since."""
        if (group := self._group_of.get(block)) is not None:
            if group.used_at_ns == block.used_at_ns:
                return
            self.discard(block)
        if (group := self._groups.get(block.used_at_ns)) is None:
            group = self._open(block.used_at_ns)
        self._group_of[block] = group
        group.add(block)

    def discard(self, block: ArenaBlock) -> None:
        """It is used again, or forgotten; its pages are those that it had here."""
        if (group := self._group_of.pop(block, None)) is not None:
            group.remove(block)
            if not group.by_layer:
                del self._groups[group.used_at_ns]

    def take(
        self, num_pages: int, is_stored: Callable[[BlockKey], bool]
    ) -> tuple[list[int], list[ArenaBlock]]:
        """Strip blocks of `num_pages` pages, or some more, or all that there are. Returns the
        pages, and the blocks that have none left and are here no more.
        """
        pages: list[int] = []
        emptied: list[ArenaBlock] = []
        while len(pages) < num_pages and (group := self._oldest()) is not None:
            group.take(num_pages, is_stored, pages, emptied)
            if not group.by_layer:
                del self._groups[group.used_at_ns]
        for block in emptied:
            del self._group_of[block]
        return pages, emptied

    def _open(self, used_at_ns: int) -> "_Group":
        if len(self._instants) >= INSTANTS_MIN + 2 * len(self._groups):
            self._instants = list(self._groups)
            heapify(self._instants)
        heappush(self._instants, used_at_ns)
        group = self._groups[used_at_ns] = _Group(used_at_ns)
        return group

    def _oldest(self) -> "_Group | None":
        while self._instants:
            if (group := self._groups.get(self._instants[0])) is not None:
                return group
            heappop(self._instants)
        return None


@dataclass(slots=True)
class _Group:
    """Idle blocks last used at the same instant.

    Attributes:
        by_layer: blocks by the highest layer of which they have a page; no layer without blocks.
    """

    used_at_ns: int
    by_layer: dict[int, dict[ArenaBlock, None]] = field(default_factory=dict)
    _order: list[ArenaBlock] = field(default_factory=list)  # the next is last; some have left
    _order_layer: int = NO_LAYER  # whose blocks are all in `_order`

    def add(self, block: ArenaBlock) -> None:
        layer = block.highest_layer(below=block.num_layers)
        self.by_layer.setdefault(layer, {})[block] = None
        if layer == self._order_layer:
            self._order_layer = NO_LAYER

    def remove(self, block: ArenaBlock) -> None:
        layer = block.highest_layer(below=block.num_layers)
        del self.by_layer[layer][block]
        self._close_if_empty(layer)

    def take(
        self,
        num_pages: int,
        is_stored: Callable[[BlockKey], bool],
        pages: list[int],
        emptied: list[ArenaBlock],
    ) -> None:
        """Add to `pages` until there are so many, or nothing is left here, and to `emptied`."""
        while self.by_layer and len(pages) < num_pages:
            layer = max(self.by_layer)
            blocks, order = self.by_layer[layer], self._sorted(layer)
            lower: dict[int, list[ArenaBlock]] = {}
            while order and len(pages) < num_pages:
                block = order.pop()
                if block not in blocks:  # it has left since they were sorted
                    continue
                del blocks[block]
                if not is_stored(block.key):
                    pages += block.strip_all()
                    emptied.append(block)
                    continue
                pages.append(block.strip_one(layer))
                if not block.num_present:
                    emptied.append(block)
                    continue
                below = block.highest_layer(layer)
                if below in lower:
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


def _rank(block: ArenaBlock) -> tuple[int, int]:
    return block.depth, -block.block_id
