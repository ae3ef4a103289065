"""GPU pages and the blocks cached in them: who may take which page, and in what order.

A page is one block's KV in one layer; any page holds any layer of any session. A block that nobody
runs on keeps its pages until somebody needs them: the least recently used session gives first, and
within it the highest layer first, since a returning turn needs the low layers soonest and streams
the high ones in behind them (SYMPHONY, section 3.4). Pages of a block that has no copy below yet
are dirty and are never taken.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TypeAlias

from shared.blocks import BlockKey
from shared.owners import NOBODY, OwnedKeys, OwnerKey

NO_PAGE = -1
CANDIDATES_MAX = 4  # times the pool's pages, before those that left their groups are swept out
GroupId: TypeAlias = int


@dataclass(slots=True, eq=False)
class CachedBlock:
    """A full block that some page holds, whole or in part.

    Attributes:
        pages: pool page of each layer, `NO_PAGE` where it was taken.
        refs: turns that run on it.
        backed: a copy exists below (or was given up on): pages may be taken when `refs` is 0.
        loading: how many pages have bytes on their way from the arena.
        lost: a load failed; the block serves no new turn.
        owner: the session for which it was computed or brought up.
        is_forgotten: its session was deleted; nobody finds it, and it goes when its last user does.
    """

    key: BlockKey
    pages: list[int]
    refs: int = 0
    backed: bool = False
    loading: int = 0
    lost: bool = False
    group: GroupId = 0
    owner: OwnerKey = NOBODY
    is_forgotten: bool = False

    @property
    def num_present(self) -> int:
        return sum(page != NO_PAGE for page in self.pages)


@dataclass(slots=True)
class _Group:
    """Idle blocks last used together; a stack of candidates for each layer. Until
    `expected_until_ns`, prefetches for other sessions spare it."""

    layers: list[list[CachedBlock]]
    expected_until_ns: int = 0


@dataclass(slots=True)
class PagePool:
    """All pages of one model on one worker.

    Every page is in exactly one place: free, in a cached block, or held privately by a turn.

    Attributes:
        blocks: what can be found.
        forgotten: blocks that cannot be found any more and are in use still, by identity.
    """

    num_pages: int
    num_layers: int
    blocks: dict[BlockKey, CachedBlock] = field(default_factory=dict)
    forgotten: dict[int, CachedBlock] = field(default_factory=dict)
    num_clean: int = 0
    num_evicted: int = 0
    _free: list[int] = field(init=False)
    _owned: OwnedKeys = field(default_factory=OwnedKeys)
    _groups: "OrderedDict[GroupId, _Group]" = field(default_factory=OrderedDict)
    _next_group: GroupId = 1
    _num_candidates: int = 0  # in all groups, those that left them since included

    def __post_init__(self) -> None:
        assert self.num_pages >= self.num_layers, "the pool holds not even one block"
        self._free = list(range(self.num_pages - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_available(self) -> int:
        """Pages a running turn could take now."""
        return len(self._free) + self.num_clean

    def allocate(self, count: int) -> list[int] | None:
        """`count` pages for a running turn, taking clean ones if need be; None if there are not
        so many."""
        if count > self.num_available:
            return None
        while len(self._free) < count:
            self._evict_one(None)
        return [self._free.pop() for _ in range(count)]

    def allocate_for_prefetch(self, now_ns: int) -> int | None:
        """One page that nobody needs: free, or clean and of a session that is not expected."""
        if not self._free and not self._evict_one(now_ns):
            return None
        return self._free.pop()

    def give_back(self, pages: list[int]) -> None:
        """Private pages return to the free list."""
        self._free.extend(pages)

    def add(self, block: CachedBlock) -> None:
        """Enter a block under its key; the pages it holds belong to the cache from now on."""
        assert block.key not in self.blocks, "two blocks under one key"
        self.blocks[block.key] = block
        self._owned.add(block.owner, block.key)

    def owned(self, owner: OwnerKey) -> list[BlockKey]:
        """Blocks to be found here that were made or brought up for this session."""
        return self._owned.of(owner)

    def forget(self, block: CachedBlock) -> None:
        """Nobody finds `block` any more. Its pages are free at once, or when nobody runs on it and
        no bytes are on their way into it.
        """
        self._unlist(block)
        block.is_forgotten = True
        self.forgotten[id(block)] = block
        if not block.refs and not block.loading:
            self.drop(block)

    def acquire(self, block: CachedBlock) -> None:
        """A turn starts to run on `block`."""
        if block.refs == 0 and block.group:
            self.num_clean -= block.num_present
            block.group = 0
        block.refs += 1

    def release(self, blocks: list[CachedBlock]) -> None:
        """A turn leaves `blocks` (in sequence order); those nobody else runs on become the most
        recently used group."""
        idle = []
        for block in blocks:
            assert block.refs > 0, "released more often than acquired"
            block.refs -= 1
            if block.refs == 0:
                idle.append(block)
        self.rest(idle)

    def set_backed(self, blocks: list[CachedBlock]) -> None:
        """Copies of `blocks` exist below, or are given up on: their pages may be taken when
        idle."""
        fresh = [block for block in blocks if not block.backed]
        for block in fresh:
            block.backed = True
        self.rest(fresh)

    def rest(self, blocks: list[CachedBlock], expected_until_ns: int = 0) -> None:
        """Make idle blocks takeable, as one group, the most recently used."""
        group = _Group([[] for _ in range(self.num_layers)], expected_until_ns)
        for block in blocks:
            if block.refs or block.loading:
                continue  # comes again when its last turn or its load ends
            if block.is_forgotten or (block.lost and block.backed):
                self.drop(block)
                continue
            if not block.backed:
                continue  # comes again when its write ends
            if block.group == 0:
                self.num_clean += block.num_present
            block.group = self._next_group
            for layer, page in enumerate(block.pages):
                if page != NO_PAGE:
                    group.layers[layer].append(block)
        if any(group.layers):
            self._groups[self._next_group] = group
            self._next_group += 1
            self._num_candidates += sum(map(len, group.layers))
            if self._num_candidates > CANDIDATES_MAX * self.num_pages:
                self._sweep()

    def add_page(self, block: CachedBlock, layer: int, page: int) -> None:
        """A page for a layer that `block` lacked."""
        assert block.pages[layer] == NO_PAGE, "the layer has its page"
        assert block.group == 0, "an idle block gets pages only after it left its group"
        block.pages[layer] = page

    def withdraw(self, block: CachedBlock) -> None:
        """Take an idle block out of eviction's sight (bytes are about to be loaded into it)."""
        if block.group:
            self.num_clean -= block.num_present
            block.group = 0

    def drop(self, block: CachedBlock) -> None:
        """Forget an idle block and free its pages."""
        assert block.refs == 0, "somebody runs on it"
        assert block.loading == 0, "bytes are on their way into it"
        self.withdraw(block)
        if self.blocks.get(block.key) is block:
            self._unlist(block)
        self.forgotten.pop(id(block), None)
        self.give_back([page for page in block.pages if page != NO_PAGE])
        block.pages = [NO_PAGE] * self.num_layers

    def _evict_one(self, spare_at_ns: int | None) -> bool:
        """Free the next page in order of worth, sparing what is expected at `spare_at_ns`; False
        if none may be taken."""
        spent = []
        taken = False
        for group_id, group in self._groups.items():
            if spare_at_ns is not None and spare_at_ns < group.expected_until_ns:
                continue
            if taken := self._take_from(group_id, group):
                break
            spent.append(group_id)
        for group_id in spent:
            del self._groups[group_id]
        return taken

    def _take_from(self, group_id: GroupId, group: _Group) -> bool:
        for layer in range(self.num_layers - 1, -1, -1):
            stack = group.layers[layer]
            while stack:
                block = stack.pop()
                self._num_candidates -= 1
                if block.group == group_id and block.pages[layer] != NO_PAGE:
                    self._take(block, layer)
                    return True
        return False

    def _take(self, block: CachedBlock, layer: int) -> None:
        self._free.append(block.pages[layer])
        block.pages[layer] = NO_PAGE
        self.num_clean -= 1
        self.num_evicted += 1
        if block.num_present == 0:
            block.group = 0
            self._unlist(block)

    def _unlist(self, block: CachedBlock) -> None:
        del self.blocks[block.key]
        self._owned.remove(block.owner, block.key)

    def _sweep(self) -> None:
        """Forget the candidates that left their groups."""
        for group_id, group in list(self._groups.items()):
            group.layers = [
                [b for b in stack if b.group == group_id and b.pages[layer] != NO_PAGE]
                for layer, stack in enumerate(group.layers)
            ]
            if not any(group.layers):
                del self._groups[group_id]
        self._num_candidates = sum(
            len(stack) for group in self._groups.values() for stack in group.layers
        )
