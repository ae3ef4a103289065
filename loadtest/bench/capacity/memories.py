"""Memories that keep blocks of prompts, each with its own idea of what goes when it is full.

Each is asked with one prompt after the other, as the ids of its blocks from the beginning on, and
returns how many of its blocks were there. All of the prompt is there afterwards.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Protocol

from services.kvstore.core.tiers.arena_block import NO_PAGE, ArenaBlock
from services.kvstore.core.tiers.idle_blocks import IdleBlocks
from services.kvstore.core.tiers.source import Source
from shared.blocks import BlockKey
from shared.eviction import EvictionName, Guard, ReturnModel

Prompt = Sequence[int]


class Memory(Protocol):
    """Keeps as much as it can."""

    def ask(self, prompt: Prompt, at_ns: int) -> float:
        """Blocks of it that were there, parts of them counted as parts."""
        ...


class PlainLru:
    """The block that was used the longest ago goes first; what other servers do."""

    def __init__(self, num_blocks: int) -> None:
        self._num_blocks = num_blocks
        self._kept: OrderedDict[int, None] = OrderedDict()

    def ask(self, prompt: Prompt, at_ns: int) -> float:
        kept = self._kept
        found = sum(block in kept for block in prompt)
        for block in prompt:
            kept[block] = None
            kept.move_to_end(block)
        while len(kept) > self._num_blocks:
            kept.popitem(last=False)
        return found


class Ordered:
    """By the order in which our arenas give pages, run by the code that serves: `IdleBlocks`, with
    blocks of `num_layers` pages. Copies of all blocks stand below, so layers may go one by one.

    Args:
        num_blocks: whole ones for which there is room.
    """

    def __init__(self, policy: EvictionName, num_blocks: int, num_layers: int) -> None:
        self._returns = ReturnModel()
        self._guard = Guard(num_blocks)
        self._idle = IdleBlocks(policy, returns=self._returns, guard=self._guard)
        self._num_layers = num_layers
        self._num_free = num_blocks * num_layers
        self._blocks: dict[int, ArenaBlock] = {}
        self._source = Source()

    def ask(self, prompt: Prompt, at_ns: int) -> float:
        blocks = [self._block(each, depth, at_ns) for depth, each in enumerate(prompt)]
        found = self._leading_pages(blocks) / self._num_layers
        keys = [block.key for block in blocks]
        self._returns.arrive(keys, at_ns, found_in=((self._guard, int(found)),))
        for block in blocks:
            self._idle.discard(block)
        self._make_room(sum(block.num_missing for block in blocks), at_ns)
        kinds = self._returns.grow(keys, at_ns, guards=(self._guard,))
        for block in blocks:
            self._fill(block)
            block.used_at_ns, block.return_kind = at_ns, kinds.of(block.depth)
            if block.num_present:
                self._idle.add(block)
        return found

    def _leading_pages(self, blocks: Sequence[ArenaBlock]) -> int:
        """A layer of a block is of use if it is there of all blocks before it."""
        layers, found = list(range(self._num_layers)), 0
        for block in blocks:
            if not block.num_missing:
                found += len(layers)
                continue
            layers = [layer for layer in layers if block.pages[layer] != NO_PAGE]
            if not layers:
                break
            found += len(layers)
        return found

    def _block(self, number: int, depth: int, at_ns: int) -> ArenaBlock:
        if (block := self._blocks.get(number)) is None:
            nothing = [NO_PAGE] * self._num_layers
            block = self._blocks[number] = ArenaBlock(
                number, BlockKey(number.to_bytes(16)), 1, nothing, [0] * self._num_layers, 0,
                depth, at_ns, self._source,
            )  # fmt: skip
        return block

    def _make_room(self, num_pages: int, at_ns: int) -> None:
        if num_pages > self._num_free:
            pages, _ = self._idle.take(num_pages - self._num_free, lambda _: True, at_ns)
            self._num_free += len(pages)

    def _fill(self, block: ArenaBlock) -> None:
        """If there is room for all of it."""
        if 0 < (num_lacking := block.num_missing) <= self._num_free:
            self._num_free -= num_lacking
            block.fill([0] * num_lacking, [0] * num_lacking)


class Clairvoyant:
    """The block that is next used the furthest from now goes first (Belady): no order that knows
    less keeps more. What is never used again is not kept at all.

    Args:
        prompts: all that will be asked.
    """

    def __init__(self, num_blocks: int, prompts: Sequence[Prompt]) -> None:
        self._num_blocks = num_blocks
        uses: dict[int, list[int]] = defaultdict(list)
        for number in range(len(prompts) - 1, -1, -1):
            for block in prompts[number]:
                uses[block].append(number)
        self._uses = uses  # the next is last
        self._kept: dict[int, int] = {}  # and when each is next used
        self._order: list[tuple[int, int]] = []
        self._numbers = count()

    def ask(self, prompt: Prompt, at_ns: int) -> float:
        number = next(self._numbers)
        found = sum(block in self._kept for block in prompt)
        for block in prompt:
            uses = self._uses[block]
            while uses and uses[-1] <= number:
                uses.pop()
            if not uses:
                self._kept.pop(block, None)
                continue
            self._kept[block] = uses[-1]
            heappush(self._order, (-uses[-1], block))
        while len(self._kept) > self._num_blocks:
            next_use, block = heappop(self._order)
            if self._kept.get(block) == -next_use:
                del self._kept[block]
        return found
