"""Write-behind: which blocks still have to go below, in what order, and arena pages to put them in.

Blocks are written in the order in which they were computed, which is about the order in which they
will be evicted. Only so many are with the mover at a time, so that the order can still change:
while few pages can be taken, blocks that no turn uses go first, since only those give their pages
when they have a copy. So a turn that finds the pool full waits for no other stores than those that
are under way and those that make its room.
"""

from collections import deque
from dataclasses import dataclass, field
from math import ceil
from typing import TypeVar

from services.worker.core.effects import (
    BlockWrite,
    CommitBlocks,
    Effect,
    LeasePages,
    ReturnPages,
    StoreBlocks,
)
from services.worker.core.kv.pages import NO_KEY, Block, PagePool
from shared.blocks import BlockKey

STOCK_STEPS = 2  # arena room is kept for the blocks of so many of the largest steps lately
STEP_MEMORY = 0.98  # how much of the largest step is remembered from one to the next
CLEAN_SHARE = 0.125  # of the pool, to be kept such that turns can take it
ORDER_BLOCKS = 16  # that are stored, reported and committed together
STORING_MAX = 64  # blocks that the mover has: at 8 MiB each, 10 ms of a link of 50 GB/s
UNWRITTEN_SHARE_MAX = 0.25  # of the pool; beyond it, the newest blocks stay without a copy below
TRIES_MAX = 2  # to copy a block on a connection, before nothing behind it is copied either
LATE_MAX = 1024  # blocks that were abandoned and are remembered, to be written when there is room
LATE_PAUSE_NS = 1_000_000_000  # before they are looked at again; doubled each time while it idles
LATE_PAUSE_MAX_NS = 64_000_000_000
LEASE_PAUSE_NS = 50_000_000  # between two questions for pages while the kvstore has too few


@dataclass(frozen=True, slots=True)
class Unwritten:
    """A cached block that has no copy below yet.

    Attributes:
        before: the block before it; without a copy of that, one of it is of no use.
        replaces, is_partial: see `BlockWrite`.
    """

    block: Block
    before: Block | None
    parent: BlockKey
    tokens: list[int]
    replaces: BlockKey = NO_KEY
    is_partial: bool = False


@dataclass(slots=True)
class _Storing:
    """A write under way. If it is void, its block was forgotten meanwhile: others may have its
    pages by now, and what was copied must not be found."""

    write: BlockWrite
    unwritten: Unwritten
    is_void: bool = False

    @property
    def block(self) -> Block:
        return self.unwritten.block

    @property
    def before(self) -> Block | None:
        return self.unwritten.before


_Waiting = TypeVar("_Waiting", Unwritten, _Storing)


def _unused_first(waiting: "deque[_Waiting]") -> "deque[_Waiting]":
    """Blocks that no turn uses, and those before them, ahead of the others; else as they stood."""
    first: set[int] = set()
    for each in reversed(waiting):
        if not each.block.refs or id(each.block) in first:
            first |= {id(each.block), id(each.before)}
    return deque(sorted(waiting, key=lambda each: id(each.block) not in first))


