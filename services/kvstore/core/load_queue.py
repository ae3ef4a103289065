"""Pages waiting to be loaded from disk, in the order in which passes will want them."""

from heapq import heappop, heappush
from itertools import count

from services.kvstore.core.arena_tier import Block
from services.kvstore.core.effects import PageLoad
from shared.urgency import Order, load_order


class LoadQueue:
    """In the order of `shared.urgency`."""

    def __init__(self) -> None:
        self._heap: list[tuple[Order, Block]] = []
        self._seq = count()

    def push(self, block: Block, layer: int, priority: int) -> None:
        """Ask for a layer of `block`. Asking again with a higher priority moves it forward."""
        block.queued.add(layer)
        heappush(self._heap, (load_order(priority, layer, next(self._seq)), block))

    def pop_batch(self, bytes_max: int) -> list[PageLoad]:
        """The next loads, at least one if any waits, up to `bytes_max`; they are then in flight."""
        batch: list[PageLoad] = []
        num_bytes = 0
        while self._heap and (not batch or num_bytes + batch[0].page_bytes <= bytes_max):
            (_, layer, _, _), block = heappop(self._heap)
            if layer not in block.queued:  # given up, or sent already for a higher priority
                continue
            block.queued.remove(layer)
            block.in_flight.add(layer)
            num_bytes += block.page_bytes
            batch.append(
                PageLoad(
                    block.block_id,
                    block.key,
                    layer,
                    block.page_bytes,
                    block.pages[layer],
                    block.generations[layer],
                )
            )
        return batch
