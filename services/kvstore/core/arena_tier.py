"""Pages of one arena: free, leased to a worker, or holding one layer of a block."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from services.kvstore.core.effects import Effect, SetWords
from shared.arena import PageState
from shared.blocks import NO_PARENT, BlockKey
from shared.owners import NOBODY, OwnedKeys, OwnerKey

NO_PAGE = -1


@dataclass(slots=True, eq=False)
class Block:
    """A block with pages in the arena, perhaps not of every layer.

    Attributes:
        pages: arena page of each layer, `NO_PAGE` where there is none.
        generations: under which each page was given to this block.
        depth: how many blocks precede it in its sequence, as far as known.
        owner: the session that made it.
        parent: key of the block before it.
        queued: layers waiting for the loader.
        in_flight: layers that the loader is filling.
        num_pins: tickets that hold it.
        is_writing: the writer still reads its pages, which are its only copy.
        is_alive: False once forgotten; its pages stay until nobody reads or fills them.
    """

    block_id: int
    key: BlockKey
    page_bytes: int
    pages: list[int]
    generations: list[int]
    depth: int
    used_at_ns: int
    owner: OwnerKey = NOBODY
    parent: BlockKey = NO_PARENT
    queued: set[int] = field(default_factory=set)
    in_flight: set[int] = field(default_factory=set)
    num_pins: int = 0
    is_writing: bool = False
    is_alive: bool = True
    order_stamp: int = 0

    @property
    def num_layers(self) -> int:
        return len(self.pages)

    @property
    def is_whole(self) -> bool:
        """Every layer's bytes are in the arena."""
        return not (self.queued or self.in_flight or NO_PAGE in self.pages)

    @property
    def is_idle(self) -> bool:
        """Nobody reads its pages and nobody fills them."""
        return not (self.num_pins or self.is_writing or self.queued or self.in_flight)


