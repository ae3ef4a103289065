"""In what order blocks go below: what a full pool has to give is clean before it is needed."""

from collections import deque

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from services.worker.core.effects import NO_KEY, BlockWrite, CommitBlocks, Effect, StoreBlocks
from services.worker.core.engine.integrity import check_integrity
from services.worker.core.kv import write_behind
from services.worker.core.kv.pages import PagePool
from services.worker.core.kv.write_behind import WriteBehind
from services.worker.core.turns.turn import Turn
from shared.blocks import BlockKey
from shared.owners import NO_OWNER
from shared.wire.messages import SamplingParams
from tests.unit.worker.driver import BLOCK_TOKENS, NUM_LAYERS, Engine, new_core, new_turn, of_kind

NUM_BLOCKS = 64
STORING_MAX, ORDER_BLOCKS = 4, 2
ONCE, LONG = SamplingParams(max_tokens=1), SamplingParams(max_tokens=10_000)


class SlowStores:
    """A deployment whose stores end one by one, when the test lets one end: so the link is as slow
    as it likes. Every block fits below."""

    def __init__(self) -> None:
        core = new_core(
            NUM_BLOCKS,
            lease_target_blocks=2 * NUM_BLOCKS,
            max_model_len=10_000,
            stage_timeout_max_ns=0,
            stage_timeout_min_ns=0,
        )
        self.engine = Engine(core)
        self.core = self.engine.core
        self.core.write_behind.connect(1)
        self.core.write_behind.refill(0)
        self.core.on_leased(list(range(4 * NUM_BLOCKS * NUM_LAYERS)))
        self.ordered: deque[BlockWrite] = deque()
        self.num_seen = 0

    def prompt(self, number: int, num_blocks: int) -> list[int]:
        first = 1000 * (number + 1)
        return list(range(first, first + num_blocks * BLOCK_TOKENS + 1))

    def step(self) -> None:
        """Run what can run, if anything can."""
        if (plan := self.engine.plan()) is not None:
            self.engine.finish(plan)
        self.look()

    def look(self, effects: list[Effect] | None = None) -> None:
        """Take up new orders to store."""
        self.engine.keep(effects or [])
        for order in of_kind(self.engine.effects[self.num_seen :], StoreBlocks):
            assert len(order.writes) <= write_behind.ORDER_BLOCKS
            self.ordered += order.writes
        self.num_seen = len(self.engine.effects)
        assert len(self.ordered) <= write_behind.STORING_MAX

    def store_one(self) -> None:
        """The link has carried one more block."""
        if self.ordered:
            write = self.ordered.popleft()
            effects = self.core.on_stored({write.number: [0] * NUM_LAYERS})
            self.look(effects)
            for commit in of_kind(effects, CommitBlocks):
                self.core.on_committed([each.key for each in commit.writes])

    def add(self, number: int, num_blocks: int, sampling: SamplingParams) -> Turn:
        """A turn that computes its prompt, if there is room, and goes on if it is to."""
        turn = new_turn(f"t{number}", self.prompt(number, num_blocks), sampling=sampling)
        self.engine.submit(turn)
        for _ in range(2):
            self.step()
        return turn

    @property
    def num_in_use(self) -> int:
        """Blocks of running turns."""
        return sum(turn.cache.num_blocks for turn in self.core.running)

    @property
    def num_available(self) -> int:
        return self.core.pool.num_available // NUM_LAYERS


@pytest.fixture(autouse=True)
def small_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_behind, "STORING_MAX", STORING_MAX)
    monkeypatch.setattr(write_behind, "ORDER_BLOCKS", ORDER_BLOCKS)
    monkeypatch.setattr(write_behind, "UNWRITTEN_SHARE_MAX", 1.0)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@example(running=[1, 11], finished=[5], num_wanted=6, stores_a_step=4, num_earlier=0)
