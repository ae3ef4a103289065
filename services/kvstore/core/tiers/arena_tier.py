"""Pages of one arena: free, leased to a worker, or holding one layer of a block."""

from collections.abc import Callable, Iterable

from services.kvstore.core.base.effects import Effect, GrowArena, SetWords
from services.kvstore.core.base.tier_sizes import num_pages_ahead
from services.kvstore.core.tiers.arena_block import ArenaBlock
from services.kvstore.core.tiers.idle_blocks import IdleBlocks
from shared.arena import PageState
from shared.blocks import BlockKey
from shared.eviction import EvictionName, Guard, ReturnModel
from shared.hints import HintShares
from shared.owners import OwnedKeys, OwnerKey


class ArenaTier:
    """Which page is free, leased or a block's. Idle blocks give what is needed (see `IdleBlocks`).

    Args:
        has_copy: whether a block is below, too, and for longer than here.
        returns: what is known of what returns.

    Attributes:
        blocks: what can be found by key.
        holding: every block that has pages, forgotten ones included, by id.
        idle: blocks whose pages may go.
        guard: says whether prediction is to be trusted here.
        num_pinned: blocks that tickets hold.
        hinted: of those, what announced turns may have.
        on_gone: called with the key of each block that is not found here any more.
    """

    def __init__(
        self,
        num_pages: int,
        page_bytes: int,
        eviction: EvictionName = "predicted",
        has_copy: Callable[[BlockKey], bool] = lambda key: True,
        returns: ReturnModel | None = None,
    ) -> None:
        assert num_pages > 0 and page_bytes > 0
        self.num_pages = num_pages
        self.page_bytes = page_bytes
        self.blocks: dict[BlockKey, ArenaBlock] = {}
        self.holding: dict[int, ArenaBlock] = {}
        self.guard = Guard(num_pages)
        self.idle = IdleBlocks(eviction, has_copy, returns, self.guard)
        self._owned = OwnedKeys()
        self.hinted = HintShares.of_pages(num_pages)
        self.num_evicted = 0
        self.num_pinned = 0
        self.on_gone: Callable[[BlockKey], object] = lambda key: None
        self._free = list(range(num_pages - 1, -1, -1))
        # Lists: at a block's pages or a commit's, numpy's calls cost more than they save.
        self._generations = [0] * num_pages
        self._num_wanted = num_pages_ahead(0, page_bytes)  # so many, and the shell knows

    @property
    def free_pages(self) -> list[int]:
        return list(self._free)

    @property
    def num_free(self) -> int:
        return len(self._free)

    def generations(self, pages: list[int]) -> list[int]:
        """Under which each of `pages` was last given away."""
        generations = self._generations
        return [generations[page] for page in pages]

    def grow(self, num_pages: int) -> None:
        """There are so many pages now; the new ones are free, and their words say so."""
        assert num_pages >= self.num_pages, "no page that is here goes"
        self._free += range(num_pages - 1, self.num_pages - 1, -1)
        self._generations += [0] * (num_pages - self.num_pages)
        self.num_pages = num_pages
        self.hinted.resize(num_pages)

    def take(
        self,
        num_pages: int,
        is_stored: Callable[[BlockKey], bool],
        now_ns: int,
        effects: list[Effect],
    ) -> list[int]:
        """Up to `num_pages` pages, published as FILLING under a new generation each; evicts if
        needed.
        """
        self._want(num_pages, effects)
        if num_pages > len(self._free):
            self._evict(num_pages - len(self._free), is_stored, now_ns, effects)
        first = max(len(self._free) - num_pages, 0)
        pages = self._free[first:]
        del self._free[first:]
        pages.reverse()
        for page in pages:
            self._generations[page] += 1
        self._publish(pages, PageState.FILLING, effects)
        return pages

    def give(self, pages: Iterable[int], effects: list[Effect]) -> None:
        """Pages that are not used any more."""
        pages = list(pages)
        self._free += pages
        self._publish(pages, PageState.FREE, effects)

    def insert(self, block: ArenaBlock) -> None:
        """Make a block findable. Its pages are its own from now on."""
        assert block.key not in self.blocks, "a block is indexed once"
        self.blocks[block.key] = block
        self.holding[block.block_id] = block
        self._owned.add(block.owner, block.key)

    def owned(self, owner: OwnerKey) -> list[BlockKey]:
        """Blocks to be found here that this session made."""
        return self._owned.of(owner)

    def pin(self, block: ArenaBlock) -> None:
        """Keep `block` where it is until as many `unpin`."""
        self.num_pinned += not block.num_pins
        block.num_pins += 1
        self.idle.discard(block)

    def unpin(self, blocks: Iterable[ArenaBlock], effects: list[Effect]) -> None:
        """Undo one `pin` of each. The last one cancels the loads that have not begun."""
        pages: list[int] = []
        for block in blocks:
            block.num_pins -= 1
            assert block.num_pins >= 0, "unpinned more often than pinned"
            if not block.num_pins:
                self.num_pinned -= 1
                if block.queued:
                    pages += block.strip(self._unqueue(block))
                self._settle(block, pages)
        if pages:
            self.give(pages, effects)

    def on_copy_gone(self, block: ArenaBlock) -> None:
        """There is none below any more."""
        if block in self.idle:
            self.idle.discard(block)
            self.idle.add(block)

    def begin_writing(self, block: ArenaBlock) -> None:
        """The writer reads its pages."""
        block.is_writing = True
        self.idle.discard(block)

    def use(self, block: ArenaBlock, now_ns: int, effects: list[Effect]) -> None:
        """It was used just now: others go before it."""
        block.used_at_ns = now_ns
        self.settle([block], effects)

    def set_kind(self, block: ArenaBlock, return_kind: int) -> None:
        """It was used in a sequence of this kind."""
        if block.return_kind != return_kind:
            block.return_kind = return_kind
            if block in self.idle:
                self.idle.add(block)

    def drop_page(self, block: ArenaBlock, layer: int, effects: list[Effect]) -> None:
        """The bytes of this layer did not come: workers that wait see it by the page's word."""
        self.give(block.strip([layer]), effects)

    def abandon(self, block: ArenaBlock, effects: list[Effect]) -> None:
        """Cancel its loads that have not begun: workers that wait see it by the pages' words."""
        self.give(block.strip(self._unqueue(block)), effects)
        self.settle([block], effects)

    def own(self, block: ArenaBlock, owner: OwnerKey) -> None:
        """It turns out which session made it."""
        if block.is_alive and block.owner != owner:
            self._owned.remove(block.owner, block.key)
            self._owned.add(owner, block.key)
            block.owner = owner

    def forget(self, block: ArenaBlock, effects: list[Effect]) -> None:
        """The block cannot be found any more; its pages go as soon as they are not held."""
        if block.is_alive:
            self._unlist(block)
        lost = self._unqueue(block)
        self._publish([block.pages[layer] for layer in lost], PageState.BAD, effects)
        self.settle([block], effects)

    def settle(self, blocks: Iterable[ArenaBlock], effects: list[Effect]) -> None:
        """To be called after every change that may have made some of these idle."""
        pages: list[int] = []
        for block in blocks:
            self._settle(block, pages)
        if pages:
            self.give(pages, effects)

    def publish_ready(self, blocks: list[ArenaBlock], effects: list[Effect]) -> None:
        """Every page of these blocks holds its bytes."""
        pages = [page for block in blocks for page in block.pages]
        self._publish(pages, PageState.READY, effects)

    def publish_bad(self, block: ArenaBlock, effects: list[Effect]) -> None:
        """No page of `block` can be trusted."""
        self._publish(block.present, PageState.BAD, effects)

    def _unqueue(self, block: ArenaBlock) -> list[int]:
        """The layers whose loads have not begun, and will not."""
        layers = sorted(block.queued)
        block.queued.clear()
        for layer in layers:
            block.source.backlog.add(block.kind, layer, -self.page_bytes)
        return layers

    def _settle(self, block: ArenaBlock, pages: list[int]) -> None:
        """Adds to `pages` those that it frees."""
        if not block.is_idle:
            return
        if not block.is_alive:
            self.idle.discard(block)
            pages += block.strip_all()
        if block.num_present:
            self.idle.add(block)
            return
        self.holding.pop(block.block_id, None)
        if block.is_alive:
            self._unlist(block)

    def _want(self, num_pages: int, effects: list[Effect]) -> None:
        """So many more are to be used: ask for memory before it is needed."""
        num_used = self.num_pages - len(self._free) + num_pages
        num_ahead = num_pages_ahead(num_used, self.page_bytes)
        if num_used + num_ahead // 2 > self._num_wanted:
            self._num_wanted = num_used + num_ahead
            effects.append(GrowArena(self.page_bytes, self._num_wanted))

    def _evict(
        self,
        num_pages: int,
        is_stored: Callable[[BlockKey], bool],
        now_ns: int,
        effects: list[Effect],
    ) -> None:
        pages, emptied = self.idle.take(num_pages, is_stored, now_ns)
        for block in emptied:
            self._unlist(block)
            del self.holding[block.block_id]
        self.num_evicted += len(pages)
        self.give(pages, effects)

    def _unlist(self, block: ArenaBlock) -> None:
        del self.blocks[block.key]
        self._owned.remove(block.owner, block.key)
        block.is_alive = False
        self.on_gone(block.key)

    def _publish(self, pages: list[int], state: PageState, effects: list[Effect]) -> None:
        if pages:
            words = self.generations(pages)
            effects.append(SetWords(self.page_bytes, list(pages), words, state))
