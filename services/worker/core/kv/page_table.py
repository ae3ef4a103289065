"""Pages of a pool: which are free, and whose the others are."""

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from services.worker.core.effects import NO_KEY
from shared.blocks import BlockKey
from shared.eviction import UNKNOWN_KIND
from shared.owners import NO_OWNER, OwnerKey

NO_PAGE = -1
NO_ROW = -1
ROWS_MIN = 64
Pages: TypeAlias = npt.NDArray[np.int32]


@dataclass(slots=True, eq=False)
class Block:
    """A block of tokens whose KV some page holds, or is to hold.

    Attributes:
        row: of `PageTable.table`, with its page in each layer.
        num_present: layers that have a page.
        key: `NO_KEY` as long as it is of one turn alone; others can find it under a key.
        refs: turns that run on it.
        backed: a copy exists below (or is not made): pages may be taken when `refs` is 0.
        times_given_up: how often copying it below failed, on the connection to a kvstore that is
            `given_up_epoch`; 1 too if it was abandoned untried, for lack of room, or its copy is
            gone; 0: it has a copy, or waits for its first.
        loading: how many pages are loading from the arena.
        is_late: a pass waited for some of those long enough: no pass waits for the rest.
        lost: a load failed; the block serves no new turn.
        group: of idle blocks, see `idle_groups`; 0: it is not idle.
        owner: the session for which it was computed or prefetched.
        expiry_s: how long it outlives its last use below; 0: as every tier has it.
        is_forgotten: its session was deleted; it cannot be found, and is freed with its last user.
        is_gapped: a layer that has a page may stand above one that has none.
        return_kind: of the sequence that it was last used in, as `shared.eviction` has it.
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
    group: int = 0
    owner: OwnerKey = NO_OWNER
    expiry_s: int = 0
    is_forgotten: bool = False
    is_gapped: bool = False
    return_kind: int = UNKNOWN_KIND

    @property
    def is_safe(self) -> bool:
        """Whether a copy exists below, so that nothing is lost with its pages."""
        return self.backed and not self.times_given_up


@dataclass(slots=True)
class PageTable:
    """Every page is in exactly one place: free, or in a block's row of the table. Blocks move as
    wholes: giving one all its pages, or taking them back, is one operation however many layers
    there are.

    Attributes:
        table: int32 [rows, num_layers], `NO_PAGE` where a block has none; replaced as it grows.
    """

    num_pages: int
    num_layers: int
    num_free: int = field(init=False)
    table: Pages = field(init=False)
    _free: Pages = field(init=False)  # the first `num_free` of them
    _free_rows: list[int] = field(init=False)

    def __post_init__(self) -> None:
        assert self.num_pages >= self.num_layers, "the pool holds not even one block"
        self.num_free = self.num_pages
        self._free = np.arange(self.num_pages - 1, -1, -1, dtype=np.int32)
        self.table = np.full((ROWS_MIN, self.num_layers), NO_PAGE, np.int32)
        self._free_rows = list(range(ROWS_MIN - 1, -1, -1))

    def pages_of(self, block: Block) -> list[int]:
        """The block's page in each layer."""
        pages: list[int] = self.table[block.row].tolist()
        return pages

    def is_whole(self, block: Block) -> bool:
        """Whether every layer has its page; some may still be loading."""
        return block.num_present == self.num_layers

    def highest_layer(self, blocks: list[Block]) -> int:
        """The highest of which any of these has a page; one of them has some."""
        if any(block.num_present == self.num_layers for block in blocks):
            return self.num_layers - 1
        pages = self.table[[block.row for block in blocks]].max(axis=0)
        return int(np.flatnonzero(pages != NO_PAGE)[-1])

    def unused(self) -> tuple[Pages, list[int]]:
        """Free pages, and free rows of the table."""
        return self._free[: self.num_free], self._free_rows

    def take_free(self, count: int) -> Pages:
        """So many pages; there are as many free ones."""
        assert self.num_free >= count, "counted as available"
        self.num_free -= count
        return self._free[self.num_free : self.num_free + count]

    def free_pages(self, pages: Pages) -> None:
        """These are free again."""
        self._free[self.num_free : self.num_free + len(pages)] = pages
        self.num_free += len(pages)

    def take_row(self) -> int:
        """A row without pages."""
        if not self._free_rows:
            num_rows = len(self.table)
            self.table = np.concatenate([self.table, np.full_like(self.table, NO_PAGE)])
            self._free_rows = list(range(2 * num_rows - 1, num_rows - 1, -1))
        return self._free_rows.pop()

    def free_block(self, block: Block) -> None:
        """Free the block's row and its pages."""
        assert block.row != NO_ROW, "the block has ended already"
        row = self.table[block.row]
        self.free_pages(row if block.num_present == self.num_layers else row[row != NO_PAGE])
        row[:] = NO_PAGE
        block.num_present = 0
        self._free_rows.append(block.row)
        block.row = NO_ROW