@dataclass(slots=True)
class WriteBehind:
    """Attributes:
    lease_target_blocks: arena room to keep at hand, at least.
    is_connected: a kvstore answers; without one, blocks are not waited for.
    is_short: a turn waits for pages, until the next step is planned.
    """

    pool: PagePool
    lease_target_blocks: int
    is_connected: bool = False
    is_short: bool = False
    epoch: int = 0
    num_given_up: int = 0
    _stock: list[int] = field(default_factory=list)
    _is_asking: bool = False
    _ask_at_ns: int = 0
    _unwritten: "deque[Unwritten]" = field(default_factory=deque)
    _late: dict[int, Unwritten] = field(default_factory=dict)  # abandoned for now, by identity
    _looked_at_ns: int = 0  # at those, the last time
    _late_pause_ns: int = LATE_PAUSE_NS  # until the next
    _num_computed: int = 0  # blocks since the last pump
    _step_blocks: float = 0.0  # of the largest step lately
    _num_writes: int = 0
    _ready: "deque[_Storing]" = field(default_factory=deque)  # have arena pages, wait for the mover
    _storing: dict[int, _Storing] = field(default_factory=dict)  # by `BlockWrite.number`
    _committing: dict[BlockKey, Unwritten] = field(default_factory=dict)

    @property
    def num_unwritten(self) -> int:
        num_waiting = len(self._unwritten) + len(self._ready)
        return num_waiting + len(self._storing) + len(self._committing)

    @property
    def can_go_on(self) -> bool:
        """Whether blocks are being written, or could be with the pages that are at hand."""
        is_under_way = bool(self._ready or self._storing or self._committing)
        return is_under_way or bool(self._unwritten and len(self._stock) >= self.pool.num_layers)

    @property
    def next_ask_at_ns(self) -> int | None:
        """When to ask again for pages that blocks wait for, or for those that were abandoned."""
        if self._unwritten and not self._is_asking:
            return self._ask_at_ns
        is_late = self._late and self.is_connected and self._late_pause_ns <= LATE_PAUSE_MAX_NS
        return self._looked_at_ns + self._late_pause_ns if is_late and not self._is_asking else None

    def connect(self, epoch: int) -> None:
        """A kvstore (perhaps a new one) knows us: old leases and commits mean nothing."""
        self.disconnect()
        self.is_connected = True
        self.epoch = epoch
        self._late_pause_ns = LATE_PAUSE_NS

    def disconnect(self) -> None:
        """No kvstore: nothing waits for a copy below any more."""
        self.is_connected = False
        self._stock.clear()
        self._is_asking = False
        self._ask_at_ns = 0
        self.give_up_unwritten()
        storing = [*self._storing.values(), *self._ready]
        self._give_up([each.unwritten for each in storing if not each.is_void], num_tries=1)
        self._storing.clear()
        self._ready.clear()
        self._give_up(list(self._committing.values()), num_tries=1)
        self._committing.clear()

    def on_leased(self, pages: list[int]) -> None:
        """The kvstore's answer to `LeasePages`."""
        if not self._is_asking:
            return  # of a connection that was lost since
        self._is_asking = False
        self._stock.extend(pages)
        if self._is_stocked:
            self._ask_at_ns = 0

    def pump(self, now_ns: int) -> list[Effect]:
        """Write what there are pages for, and ask for more."""
        self._step_blocks = max(self._num_computed, STEP_MEMORY * self._step_blocks)
        if not self._late:
            self._looked_at_ns = now_ns
        if self._num_computed or not self._late:
            self._late_pause_ns = LATE_PAUSE_NS
        self._num_computed = 0
        if now_ns >= self._looked_at_ns + self._late_pause_ns:
            self._looked_at_ns = now_ns
            self._late_pause_ns *= 2
            if not self._unwritten and self._take_up_late():
                self._late_pause_ns = LATE_PAUSE_NS
        is_short = self.is_short or self.pool.num_available < CLEAN_SHARE * self.pool.num_pages
        self.is_short = False
        if is_short:
            self._unwritten = _unused_first(self._unwritten)
        while self._unwritten and (pages := self._take_pages()) is not None:
            self._ready.append(self._write(self._unwritten.popleft(), pages))
        if is_short:
            self._ready = _unused_first(self._ready)
        return [*self._store_next(), *self.refill(now_ns)]

    def _store_next(self) -> list[Effect]:
        """Have the mover store what it may have more."""
        effects: list[Effect] = []
        while self._ready and len(self._storing) < STORING_MAX:
            num_blocks = min(ORDER_BLOCKS, STORING_MAX - len(self._storing), len(self._ready))
            storing = [self._ready.popleft() for _ in range(num_blocks)]
            self._storing |= {each.write.number: each for each in storing}
            effects.append(StoreBlocks([each.write for each in storing], self.epoch))
        return effects

    def refill(self, now_ns: int) -> list[Effect]:
        """Ask for more pages when less than half of the wanted stock is left."""
        if not self.is_connected or self._is_asking or self._is_stocked or now_ns < self._ask_at_ns:
            return []
        self._is_asking = True
        self._ask_at_ns = now_ns + LEASE_PAUSE_NS
        return [LeasePages(self._pages_wanted - len(self._stock))]

    @property
    def _is_stocked(self) -> bool:
        num_pages = len(self._stock)
        num_layers = self.pool.num_layers
        return num_pages >= num_layers and num_pages * 2 > self._pages_wanted

    @property
    def _pages_wanted(self) -> int:
        num_blocks = max(self.lease_target_blocks, ceil(STOCK_STEPS * self._step_blocks))
        return num_blocks * self.pool.num_layers

    def _take_pages(self) -> list[int] | None:
        """Arena pages for one block, one a layer, or None when the stock is too small."""
        at = len(self._stock) - self.pool.num_layers
        if at < 0:
            return None
        pages = self._stock[at:]
        del self._stock[at:]
        return pages

    def _write(self, late: Unwritten, arena_pages: list[int]) -> _Storing:
        block = late.block
        self._num_writes += 1
        write = BlockWrite(
            self._num_writes,
            block.key,
            late.parent,
            late.tokens,
            self.pool.pages_of(block),
            arena_pages,
            block.owner,
            late.replaces,
            late.is_partial,
            block.expiry_s,
        )
        return _Storing(write, late)

    def on_computed(
        self,
        block: Block,
        before: Block | None,
        parent: BlockKey,
        tokens: list[int],
        replaces: BlockKey = NO_KEY,
        *,
        is_partial: bool = False,
    ) -> None:
        """A block was computed: it is to be written, if a kvstore is there and room to wait.

        What waits is abandoned from the end, and nothing is written behind a block that was given
        up for good: without those `before` it, a block is of no use below.
        """
        self._num_computed += 1
        unwritten = Unwritten(block, before, parent, tokens, replaces, is_partial)
        if before is not None and self._tries(before) >= TRIES_MAX:
            self._give_up([unwritten], num_tries=TRIES_MAX)
        elif self.has_room:
            self._unwritten.append(unwritten)
        else:
            self._give_up([unwritten])

    @property
    def has_room(self) -> bool:
        """Whether one more block may wait."""
        num_pages = (len(self._unwritten) + 1) * self.pool.num_layers
        return self.is_connected and num_pages <= UNWRITTEN_SHARE_MAX * self.pool.num_pages

    def _take_up_late(self) -> bool:
        """Blocks that were abandoned are written after all, as far as there are pages for them.
        Answers whether any are.
        """
        num_blocks = len(self._stock) // self.pool.num_layers
        for number, late in list(self._late.items()):
            if num_blocks == 0:
                break
            block, before = late.block, late.before
            is_here = self.pool.blocks.get(block.key) is block and self.pool.is_whole(block)
            is_first = before is None or before.is_safe or not before.backed
            if not (is_here and self.can_try_again(block)):
                del self._late[number]
            elif is_first:
                del self._late[number]
                self.pool.set_unbacked(block)
                self._unwritten.append(late)
                num_blocks -= 1
            elif before is not None and not self.can_try_again(before):
                del self._late[number]
        return bool(self._unwritten)

    def can_try_again(self, block: Block) -> bool:
        """Whether a block in use has no copy below, and may get one yet."""
        was_given_up = block.backed and 0 < self._tries(block) < TRIES_MAX
        is_gone = block.lost or block.is_forgotten or block.loading
        return was_given_up and self.is_connected and not is_gone

    def _tries(self, block: Block) -> int:
        """How often its copy was abandoned; what was on earlier connections counts as once."""
        is_of_now = block.given_up_epoch == self.epoch
        return block.times_given_up if is_of_now else min(block.times_given_up, 1)

    def try_again(
        self,
        block: Block,
        before: Block | None,
        parent: BlockKey,
        tokens: list[int],
        replaces: BlockKey = NO_KEY,
    ) -> None:
        """Write a full block after all, since there are blocks behind it now."""
        self.pool.set_unbacked(block)
        self.on_computed(block, before, parent, tokens, replaces)

    def on_stored(self, checksums: dict[int, list[int]]) -> list[Effect]:
        """These writes are over; see `EngineCore.on_stored`. Those of a connection that was lost
        meanwhile mean nothing: their pages went with it."""
        good: list[BlockWrite] = []
        unused: list[int] = []
        for number, sums in checksums.items():
            if (storing := self._storing.pop(number, None)) is None:
                continue
            write, block = storing.write, storing.block
            if sums and not (storing.is_void or block.lost):
                good.append(write)
                self._committing[write.key] = storing.unwritten
                continue
            unused += write.arena_pages
            if not storing.is_void:
                self._give_up([storing.unwritten], num_tries=1)
        effects: list[Effect] = []
        if good:
            effects.append(CommitBlocks(good, [checksums[write.number] for write in good]))
        if unused:
            effects.append(ReturnPages(unused))
        return effects + self._store_next()

    def forget(self, blocks: list[Block]) -> None:
        """These blocks are not to be copied below. The kvstore is notified of those it has."""
        gone = {id(block) for block in blocks}
        for block in blocks:
            late = self._committing.get(block.key)
            if late is not None and late.block is block:
                del self._committing[block.key]
        for storing in self._storing.values():
            storing.is_void |= id(storing.block) in gone
        for each in self._ready:
            if id(each.block) in gone:
                self._stock += each.write.arena_pages
        self._ready = deque(each for each in self._ready if id(each.block) not in gone)
        self._unwritten = deque(late for late in self._unwritten if id(late.block) not in gone)
        for number in gone:
            self._late.pop(number, None)

    def on_committed(self, keys: list[BlockKey]) -> None:
        """These blocks have a copy below."""
        blocks = [self._committing.pop(key).block for key in keys if key in self._committing]
        for block in blocks:
            block.times_given_up = 0
        self.pool.set_backed(blocks)

    def on_refused(self, keys: list[BlockKey]) -> None:
        """The kvstore did not take these blocks: they stay without a copy below."""
        refused = [self._committing.pop(key) for key in keys if key in self._committing]
        self._give_up(refused, num_tries=1)

    def give_up_unwritten(self) -> None:
        """Blocks that wait for arena pages stay without a copy below."""
        self._give_up(list(self._unwritten))
        self._unwritten.clear()

    def _give_up(self, given_up: list[Unwritten], num_tries: int = 0) -> None:
        """Blocks stay without a copy below, for now: they are looked at again when there is room,
        if they are here by then. That there was no room to wait is no try: else what comes in one
        burst would be left for good.
        """
        self.num_given_up += len(given_up)
        for unwritten in given_up:
            block = unwritten.block
            block.times_given_up = max(self._tries(block) + num_tries, 1)
            block.given_up_epoch = self.epoch
            self._late[id(block)] = unwritten
        while len(self._late) > LATE_MAX:
            self._late.popitem()  # the latest: without those before them they would be of no use
        self.pool.set_backed([unwritten.block for unwritten in given_up])