@example(running=[1, 15], finished=[8], num_wanted=7, stores_a_step=4, num_earlier=0)
@given(
    running=st.lists(st.integers(1, 15), max_size=2),
    finished=st.lists(st.integers(1, 8), min_size=1, max_size=8),
    num_wanted=st.integers(1, 24),
    stores_a_step=st.integers(4, 6),
    num_earlier=st.integers(0, 3),
)
def test_a_turn_that_finds_the_pool_full_waits_for_the_stores_that_make_its_room(
    running: list[int],
    finished: list[int],
    num_wanted: int,
    stores_a_step: int,
    num_earlier: int,
) -> None:
    world = SlowStores()
    turns = [(num, ONCE) for num in finished[:num_earlier]] + [(num, LONG) for num in running]
    while sum(num + 2 for num, _ in turns) < NUM_BLOCKS:
        turns += [(num, ONCE) for num in finished]
    for number, (num_blocks, sampling) in enumerate(turns):
        if world.num_available >= num_blocks + 6:
            world.add(number, num_blocks, sampling)
    assert not world.core.waiting

    num_before, num_in_use = world.num_available, world.num_in_use
    num_lacking = num_wanted + 1 + len(world.core.running) - num_before
    assume(num_wanted + num_in_use + 6 * len(running) < NUM_BLOCKS)
    world.engine.submit(new_turn("new", world.prompt(99, num_wanted)))
    world.step()
    num_stores = 0
    while world.core.waiting:
        assert world.ordered, "it waits for nothing"
        for _ in range(min(stores_a_step, len(world.ordered))):
            world.store_one()
            num_stores += 1
        world.step()
    num_grown = max(world.num_in_use - num_in_use, 0)
    most = STORING_MAX + max(num_lacking, 0) + num_grown + stores_a_step
    assert num_stores <= most
    check_integrity(world.core)


class Chained:
    """Two sequences that begin with the same block, in a pool that is full of them: a turn runs on
    `a`, and on the first block; no turn uses `b`."""

    def __init__(self) -> None:
        self.pool = PagePool(5 * NUM_LAYERS, NUM_LAYERS)
        self.write_behind = WriteBehind(self.pool, 5)
        self.write_behind.connect(1)
        keys = [BlockKey(name) for name in (b"a", b"first", b"more of a", b"b", b"more of b")]
        blocks = self.pool.allocate(5)
        for block, key in zip(blocks, keys, strict=True):
            self.pool.publish(block, key, NO_OWNER)
        self.blocks = dict(zip([bytes(key).decode() for key in keys], blocks, strict=True))
        before = {"more of a": "a", "b": "first", "more of b": "b"}
        for name, block in self.blocks.items():
            of = self.blocks[before[name]] if name in before else None
            self.write_behind.on_computed(block, of, NO_KEY, [1])
        self.pool.release([self.blocks["b"], self.blocks["more of b"]])

    def lease(self, num_blocks: int) -> None:
        self.write_behind.refill(0)
        self.write_behind.on_leased(list(range(num_blocks * NUM_LAYERS)))

    def written(self) -> list[str]:
        """What is ordered next, in order."""
        orders = of_kind(self.write_behind.pump(0), StoreBlocks)
        return [bytes(write.key).decode() for order in orders for write in order.writes]


def test_what_no_turn_uses_goes_ahead_with_what_it_is_of_no_use_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(write_behind, "STORING_MAX", 5)
    chained = Chained()
    chained.lease(3)  # there may be fewer arena pages than blocks
    assert chained.written() == ["first", "b", "more of b"]
    chained.lease(2)
    assert chained.written() == ["a", "more of a"]


def test_blocks_are_written_as_they_were_computed_while_pages_are_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(write_behind, "STORING_MAX", 5)
    monkeypatch.setattr(write_behind, "CLEAN_SHARE", 0.0)
    chained = Chained()
    chained.lease(5)
    assert chained.written() == ["a", "first", "more of a", "b", "more of b"]


def test_a_block_that_is_forgotten_before_its_store_is_not_stored_and_gives_its_pages_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(write_behind, "STORING_MAX", 2)
    chained = Chained()
    chained.lease(5)
    assert chained.written() == ["first", "b"]
    chained.write_behind.forget([chained.blocks["more of b"]])
    effects = chained.write_behind.on_stored({1: [0] * NUM_LAYERS, 2: [0] * NUM_LAYERS})
    (order,) = of_kind(effects, StoreBlocks)
    assert [bytes(write.key) for write in order.writes] == [b"a", b"more of a"]
    assert len(chained.write_behind._stock) == NUM_LAYERS
    chained.write_behind.disconnect()
    assert chained.write_behind.num_unwritten == 0
