"""GPU pages and the blocks cached in them: who may take which page, and in what order.

A page is one block's KV in one layer; any page holds any layer of any session. A block that nobody
runs on keeps its pages until somebody needs them: the least recently used session gives first, and
within it the highest layer first, since a returning turn needs the low layers soonest and streams
the high ones in behind them (SYMPHONY, section 3.4). Pages of a block that has no copy below yet
are dirty and are never taken.

Blocks move as wholes: the pages of one stand in a row of one table, so that giving it all its
pages, or taking them back, is one operation however many layers there are.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import compress
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from shared.blocks import BlockKey
from shared.owners import NOBODY, OwnedKeys, OwnerKey

NO_PAGE = -1
NO_ROW = -1
NO_KEY = BlockKey(b"")
ROWS_MIN = 64
CANDIDATES_MAX = 4  # times the cached blocks, before those that left their groups are swept out
GroupId: TypeAlias = int
Pages: TypeAlias = npt.NDArray[np.int32]


@dataclass(slots=True, eq=False)
class Block:
    """A block of tokens whose KV some page holds, or is to hold.

    Attributes:
        row: of `PagePool.table`, with its page in each layer.
        num_present: layers that have a page.
        key: `NO_KEY` as long as it is of one turn alone; others can find it under a key.
        refs: turns that run on it.
        backed: a copy exists below (or was given up on): pages may be taken when `refs` is 0.
        times_given_up: how often its copy below was given up, without one since, on the connection
            to a kvstore that is `given_up_epoch`.
        loading: how many pages have bytes on their way from the arena.
        is_late: a pass waited for some of those long enough: nobody waits in a pass for the rest.
        lost: a load failed; the block serves no new turn.
        owner: the session for which it was computed or brought up.
        is_forgotten: its session was deleted; nobody finds it, and it goes when its last user does.
    """

    row: int
    num_present: int
    key: BlockKey = NO_KEY
    refs: int = 0
    backed: bool = False
    times_given_up: int = 0
    given_up_epoch: int = 0
    loading: int = 0
    is_late: bool = False
    lost: bool = False
    group: GroupId = 0
    owner: OwnerKey = NOBODY
    is_forgotten: bool = False

    @property
    def is_safe(self) -> bool:
        """Whether a copy exists below, so that nothing is lost with its pages."""
        return self.backed and not self.times_given_up


@dataclass(slots=True)
class _Group:
    """Idle blocks last used together, in sequence order. Until `expected_until_ns`, prefetches for
    other sessions spare them.

    Attributes:
        layer, num_left: the next page to give is that of the block before `num_left`, in `layer`.
    """

    blocks: list[Block]
    layer: int
    num_left: int
    expected_until_ns: int = 0


@dataclass(slots=True)
class PagePool:
    """All pages of one model on one worker.

    Every page is in exactly one place: free, or in a block's row of the table.

    Attributes:
        table: int32 [rows, num_layers], `NO_PAGE` where a block has none; replaced as it grows.
        blocks: what can be found.
        forgotten: blocks that cannot be found any more and are in use still, by identity.
        num_takeable: pages of idle blocks.
        num_unsafe: those of them that have no copy below, because it was given up.
    """

    num_pages: int
    num_layers: int
    blocks: dict[BlockKey, Block] = field(default_factory=dict)
    forgotten: dict[int, Block] = field(default_factory=dict)
    num_takeable: int = 0
    num_unsafe: int = 0
    num_evicted: int = 0
    num_free: int = field(init=False)
    table: Pages = field(init=False)
    _free: Pages = field(init=False)  # the first `num_free` of them
    _free_rows: list[int] = field(init=False)
    _owned: OwnedKeys = field(default_factory=OwnedKeys)
    _groups: "OrderedDict[GroupId, _Group]" = field(default_factory=OrderedDict)
    _next_group: GroupId = 1
    _num_candidates: int = 0  # in all groups, those that left them since included

    def __post_init__(self) -> None:
        assert self.num_pages >= self.num_layers, "the pool holds not even one block"
        self.num_free = self.num_pages
        self._free = np.arange(self.num_pages - 1, -1, -1, dtype=np.int32)
        self.table = np.full((ROWS_MIN, self.num_layers), NO_PAGE, np.int32)
        self._free_rows = list(range(ROWS_MIN - 1, -1, -1))

    @property
    def num_available(self) -> int:
        """Pages a running turn could take now."""
        return self.num_free + self.num_takeable

    def pages_of(self, block: Block) -> list[int]:
        """The block's page in each layer."""
        pages: list[int] = self.table[block.row].tolist()
        return pages

    def is_whole(self, block: Block) -> bool:
        """Whether every layer has its page; bytes may still be on their way there."""
        return block.num_present == self.num_layers

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
            self._free_block(block)

    def publish(self, block: Block, key: BlockKey, owner: OwnerKey) -> None:
        """A running turn's own block can be found from now on; the turn runs on it."""
        block.key = key
        block.owner = owner
        block.refs = 1
        self._add(block)

    def enter(self, key: BlockKey, owner: OwnerKey) -> Block:
        """A block without pages yet, of which there is a copy below."""
        block = Block(self._take_row(), 0, key, backed=True, owner=owner)
        self._add(block)
        return block

    def fill(self, block: Block) -> list[int]:
        """Give an acquired block a page in each layer that lacks one; returns those layers. The
        caller has seen that there are so many pages."""
        assert block.group == 0, "an idle block gets pages only after it left its group"
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

    def take_idle(self, now_ns: int, count: int) -> list[int]:
        """Up to `count` pages that nobody needs: free ones, then clean ones of sessions that are
        not expected."""
        pages: list[int] = self._take(min(count, self.num_free))[::-1].tolist()
        if len(pages) < count and (num_evicted := self._evict(count - len(pages), now_ns)):
            pages += self._take(num_evicted).tolist()
        return pages

    def is_spared(self, block: Block, now_ns: int) -> bool:
        """Whether `take_idle` takes no page of `block`."""
        return not block.group or now_ns < self._groups[block.group].expected_until_ns

    def add_pages(self, blocks: list[Block], layer: int, pages: list[int]) -> None:
        """A page of `layer` for each of these blocks, which lacked it; none is idle from now on."""
        rows = [block.row for block in blocks]
        assert (self.table[rows, layer] == NO_PAGE).all(), "the layer has its page"
        self.table[rows, layer] = pages
        for block in blocks:
            self.withdraw(block)
            block.num_present += 1

    def remove_page(self, block: Block, page: int) -> None:
        """No bytes come into this page of a block that is not idle: it is free."""
        assert not block.group, "somebody may have taken it"
        layer = int(np.flatnonzero(self.table[block.row] == page)[0])
        self.table[block.row, layer] = NO_PAGE
        block.num_present -= 1
        self._free_pages(np.array([page], np.int32))

    def owned(self, owner: OwnerKey) -> list[BlockKey]:
        """Blocks to be found here that were made or brought up for this session."""
        return self._owned.of(owner)

    def forget(self, block: Block) -> None:
        """Nobody finds `block` any more. Its pages are free at once, or when nobody runs on it and
        no bytes are on their way into it.
        """
        self._unlist(block)
        block.is_forgotten = True
        self.forgotten[id(block)] = block
        if not block.refs and not block.loading:
            self.drop(block)

    def acquire(self, block: Block) -> None:
        """A turn starts to run on `block`."""
        self.withdraw(block)
        block.refs += 1

    def release(self, blocks: list[Block]) -> None:
        """A turn leaves `blocks` (in sequence order); those nobody else runs on become the most
        recently used group."""
        idle = []
        for block in blocks:
            assert block.refs > 0, "released more often than acquired"
            block.refs -= 1
            if block.refs == 0:
                idle.append(block)
        self.rest(idle)

    def set_backed(self, blocks: list[Block]) -> None:
        """Copies of `blocks` exist below, or are given up on: their pages may be taken when
        idle."""
        fresh = [block for block in blocks if not block.backed]
        for block in fresh:
            block.backed = True
        self.rest(fresh)

    def set_unbacked(self, block: Block) -> None:
        """A block whose copy below was given up is to have one after all."""
        assert block.backed, "it has no copy yet"
        self.withdraw(block)
        block.backed = False

    def rest(self, blocks: list[Block], expected_until_ns: int = 0) -> None:
        """Make idle blocks takeable, as one group, the most recently used."""
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
            block.group = self._next_group
            idle.append(block)
        if idle:
            self._groups[self._next_group] = _Group(
                idle, self.num_layers - 1, len(idle), expected_until_ns
            )
            self._next_group += 1
            self._num_candidates += len(idle)
            if self._num_candidates > CANDIDATES_MAX * max(len(self.blocks), ROWS_MIN):
                self._sweep()

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
        assert block.refs == 0, "somebody runs on it"
        assert block.loading == 0, "bytes are on their way into it"
        self.withdraw(block)
        if self.blocks.get(block.key) is block:
            self._unlist(block)
        self.forgotten.pop(id(block), None)
        self._free_block(block)

    def _add(self, block: Block) -> None:
        assert block.key not in self.blocks, "two blocks under one key"
        self.blocks[block.key] = block
        self._owned.add(block.owner, block.key)

    def _unlist(self, block: Block) -> None:
        del self.blocks[block.key]
        self._owned.remove(block.owner, block.key)

    def unused(self) -> tuple[Pages, list[int]]:
        """Free pages, and free rows of the table."""
        return self._free[: self.num_free], self._free_rows

    # Pages and rows.

    def _take(self, count: int) -> Pages:
        if self.num_free < count:
            self._evict(count - self.num_free, None)
            assert self.num_free >= count, "counted as available"
        self.num_free -= count
        return self._free[self.num_free : self.num_free + count]

    def _free_pages(self, pages: Pages) -> None:
        self._free[self.num_free : self.num_free + len(pages)] = pages
        self.num_free += len(pages)

    def _block_of(self, pages: Pages) -> Block:
        block = Block(self._take_row(), self.num_layers)
        self.table[block.row] = pages
        return block

    def _take_row(self) -> int:
        if not self._free_rows:
            num_rows = len(self.table)
            self.table = np.concatenate([self.table, np.full_like(self.table, NO_PAGE)])
            self._free_rows = list(range(2 * num_rows - 1, num_rows - 1, -1))
        return self._free_rows.pop()

    def _free_block(self, block: Block) -> None:
        assert block.row != NO_ROW, "the block has ended already"
        row = self.table[block.row]
        self._free_pages(row if block.num_present == self.num_layers else row[row != NO_PAGE])
        row[:] = NO_PAGE
        block.num_present = 0
        self._free_rows.append(block.row)
        block.row = NO_ROW

    # Eviction.

    def _evict(self, count: int, spare_at_ns: int | None) -> int:
        """Free up to `count` pages in order of worth, sparing what is expected at `spare_at_ns`;
        returns how many."""
        spent = []
        left = count
        for number, group in self._groups.items():
            if spare_at_ns is not None and spare_at_ns < group.expected_until_ns:
                continue
            left -= self._take_from(number, group, left)
            if not left:
                break
            spent.append(number)
        for number in spent:
            self._num_candidates -= len(self._groups.pop(number).blocks)
        return count - left

    def _take_from(self, number: GroupId, group: _Group, count: int) -> int:
        left = count
        while group.layer >= 0:
            while group.num_left:
                end = group.num_left
                group.num_left = max(end - left, 0)  # each gives at most one page of a layer
                some = reversed(group.blocks[group.num_left : end])
                left -= self._evict_layer([each for each in some if each.group == number], group)
                if not left:
                    return count
            group.layer -= 1
            group.num_left = len(group.blocks)
        return count - left

    def _evict_layer(self, blocks: list[Block], group: _Group) -> int:
        """Free the pages that `blocks` of a group have in its layer; returns how many."""
        pages = self.table[[block.row for block in blocks], group.layer]
        has_page = pages != NO_PAGE
        givers = list(compress(blocks, has_page.tolist()))
        self._free_pages(pages[has_page])
        self.table[[block.row for block in givers], group.layer] = NO_PAGE
        for block in givers:
            block.num_present -= 1
            if block.times_given_up:
                self.num_unsafe -= 1
            if block.num_present == 0:
                block.group = 0
                self._unlist(block)
                self._free_block(block)
        self.num_takeable -= len(givers)
        self.num_evicted += len(givers)
        return len(givers)

    def _sweep(self) -> None:
        """Forget the candidates that left their groups."""
        for number, group in list(self._groups.items()):
            seen = group.blocks[group.num_left :]
            ahead = [block for block in group.blocks[: group.num_left] if block.group == number]
            group.num_left = len(ahead)
            group.blocks = ahead + [block for block in seen if block.group == number]
            if not group.blocks:
                del self._groups[number]
        self._num_candidates = sum(len(group.blocks) for group in self._groups.values())
