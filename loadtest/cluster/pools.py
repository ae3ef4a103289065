"""GPU KV pools of ablations and of systems that others have."""

from heapq import heappop, heappush

from services.worker.core.kv.page_table import Block
from services.worker.core.kv.pages import PagePool


class PinnedPool(PagePool):
    """Without cooperative memory (SYMPHONY, section 4.5): what was prefetched stays until its turn
    comes or its hint expires. Running turns cannot take those pages, and wait where there are no
    others."""

    def __post_init__(self) -> None:
        PagePool.__post_init__(self)
        self._pins: list[tuple[int, int, list[Block]]] = []
        self._num_pins = 0

    def on_time(self, now_ns: int) -> None:
        super().on_time(now_ns)
        while self._pins and self._pins[0][0] <= now_ns:
            self._unpin(heappop(self._pins)[2])

    def rest(self, blocks: list[Block], expected_until_ns: int = 0) -> None:
        if expected_until_ns <= self._now_ns:
            super().rest(blocks)
            return
        pinned = [block for block in blocks if self._can_pin(block)]
        for block in pinned:
            self.withdraw(block)
        self._num_pins += 1
        heappush(self._pins, (expected_until_ns, self._num_pins, pinned))
        super().rest([block for block in blocks if not self._can_pin(block)])

    def unpin_all(self) -> None:
        """Nothing is expected any more."""
        while self._pins:
            self._unpin(heappop(self._pins)[2])

    def _can_pin(self, block: Block) -> bool:
        is_idle = not (block.refs or block.loading or block.is_forgotten or block.lost)
        return is_idle and block.backed and block.num_present > 0

    def _unpin(self, blocks: list[Block]) -> None:
        super().rest(
            [each for each in blocks if not each.group and self.blocks.get(each.key) is each]
        )


class RunningPool(PagePool):
    """Without prefix cache: keeps the KV of running turns only, and what has no copy below yet.
    Nothing is prefetched into it."""

    def rest(self, blocks: list[Block], expected_until_ns: int = 0) -> None:
        super().rest(blocks)
        for block in blocks:
            if block.group:
                self.drop(block)

    def take_idle(self, now_ns: int, count: int, layer: int) -> list[int]:
        return []


POOLS: dict[str, type[PagePool]] = {"cooperative": PinnedPool, "prefix-cache": RunningPool}
"""By what a cluster is without."""
