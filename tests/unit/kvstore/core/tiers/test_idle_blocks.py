"""The order in which pages go, beside the obvious one: all idle pages, sorted."""

from collections.abc import Callable
from itertools import count
from typing import get_args

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.kvstore.core.tiers.arena_block import NO_PAGE, ArenaBlock
from services.kvstore.core.tiers.idle_blocks import IdleBlocks
from services.kvstore.core.tiers.source import Source
from shared.blocks import BlockKey
from shared.eviction import RECENT_NS, STALE_MIN, EvictionName
from tests.tables import largest_table
from tests.unit.kvstore.core.host import pages_that_go

INSTANT_NS = RECENT_NS // 2
instants = st.integers(0, 3).map(INSTANT_NS.__mul__)
depths = st.integers(0, 2)
layers = st.lists(st.booleans(), min_size=1, max_size=4).filter(any)


def new_block(block_id: int, pages: list[int], depth: int = 0, used_at_ns: int = 0) -> ArenaBlock:
    """A block of which nothing but its place in the order counts."""
    num_present = sum(page != NO_PAGE for page in pages)
    key = BlockKey(block_id.to_bytes(16, "big"))
    generations = [1] * len(pages)
    return ArenaBlock(
        block_id, key, 1, pages, generations, num_present, depth, used_at_ns, Source()
    )


class OrderMachine(RuleBasedStateMachine):
    """Few instants, depths and layers, so that much is equal."""

    @initialize(policy=st.sampled_from(get_args(EvictionName)))
    def start(self, policy: EvictionName) -> None:
        self.policy = policy
        self.idle = IdleBlocks(policy)
        self.now_ns = 0
        self.blocks: list[ArenaBlock] = []  # that are in it
        self.others: list[ArenaBlock] = []
        self.stored: set[BlockKey] = set()
        self.pages, self.ids = count(), count(1)

    @rule(has=layers, depth=depths, used_at_ns=instants, is_stored=st.booleans())
    def add(self, has: list[bool], depth: int, used_at_ns: int, is_stored: bool) -> None:
        pages = [next(self.pages) if each else NO_PAGE for each in has]
        block = new_block(next(self.ids), pages, depth, used_at_ns)
        if is_stored:
            self.stored.add(block.key)
        self.blocks.append(block)
        self.idle.add(block)

    @precondition(lambda self: self.blocks)
    @rule(data=st.data(), used_at_ns=instants)
    def use(self, data: st.DataObject, used_at_ns: int) -> None:
        block = data.draw(st.sampled_from(self.blocks))
        block.used_at_ns = used_at_ns
        self.idle.add(block)

    @precondition(lambda self: self.blocks)
    @rule(data=st.data())
    def pin(self, data: st.DataObject) -> None:
        block = self.blocks.pop(data.draw(st.integers(0, len(self.blocks) - 1)))
        self.idle.discard(block)
        self.others.append(block)

    @precondition(lambda self: self.others)
    @rule(data=st.data(), depth=depths, is_filled=st.booleans())
    def unpin(self, data: st.DataObject, depth: int, is_filled: bool) -> None:
        """As it was, or deeper and whole again."""
        block = self.others.pop(data.draw(st.integers(0, len(self.others) - 1)))
        block.depth = max(block.depth, depth)
        if is_filled or not block.num_present:
            pages = [next(self.pages) for _ in range(block.num_missing)]
            block.fill(pages, [1] * len(pages))
        self.blocks.append(block)
        self.idle.add(block)

    @rule(num=st.integers(1, 3))
    def pass_time(self, num: int) -> None:
        """Blocks used half of it ago are the last to be warm."""
        self.now_ns += num * INSTANT_NS

    @rule()
    def lose_the_disk(self) -> None:
        self.stored.clear()

    @rule(num_pages=st.integers(0, 12))
    def take(self, num_pages: int) -> None:
        is_stored = self.stored.__contains__
        expected = pages_that_go(self.blocks, num_pages, is_stored, self.policy, self.now_ns)
        pages, emptied = self.idle.take(num_pages, is_stored, self.now_ns)
        assert pages == expected
        assert {id(block) for block in emptied} == {
            id(block) for block in self.blocks if not block.num_present
        }
        self.others += emptied
        self.blocks = [block for block in self.blocks if block.num_present]

    @invariant()
    def everything_is_here_once(self) -> None:
        assert len(self.idle) == len(self.blocks)
        assert all(block in self.idle for block in self.blocks)
        assert not any(block in self.idle for block in self.others)
        layers = [layer for group in self.idle._groups.values() for layer in group.by_layer.items()]
        kept = [block for _, blocks in layers for block in blocks]
        assert sorted(map(id, kept)) == sorted(map(id, self.blocks))
        for layer, blocks in layers:
            assert blocks
            if self.policy != "lru":
                assert all(b.highest_layer(b.num_layers) == layer for b in blocks)

    def teardown(self) -> None:
        if hasattr(self, "idle"):
            self.take(10**6)
            assert not self.idle._groups


TestOrderMachine = OrderMachine.TestCase
TestOrderMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("policy", get_args(EvictionName))
def test_instants_of_which_nothing_is_left_are_not_kept(policy: EvictionName) -> None:
    idle, oldest = IdleBlocks(policy), new_block(0, [0], used_at_ns=-1)
    idle.add(oldest)
    block = new_block(1, [1])
    for now_ns in range(10 * STALE_MIN):
        block.used_at_ns = now_ns
        idle.add(block)
    assert largest_table(idle) <= STALE_MIN + 4
    is_stored: Callable[[BlockKey], bool] = {oldest.key, block.key}.__contains__
    assert idle.take(2, is_stored, 0) == ([0, 1], [oldest, block])