class ArenaTier:
    """Who has which page, and which page goes first when one is needed.

    Pages of idle blocks go in this order: least recently used, then highest layer, then deepest in
    its sequence, so that what remains of a session is what its next pass needs first.

    Source: SYMPHONY, section 3.4 (cooperative memory: the highest layers go first).

    Attributes:
        blocks: what can be found by key.
        holding: every block that has pages, forgotten ones included, by id.
        num_pinned: blocks that tickets hold.
    """

    def __init__(self, num_pages: int, page_bytes: int) -> None:
        assert num_pages > 0 and page_bytes > 0
        self.num_pages = num_pages
        self.page_bytes = page_bytes
        self.blocks: dict[BlockKey, Block] = {}
        self.holding: dict[int, Block] = {}
        self._owned = OwnedKeys()
        self.num_evicted = 0
        self.num_pinned = 0
        self._free = list(range(num_pages - 1, -1, -1))
        self._generations = [0] * num_pages
        self._order: list[tuple[int, int, int, int, int]] = []

    @property
    def free_pages(self) -> list[int]:
        return list(self._free)

    @property
    def num_free(self) -> int:
        return len(self._free)

    def generation(self, page: int) -> int:
        """Under which `page` was last given away."""
        return self._generations[page]

    def take(
        self, num_pages: int, is_stored: Callable[[BlockKey], bool], effects: list[Effect]
    ) -> list[int]:
        """Up to `num_pages` pages, published as FILLING under a new generation each; evicts if
        needed.
        """
        while len(self._free) < num_pages and self._evict_one(is_stored, effects):
            pass
        pages = [self._free.pop() for _ in range(min(num_pages, len(self._free)))]
        for page in pages:
            self._generations[page] += 1
        self._publish(pages, PageState.FILLING, effects)
        return pages

    def give(self, pages: Iterable[int], effects: list[Effect]) -> None:
        """Pages that nobody uses any more."""
        pages = list(pages)
        self._free.extend(pages)
        self._publish(pages, PageState.FREE, effects)

    def insert(self, block: Block) -> None:
        """Make a block findable. Its pages are its own from now on."""
        assert block.key not in self.blocks, "a block is indexed once"
        self.blocks[block.key] = block
        self.holding[block.block_id] = block
        self._owned.add(block.owner, block.key)

    def owned(self, owner: OwnerKey) -> list[BlockKey]:
        """Blocks to be found here that this session made."""
        return self._owned.of(owner)

    def pin(self, block: Block) -> None:
        """Keep `block` where it is until as many `unpin`."""
        self.num_pinned += not block.num_pins
        block.num_pins += 1
        block.order_stamp += 1

    def unpin(self, block: Block, effects: list[Effect]) -> None:
        """Undo one `pin`. The last one gives up the loads that have not begun."""
        block.num_pins -= 1
        assert block.num_pins >= 0, "unpinned more often than pinned"
        if not block.num_pins:
            self.num_pinned -= 1
            layers = sorted(block.queued)
            block.queued.clear()
            self._strip(block, layers, effects)
        self.settle(block, effects)

    def use(self, block: Block, now_ns: int, effects: list[Effect]) -> None:
        """It was used just now: others go before it."""
        block.used_at_ns = now_ns
        self.settle(block, effects)

    def drop_page(self, block: Block, layer: int, effects: list[Effect]) -> None:
        """The bytes of this layer did not come: who waits for them sees it by the page's word."""
        self._strip(block, [layer], effects)

    def forget(self, block: Block, effects: list[Effect]) -> None:
        """Nobody finds this block any more; its pages go as soon as nobody holds them."""
        if block.is_alive:
            self._unlist(block)
        lost = sorted(block.queued)
        block.queued.clear()
        self._publish([block.pages[layer] for layer in lost], PageState.BAD, effects)
        self.settle(block, effects)

    def settle(self, block: Block, effects: list[Effect]) -> None:
        """To be called after every change that may have made `block` idle."""
        block.order_stamp += 1
        if not block.is_idle:
            return
        if not block.is_alive:
            self._strip(block, range(block.num_layers), effects)
        if all(page == NO_PAGE for page in block.pages):
            self.holding.pop(block.block_id, None)
            if block.is_alive:
                self._unlist(block)
            return
        if len(self._order) > 4 * self.num_pages:
            self._compact()
        for layer, page in enumerate(block.pages):
            if page != NO_PAGE:
                heappush(
                    self._order,
                    (block.used_at_ns, -layer, -block.depth, block.block_id, block.order_stamp),
                )

    def _evict_one(self, is_stored: Callable[[BlockKey], bool], effects: list[Effect]) -> bool:
        while self._order:
            _, minus_layer, _, block_id, stamp = heappop(self._order)
            block = self.holding.get(block_id)
            if block is None or block.order_stamp != stamp or block.pages[-minus_layer] == NO_PAGE:
                continue
            if is_stored(block.key):
                self.num_evicted += self._strip(block, [-minus_layer], effects)
            else:  # its only copy: without one layer the others are of no use
                self.num_evicted += self._strip(block, range(block.num_layers), effects)
            if all(page == NO_PAGE for page in block.pages):
                self._unlist(block)
                del self.holding[block_id]
            return True
        return False

    def _unlist(self, block: Block) -> None:
        del self.blocks[block.key]
        self._owned.remove(block.owner, block.key)
        block.is_alive = False

    def _strip(self, block: Block, layers: Iterable[int], effects: list[Effect]) -> int:
        pages = [block.pages[layer] for layer in layers if block.pages[layer] != NO_PAGE]
        for layer in layers:
            block.pages[layer] = NO_PAGE
        self.give(pages, effects)
        return len(pages)

    def _compact(self) -> None:
        self._order = [
            entry
            for entry in self._order
            if (block := self.holding.get(entry[3])) is not None and block.order_stamp == entry[4]
        ]
        heapify(self._order)

    def _publish(self, pages: list[int], state: PageState, effects: list[Effect]) -> None:
        if pages:
            generations = [self._generations[page] for page in pages]
            effects.append(SetWords(self.page_bytes, list(pages), generations, state))

    def publish_ready(self, block: Block, effects: list[Effect]) -> None:
        """Every page of `block` holds its bytes."""
        self._publish(list(block.pages), PageState.READY, effects)

    def publish_bad(self, block: Block, effects: list[Effect]) -> None:
        """No page of `block` can be trusted."""
        pages = [page for page in block.pages if page != NO_PAGE]
        self._publish(pages, PageState.BAD, effects)
