"""Pages waiting for one source, in the order in which passes will want them."""

from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import count

from services.kvstore.core.base.effects import PageReads
from services.kvstore.core.tiers.arena_block import ArenaBlock
from services.kvstore.core.tiers.source import Source
from shared.wire.urgency import Order, load_order


class ReadQueue:
    """In the order of `shared.wire.urgency`: an entry for each layer of each question.

    Args:
        source: whose backlog learns what waits no more, and what is read.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._heap: list[tuple[Order, Iterator[ArenaBlock]]] = []  # no two have the same order
        self._seq = count()

    def push(self, layers: list[list[ArenaBlock]], priority: int) -> None:
        """Ask for layer i of the blocks in `layers[i]`, which have it in `queued`. Asking again
        with a higher priority moves them forward.
        """
        number = next(self._seq)
        for layer, blocks in enumerate(layers):
            if blocks:
                heappush(self._heap, (load_order(priority, layer, number), iter(blocks)))

    def pop_batch(self, bytes_max: int) -> list[PageReads]:
        """The next loads, at least one page if any waits, up to `bytes_max`; they are then in
        flight.
        """
        batch: list[PageReads] = []
        source = self._source
        num_bytes = first_bytes = 0
        while self._heap and num_bytes + first_bytes <= bytes_max:
            (kind, layer, _, _), waiting = self._heap[0]
            blocks: list[ArenaBlock] = []
            for block in waiting:  # from where it stopped the last time
                queued = block.queued
                # Cancelled, perhaps requested from another source; or sent for a higher priority.
                if layer not in queued or block.source is not source:
                    continue
                queued.remove(layer)
                block.in_flight.add(layer)
                blocks.append(block)
                num_bytes += block.page_bytes
                first_bytes = first_bytes or block.page_bytes
                if num_bytes + first_bytes > bytes_max:
                    break
            else:
                heappop(self._heap)
            if blocks:
                kinds = [block.kind for block in blocks]
                for each in set(kinds):
                    num_left = kinds.count(each) * blocks[0].page_bytes
                    source.backlog.add(each, layer, -num_left)
                batch.append(_reads(kind, layer, blocks))
        source.backlog.num_bytes_read += num_bytes
        return batch

    def take_all(self) -> list[ArenaBlock]:
        """Every block of which something waits; nothing does any more, to be undone in them."""
        waiting = dict.fromkeys(block for _, blocks in self._heap for block in blocks)
        self._heap.clear()
        return [block for block in waiting if block.queued and block.source is self._source]


def _reads(kind: int, layer: int, blocks: list[ArenaBlock]) -> PageReads:
    return PageReads(
        layer=layer,
        page_bytes=blocks[0].page_bytes,  # one question is for pages of one size
        block_ids=[block.block_id for block in blocks],
        keys=[block.key for block in blocks],
        pages=[block.pages[layer] for block in blocks],
        generations=[block.generations[layer] for block in blocks],
        kind=kind,
    )
