"""A rank's loads under way: which blocks are pending, and what is reported to vLLM of them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from services.worker.core.effects import NO_KEY, BlockWrite, PageLoads
from services.worker.core.vllm.connector import LoadOrder
from services.worker.core.vllm.stores import StoreOrder
from shared.wire.urgency import DEMAND_PRIORITY


@dataclass(frozen=True, slots=True, kw_only=True)
class RankShape:
    """Attributes:
    num_layers, num_blocks: of the rank's KV cache; page ``layer * num_blocks + block`` of its pool
        is one layer of one block.
    """

    rank: int
    num_ranks: int
    num_layers: int
    num_blocks: int

    def pool_pages(self, block: int) -> list[int]:
        """The pages of a block, one a layer."""
        return [layer * self.num_blocks + block for layer in range(self.num_layers)]

    def loads(self, order: LoadOrder) -> PageLoads:
        """The rank's part of what is to be loaded."""
        rows = range(self.rank, self.num_layers * self.num_ranks, self.num_ranks)
        return PageLoads(
            priority=DEMAND_PRIORITY,
            layer=0,  # a request runs when all its layers are there: who came first goes first
            arena_pages=[page for row in rows for page in order.pages[row]],
            generations=[each for row in rows for each in order.generations[row]],
            pool_pages=[
                layer * self.num_blocks + block
                for layer in range(self.num_layers)
                for block in order.blocks
            ],
            epoch=order.epoch,
            ready_at_ns=order.ready_at_ns,
        )

    def write(self, order: StoreOrder, block_tokens: int) -> BlockWrite:
        """The rank's part of a block to store."""
        return BlockWrite(
            number=order.number,
            key=NO_KEY,
            parent=NO_KEY,
            tokens=[0] * order.num_tokens,  # only how many is asked for
            pool_pages=self.pool_pages(order.block),
            arena_pages=order.arena_pages[self.rank :: self.num_ranks],
            is_partial=order.num_tokens < block_tokens,
        )


@dataclass(slots=True)
class RankLoads:
    """Not thread-safe. A load is reported once, when each of its pages has ended; and what of it is
    bad then, never later.
    """

    num_layers: int
    num_blocks: int
    _request_of: dict[int, str] = field(default_factory=dict)  # by block that is loading
    _layers_left: dict[int, int] = field(default_factory=dict)  # by block
    _blocks_left: Counter[str] = field(default_factory=Counter)  # by request
    _bad: dict[str, set[int]] = field(default_factory=dict)  # by request
    _over: list[str] = field(default_factory=list)

    def start(self, request_id: str, blocks: Sequence[int]) -> None:
        """These blocks are loading."""
        for block in blocks:
            self._request_of[block] = request_id
            self._layers_left[block] = self.num_layers
        self._blocks_left[request_id] = len(blocks)

    def on_moved(self, good: Sequence[int], bad: Sequence[int]) -> None:
        """These pages of the pool have ended."""
        for page in bad:
            block = page % self.num_blocks
            self._bad.setdefault(self._request_of[block], set()).add(block)
        ended = Counter(page % self.num_blocks for page in (*good, *bad))
        for block, num_pages in ended.items():
            self._layers_left[block] -= num_pages
            if self._layers_left[block]:
                continue
            del self._layers_left[block]
            request_id = self._request_of.pop(block)
            self._blocks_left[request_id] -= 1
            if not self._blocks_left[request_id]:
                del self._blocks_left[request_id]
                self._over.append(request_id)

    def take(self) -> tuple[set[str], set[int]]:
        """Requests whose loads are over since the last call; which of their blocks are bad."""
        over, self._over = self._over, []
        bad = [self._bad.pop(request_id, set()) for request_id in over]
        return set(over), set().union(*bad)
