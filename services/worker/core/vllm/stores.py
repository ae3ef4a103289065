"""Which blocks of vLLM's cache are copied below, and the arena pages that they go to.

As of our own engine (`core.kv.write_behind`): full blocks are written soon after they were
computed, in order, and never behind one that was not. What differs: vLLM's blocks are held by
reference counts until their copies are over, since vLLM gives blocks away without asking.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from services.worker.core.vllm.messages import LeaseWanted, Write
from shared.blocks import BlockKey
from shared.wire.messages import pack_ints

HELD_SHARE = 4  # one of so many blocks, at most, is held for its copy
STOCK_STEPS = 2  # pages are kept for so many of the largest steps
STOCK_MIN = 8  # blocks
LEASE_PAUSE_NS = 50_000_000  # between two questions for pages
BELOW_PER_BLOCK = 4  # keys that are known to be below, for each block of vLLM's


class BlockPool(Protocol):
    """vLLM's `BlockPool`, by numbers of blocks."""

    num_blocks: int

    def touch(self, blocks: Sequence[int]) -> None:
        """Keep blocks from being evicted until `free` was called for them as often."""
        ...

    def free(self, blocks: Sequence[int]) -> None:
        """Undo `touch`."""
        ...

    def evict(self, blocks: set[int]) -> None:
        """No request finds them any more."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOrder:
    """A block to copy, as it is sent to each rank.

    Attributes:
        epoch: connection to a kvstore that the pages were leased on.
        block: of vLLM's cache.
        arena_pages: of all layers of all ranks.
        num_tokens: that count, from its first on.
    """

    epoch: int
    number: int
    block: int
    arena_pages: list[int]
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBlock:
    """A block that was computed.

    Attributes:
        replaces: key of a block that begins as this one does; empty: of none.
    """

    block: int
    key: BlockKey
    parent: BlockKey
    tokens: Sequence[int]
    owner: str
    replaces: BlockKey
    expiry_s: int


@dataclass(slots=True)
class Stores:
    """Attributes:
    num_pages: of one block: layers times ranks.
    step_blocks: that the largest step computes.
    """

    pool: BlockPool
    num_pages: int = 1
    step_blocks: int = STOCK_MIN
    epoch: int = 0
    is_open: bool = False
    _below: "OrderedDict[BlockKey, None]" = field(default_factory=OrderedDict)
    _stock: list[int] = field(default_factory=list)
    _held: dict[int, tuple[int, BlockKey]] = field(default_factory=dict)  # by number of the write
    _waiting: "OrderedDict[int, NewBlock]" = field(default_factory=OrderedDict)  # for pages
    _num_writes: int = 0
    _is_asking: bool = False
    _ask_at_ns: int = 0

    def open(self, epoch: int, num_pages: int) -> None:
        """A kvstore is there, of which nothing is known."""
        self.close()
        self.epoch, self.num_pages, self.is_open = epoch, num_pages, True
        self._below.clear()

    def close(self) -> None:
        """It is away: nothing is stored."""
        self.is_open = self._is_asking = False
        self._stock.clear()
        self._give_up()

    def on_leased(self, epoch: int, pages: Sequence[int]) -> None:
        """Pages for new blocks; none: there is no room for what waits."""
        if epoch != self.epoch or not self.is_open:
            return
        self._is_asking = False
        self._stock += pages
        if not pages:
            self._give_up()

    def has(self, key: BlockKey) -> bool:
        """Whether a block is below, or will be."""
        if key not in self._below:
            return False
        self._below.move_to_end(key)
        return True

    def set_below(self, key: BlockKey) -> None:
        """A block is below."""
        self._below[key] = None
        self._below.move_to_end(key)
        while len(self._below) > BELOW_PER_BLOCK * self.pool.num_blocks:
            self._below.popitem(last=False)

    def set_gone(self, key: BlockKey) -> None:
        """A block is not below."""
        self._below.pop(key, None)

    def add(self, new: NewBlock) -> bool:
        """Hold a block until its copy is over, which begins when there are pages for it; False:
        too many are held.
        """
        if not self.is_open or len(self._held) * HELD_SHARE >= self.pool.num_blocks:
            return False
        self._num_writes += 1
        self.pool.touch([new.block])
        self._held[self._num_writes] = new.block, new.key
        self._waiting[self._num_writes] = new
        self.set_below(new.key)
        return True

    def take(self) -> tuple[list[StoreOrder], list[Write]]:
        """What is to be copied behind the step that begins now."""
        orders: list[StoreOrder] = []
        writes: list[Write] = []
        while self._waiting and len(self._stock) >= self.num_pages:
            number, new = self._waiting.popitem(last=False)
            at = len(self._stock) - self.num_pages
            pages, self._stock[at:] = self._stock[at:], []
            orders.append(
                StoreOrder(
                    epoch=self.epoch,
                    number=number,
                    block=new.block,
                    arena_pages=pages,
                    num_tokens=len(new.tokens),
                )
            )
            writes.append(_write(number, new, pages))
        return orders, writes

    def refill(self, now_ns: int, send: Callable[[LeaseWanted], None]) -> None:
        """Ask for pages when less than half of the wanted stock is left."""
        wanted = max(STOCK_STEPS * self.step_blocks, STOCK_MIN)
        num_blocks = len(self._stock) // self.num_pages
        if not self.is_open or self._is_asking or num_blocks * 2 > wanted:
            return
        if now_ns < self._ask_at_ns:
            return
        self._is_asking, self._ask_at_ns = True, now_ns + LEASE_PAUSE_NS
        send(LeaseWanted(epoch=self.epoch, num_blocks=wanted - num_blocks))

    def on_ended(self, numbers: Sequence[int], unstored: Sequence[int]) -> None:
        """These writes' blocks are not read any more; some have no copy."""
        lost = set(unstored)
        for number in numbers:
            if (held := self._held.pop(number, None)) is not None:
                block, key = held
                self.pool.free([block])
                if number in lost:
                    self.set_gone(key)

    def _give_up(self) -> None:
        """What waits for pages is not stored."""
        numbers = list(self._waiting)
        self._waiting.clear()
        self.on_ended(numbers, unstored=numbers)

    def end_all(self) -> None:
        """No block is read any more."""
        numbers = list(self._held)
        self.on_ended(numbers, unstored=numbers)


def _write(number: int, new: NewBlock, pages: list[int]) -> Write:
    return Write(
        number=number,
        key=new.key.hex(),
        parent=new.parent.hex(),
        tokens=pack_ints(new.tokens),
        arena_pages=pack_ints(pages),
        owner=new.owner,
        replaces=new.replaces.hex(),
        expiry_s=new.expiry_s,
    )
