"""Write-behind: which full blocks still have to go below, and arena pages to put them in."""

from collections import deque
from dataclasses import dataclass, field

from services.worker.core.effects import LATE, BlockWrite, Effect, LeasePages
from services.worker.core.pages import CachedBlock, PagePool
from shared.blocks import BlockKey

UNWRITTEN_SHARE_MAX = 0.25  # of the pool; beyond it, the oldest blocks stay without a copy below


@dataclass(frozen=True, slots=True)
class Unwritten:
    """A cached block that had no arena page when it was computed."""

    block: CachedBlock
    parent: BlockKey
    tokens: list[int]


@dataclass(slots=True)
class WriteBehind:
    """Attributes:
    is_connected: a kvstore answers; without one, blocks are not waited for.
    """

    pool: PagePool
    lease_target_blocks: int
    is_connected: bool = False
    num_given_up: int = 0
    _stock: list[int] = field(default_factory=list)
    _is_asking: bool = False
    _unwritten: "deque[Unwritten]" = field(default_factory=deque)
    _committing: dict[BlockKey, CachedBlock] = field(default_factory=dict)

    @property
    def num_unwritten(self) -> int:
        return len(self._unwritten) + len(self._committing)

    def connect(self) -> None:
        """A kvstore (perhaps a new one) knows us: old leases mean nothing."""
        self.is_connected = True
        self._stock.clear()
        self._is_asking = False

    def disconnect(self) -> None:
        """No kvstore: nothing waits for a copy below any more."""
        self.is_connected = False
        self._stock.clear()
        self._is_asking = False
        for unwritten in self._unwritten:
            self._give_up(unwritten.block)
        self._unwritten.clear()
        for block in self._committing.values():
            self._give_up(block)
        self._committing.clear()

    def on_leased(self, pages: list[int]) -> None:
        """The kvstore's answer to `LeasePages`."""
        self._is_asking = False
        self._stock.extend(pages)

    def refill(self) -> list[Effect]:
        """Ask for more pages when less than half of the wanted stock is left."""
        target = self.lease_target_blocks * self.pool.num_layers
        if not self.is_connected or self._is_asking or len(self._stock) * 2 > target:
            return []
        self._is_asking = True
        return [LeasePages(target - len(self._stock))]

    def take_pages(self) -> list[int] | None:
        """Arena pages for one block, one a layer, or None when the stock is too small."""
        if len(self._stock) < self.pool.num_layers:
            return None
        return [self._stock.pop() for _ in range(self.pool.num_layers)]

    def on_computed(self, block: CachedBlock, parent: BlockKey, tokens: list[int]) -> None:
        """A block was computed without being written: later, if a kvstore is there."""
        if not self.is_connected:
            self._give_up(block)
            return
        self._unwritten.append(Unwritten(block, parent, tokens))
        pages_max = UNWRITTEN_SHARE_MAX * self.pool.num_pages
        while len(self._unwritten) * self.pool.num_layers > pages_max:
            self._give_up(self._unwritten.popleft().block)

    def late_writes(self) -> list[BlockWrite]:
        """Writes of earlier blocks for which there are pages now."""
        writes = []
        while self._unwritten and (pages := self.take_pages()) is not None:
            late = self._unwritten.popleft()
            block = late.block
            writes.append(
                BlockWrite(block.key, late.parent, late.tokens, list(block.pages), pages, LATE)
            )
            self._committing[block.key] = block
        return writes

    def on_committing(self, block: CachedBlock) -> None:
        """The block's commit is on its way to the kvstore."""
        self._committing[block.key] = block

    def on_committed(self, keys: list[BlockKey]) -> None:
        """These blocks have a copy below."""
        for key in keys:
            if (block := self._committing.pop(key, None)) is not None:
                self.pool.set_backed(block)

    def _give_up(self, block: CachedBlock) -> None:
        self.num_given_up += 1
        self.pool.set_backed(block)
