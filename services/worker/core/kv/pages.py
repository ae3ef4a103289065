"""GPU pages and the blocks cached in them: who may take which page.

A page is one block's KV in one layer; any page holds any layer of any session. A block that no
turn runs on keeps its pages until they are needed, in the order of `shared.eviction`, of which
`idle_groups` keeps account. Pages of a block that has no copy below yet are dirty and are never
taken.
"""

from dataclasses import dataclass, field
from itertools import compress, groupby

import numpy as np

from services.worker.core.effects import NO_KEY
from services.worker.core.kv.idle_groups import ALL_LAYERS, IdleGroups
from services.worker.core.kv.page_table import NO_PAGE, NO_ROW, ROWS_MIN, Block, Pages, PageTable
from shared.blocks import BlockKey
from shared.eviction import GUARDED_SHARE, UNKNOWN_KIND, EvictionName, Guard, ReturnModel
from shared.owners import OwnedKeys, OwnerKey

__all__ = ["NO_KEY", "NO_PAGE", "NO_ROW", "ROWS_MIN", "Block", "PagePool", "Pages"]

CANDIDATES_MAX = 4  # times the cached blocks, before those that left their groups are swept out


@dataclass(slots=True)
class PagePool(PageTable):
    """All pages of one model on one worker.

    Attributes:
        eviction: policy by which idle blocks give their pages.
        blocks: what can be found.
        forgotten: blocks that cannot be found any more and are in use still, by identity.
        num_takeable: pages of idle blocks.
        num_unsafe: those of them that have no copy below: it was abandoned, or is gone.
        returns: learns what returns when.
    """

    eviction: EvictionName = "predicted"
    blocks: dict[BlockKey, Block] = field(default_factory=dict)
    forgotten: dict[int, Block] = field(default_factory=dict)
    num_takeable: int = 0
    num_unsafe: int = 0
    num_evicted: int = 0
    returns: ReturnModel = field(default_factory=ReturnModel)
    _owned: OwnedKeys = field(default_factory=OwnedKeys)
    _idle: IdleGroups = field(init=False)
    _guard: Guard = field(init=False)
    _now_ns: int = 0

    def __post_init__(self) -> None:
        PageTable.__post_init__(self)  # `super()` is of no use in a dataclass with slots
        self._guard = Guard(GUARDED_SHARE * self.num_pages / self.num_layers)
        self._idle = IdleGroups(
            self.eviction, self.num_layers, self.highest_layer, self.returns, self._guard
        )

    def on_time(self, now_ns: int) -> None:
        """What is used from now on was used then; to the second is good enough."""
        self._now_ns = now_ns

    @property
    def num_available(self) -> int:
        """Pages a running turn could take now."""
        return self.num_free + self.num_takeable

    def allocate(self, count: int) -> list[Block]:
        """Up to `count` blocks with all their pages for a running turn, taking clean ones if need
        be; fewer if there are not so many pages."""
        num_layers = self.num_layers
        count = min(count, self.num_available // num_layers)
        blocks: list[Block] = []
        while len(blocks) < count and self.num_free >= num_layers:
            blocks.append(self._block_of(self._take(num_layers)))
        if num_more := count - len(blocks):
            pages = self._take(num_more * num_layers)
            blocks += map(self._block_of, pages.reshape(num_more, num_layers))
        return blocks

    def give_back(self, blocks: list[Block]) -> None:
        """Blocks of one turn alone are not needed any more."""
        for block in blocks:
            assert block.key is NO_KEY, "others may run on it"
            self.free_block(block)

    def publish(self, block: Block, key: BlockKey, owner: OwnerKey) -> None:
        """A running turn's own block can be found from now on; the turn runs on it."""
        block.key = key
        block.owner = owner
        block.refs = 1
        self._add(block)

    def take_back(self, block: Block) -> None:
        """A forgotten block that one turn alone runs on is its own again, as if it had never been
        published."""
        assert block.is_forgotten and block.refs == 1 and not block.loading, "others know of it"
        del self.forgotten[id(block)]
        block.key, block.refs = NO_KEY, 0
        block.backed = block.is_forgotten = False
        block.times_given_up = 0

    def enter(self, key: BlockKey, owner: OwnerKey) -> Block:
        """A block without pages yet, of which there is a copy below."""
        block = Block(self.take_row(), 0, key, backed=True, owner=owner)
        self._add(block)
        return block

    def fill(self, block: Block) -> list[int]:
        """Give an acquired block a page in each layer that lacks one; returns those layers. The
        caller has seen that there are so many pages."""
        assert block.group == 0, "an idle block gets pages only after it left its group"
        block.is_gapped = False
        row = self.table[block.row]
        if not block.num_present:
            row[:] = self._take(self.num_layers)
            block.num_present = self.num_layers
            return list(range(self.num_layers))
        lacking = np.flatnonzero(row == NO_PAGE)
        row[lacking] = self._take(len(lacking))
        block.num_present = self.num_layers
        layers: list[int] = lacking.tolist()
        return layers

    def take_idle(self, now_ns: int, count: int, layer: int) -> list[int]:
        """Up to `count` pages of which to make some of `layer` for an announced turn: free ones,
        then clean ones of sessions that are not expected, then, by the policy `layer`, those that
        expected ones have of layers above."""
        pages: list[int] = self._take(min(count, self.num_free))[::-1].tolist()
        if num_more := count - len(pages):
            self._evict(num_more, now_ns, layer)
            pages += self._take(min(num_more, self.num_free)).tolist()
        return pages

    def num_spared(self, blocks: list[Block | None], now_ns: int) -> int:
        """How many of the first of these, None for what is not here, are such that `take_idle`
        takes none of their pages, or only some above the layer that it is for, which they have."""
        spared = {0}
        for at, block in enumerate(blocks):
            if block is not None and (group := block.group):
                if group not in spared and not self._idle.is_expected(group, now_ns):
                    return at
                if block.is_gapped:
                    return at
                spared.add(group)
        return len(blocks)

    def add_pages(self, blocks: list[Block], layer: int, pages: list[int]) -> None:
        """A page of `layer` for each of these blocks, which lacked it; none is idle from now on."""
        rows = [block.row for block in blocks]
        assert (self.table[rows, layer] == NO_PAGE).all(), "the layer has its page"
        self.table[rows, layer] = pages
        for block in blocks:
            self.withdraw(block)
            block.is_gapped |= block.num_present < layer
            block.num_present += 1

    def remove_page(self, block: Block, page: int) -> None:
        """No bytes come into this page of a block that is not idle: it is free."""
        assert not block.group, "its pages may have been taken"
        layer = int(np.flatnonzero(self.table[block.row] == page)[0])
        self.table[block.row, layer] = NO_PAGE
        block.num_present -= 1
        block.is_gapped = True
        self.free_pages(np.array([page], np.int32))

    def owned(self, owner: OwnerKey) -> list[BlockKey]:
        """Blocks to be found here that were computed or prefetched for this session."""
        return self._owned.of(owner)

    def forget(self, block: Block) -> None:
        """`block` cannot be found any more. Its pages are free at once, or when it is not in use
        and no bytes are loading into it.
        """
        self._unlist(block)
        block.is_forgotten = True
        self.forgotten[id(block)] = block
        if not block.refs and not block.loading:
            self.drop(block)

    def arrive(self, keys: list[BlockKey], num_here: int) -> None:
        """A user of this sequence is here; the first `num_here` of its blocks are, too."""
        if self.eviction == "predicted":
            self.returns.arrive(keys, self._now_ns, found_in=((self._guard, num_here),))

    def leave(self, blocks: list[Block]) -> None:
        """A user ran on `blocks`, a sequence from its beginning, until now; `release` is next."""
        if self.eviction != "predicted":
            return
        keys = [block.key for block in blocks]
        kinds = self.returns.grow(keys, self._now_ns, guards=(self._guard,))
        for depth, block in enumerate(blocks):
            block.return_kind = kinds.of(depth)

    def acquire(self, block: Block) -> None:
        """A turn starts to run on `block`."""
        self.withdraw(block)
        block.refs += 1

    def release(self, blocks: list[Block]) -> None:
        """A turn leaves `blocks` (in sequence order); those without another user become the most
        recently used group."""
        idle = []
        for block in blocks:
            assert block.refs > 0, "released more often than acquired"
            block.refs -= 1
            if block.refs == 0:
                idle.append(block)
        self.rest(idle)

    def set_backed(self, blocks: list[Block]) -> None:
        """Copies of `blocks` exist below, or were abandoned: their pages may be taken when
        idle."""
        fresh = [block for block in blocks if not block.backed]
        for block in fresh:
            block.backed = True
        self.rest(fresh)

    def on_copies_gone(self, keys: list[BlockKey]) -> None:
        """There are no copies below of these any more: idle ones go whole, and what is only in part
        here is of no use."""
        by_group: dict[int, list[Block]] = {}
        for key in keys:
            block = self.blocks.get(key)
            if block is None or not block.is_safe:
                continue
            if block.group and not self.is_whole(block):
                self.drop(block)
                continue
            if block.group:
                by_group.setdefault(block.group, []).append(block)
                self.num_unsafe += block.num_present
            block.times_given_up = 1
        if self.eviction == "predicted":
            for blocks in by_group.values():
                self._idle.make_whole(blocks)

    def set_unbacked(self, block: Block) -> None:
        """A block whose copy below was abandoned is to have one after all."""
        assert block.backed, "it has no copy yet"
        self.withdraw(block)
        block.backed = False

    def rest(self, blocks: list[Block], expected_until_ns: int = 0) -> None:
        """Make idle blocks takeable, those that are alike as a group, the most recently used."""
        idle: list[Block] = []
        for block in blocks:
            if block.refs or block.loading:
                continue  # comes again when its last turn or its load ends
            if block.is_forgotten or not block.num_present or (block.lost and block.backed):
                self.drop(block)
                continue
            if not block.backed:
                continue  # comes again when its write ends
            if block.group == 0:
                self._count_idle(block, block.num_present)
            idle.append(block)
        alike = [(each[1], list(blocks)) for each, blocks in groupby(idle, self._kind_of)]
        for goes_whole, group in reversed(alike):  # of equal ones the first goes first: an end
            self._idle.add(group, self._now_ns, expected_until_ns, goes_whole=goes_whole)
        if self._idle.num_candidates > CANDIDATES_MAX * max(len(self.blocks), ROWS_MIN):
            self._idle.sweep()

    def _kind_of(self, block: Block) -> tuple[int, bool]:
        """How it returns, and whether it has no copy below: a part of it would be of no use."""
        if self.eviction != "predicted":
            return UNKNOWN_KIND, False
        return block.return_kind, block.times_given_up > 0

    def withdraw(self, block: Block) -> None:
        """Take an idle block out of eviction's sight."""
        if block.group:
            self._count_idle(block, -block.num_present)
            block.group = 0

    def _count_idle(self, block: Block, num_pages: int) -> None:
        self.num_takeable += num_pages
        if block.times_given_up:  # since idle blocks are backed, those are the unsafe ones
            self.num_unsafe += num_pages

    def drop(self, block: Block) -> None:
        """Forget an idle block and free its pages."""
        assert block.refs == 0, "it is in use"
        assert block.loading == 0, "it is loading"
        self.withdraw(block)
        if self.blocks.get(block.key) is block:
            self._unlist(block)
        self.forgotten.pop(id(block), None)
        self.free_block(block)

    def _add(self, block: Block) -> None:
        assert block.key not in self.blocks, "two blocks under one key"
        self.blocks[block.key] = block
        self._owned.add(block.owner, block.key)

    def _unlist(self, block: Block) -> None:
        del self.blocks[block.key]
        self._owned.remove(block.owner, block.key)

    def _block_of(self, pages: Pages) -> Block:
        block = Block(self.take_row(), self.num_layers)
        self.table[block.row] = pages
        return block

    # Eviction.

    def _take(self, count: int) -> Pages:
        if self.num_free < count:
            self._evict(count - self.num_free, self._now_ns)
        return self.take_free(count)

    def _evict(self, count: int, now_ns: int, prefetch_layer: int | None = None) -> None:
        """Free `count` pages or some more, or all that there are, in order of worth; for a prefetch
        as `take_idle` says."""
        while count > 0 and (run := self._idle.next_run(count, now_ns, prefetch_layer)):
            blocks, layer = run
            if layer == ALL_LAYERS:
                num_pages = sum(block.num_present for block in blocks)
                for block in blocks:
                    self.drop(block)
            else:
                num_pages = self._evict_layer(blocks, layer)
                self.num_takeable -= num_pages
            self.num_evicted += num_pages
            count -= num_pages

    def _evict_layer(self, blocks: list[Block], layer: int) -> int:
        """Free the pages that `blocks` have in `layer`; returns how many."""
        pages = self.table[[block.row for block in blocks], layer]
        has_page = pages != NO_PAGE
        givers = list(compress(blocks, has_page.tolist()))
        self.free_pages(pages[has_page])
        self.table[[block.row for block in givers], layer] = NO_PAGE
        for block in givers:
            block.num_present -= 1
            if block.times_given_up:
                self.num_unsafe -= 1
            if block.num_present == 0:
                block.group = 0
                self._unlist(block)
                self.free_block(block)
        return len(givers)
