"""The order in which a pool's pages go, beside the obvious one: all idle pages, sorted."""

from itertools import count
from typing import get_args

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.worker.core.kv.pages import NO_PAGE, Block, PagePool
from shared.blocks import BlockKey
from shared.eviction import RECENT_NS, EvictionName, ReturnModel, bin_of, layer_share
from shared.owners import NO_OWNER
from tests.unit.worker.driver import take_pages

LAYERS = 3
NUM_PAGES = 30
INSTANT_NS = RECENT_NS // 2

Place = tuple[float, ...]


class Rates(ReturnModel):
    """Kinds whose rates rise and fall with age in every way."""

    def index(self, kind: int, age_bin: int) -> float:
        return 1.0 + (kind * 7 + age_bin * (3 + kind)) % 5


class Idle:
    """Blocks last used together, as a test knows them."""

    def __init__(self, number: int, used_at_ns: int, until_ns: int, blocks: list[Block]) -> None:
        self.number = number
        self.used_at_ns = used_at_ns
        self.until_ns = until_ns
        self.blocks = blocks

    def place(
        self, policy: EvictionName, layer: int, depth: int, now_ns: int, rate: float
    ) -> Place:
        use = self.used_at_ns, self.number
        if policy == "lru":
            return *use, -depth, -layer
        warm_until_ns = max(self.used_at_ns + RECENT_NS, self.until_ns)
        if policy == "layer" and now_ns < warm_until_ns:
            return 1, -layer, *use, -depth
        if policy == "predicted":
            if now_ns < self.until_ns:
                return 1, -layer, *use, -depth
            worth = rate * layer_share(layer)
            return 0, worth, *use, -layer, -depth
        return 0, *use, -layer, -depth


class PoolMachine(RuleBasedStateMachine):
    """Sessions are used, expected and forgotten about, and give their pages to others."""

    @initialize(policy=st.sampled_from(get_args(EvictionName)))
    def start(self, policy: EvictionName) -> None:
        self.policy: EvictionName = policy
        self.pool = PagePool(NUM_PAGES, LAYERS, policy, returns=Rates())
        self.now_ns = 0
        self.numbers = count()
        self.groups: list[Idle] = []
        self.taken: list[int] = []

    @rule(num=st.integers(1, 4))
    def pass_time(self, num: int) -> None:
        """What was used half of it ago is the last to be warm."""
        self.now_ns += num * INSTANT_NS
        self.pool.on_time(self.now_ns)

    @rule(
        num_blocks=st.integers(1, 3),
        expected=st.sampled_from([0, 0, 1, 3, 9]),
        kind=st.integers(0, 2),
    )
    def arrive(self, num_blocks: int, expected: int, kind: int) -> None:
        """Of a session that takes what it needs, blocks stay."""
        num_pages = num_blocks * LAYERS
        if self.pool.num_available >= num_pages:
            gone = self._pages_to_go(num_pages)
            before = self._pages()
            blocks = self.pool.allocate(num_blocks)
            self._check_gone(before, gone)
            for block in blocks:
                self.pool.publish(block, BlockKey(b"%d" % next(self.numbers)), NO_OWNER)
                block.backed = True
                block.refs = 0
                block.return_kind = kind
            self._rest(blocks, expected)

    @precondition(lambda self: self.groups)
    @rule(data=st.data(), expected=st.sampled_from([0, 0, 1, 3, 9]))
    def use(self, data: st.DataObject, expected: int) -> None:
        """The first blocks of a group."""
        group = data.draw(st.sampled_from(self.groups))
        num = data.draw(st.integers(1, len(group.blocks)))
        for block in group.blocks[:num]:
            self.pool.acquire(block)
            block.refs = 0
        used, group.blocks = group.blocks[:num], group.blocks[num:]
        self._rest(used, expected)

    @precondition(lambda self: self.groups)
    @rule(data=st.data(), expected=st.sampled_from([0, 3]))
    def announce(self, data: st.DataObject, expected: int) -> None:
        """All of a group is expected, or not any more, and was never in use."""
        group = data.draw(st.sampled_from(self.groups))
        used, group.blocks = group.blocks, []
        self._rest(used, expected)

    @rule(num_pages=st.integers(1, 7))
    def demand(self, num_pages: int) -> None:
        gone, before = self._pages_to_go(num_pages), self._pages()
        has_room = num_pages <= len(before) + self.pool.num_free
        taken = take_pages(self.pool, num_pages)
        assert (taken is not None) == has_room
        if taken is not None:
            self.taken += taken
            self._check_gone(before, gone)

    @rule(num_pages=st.integers(1, 7), layer=st.integers(0, LAYERS - 1))
    def prefetch(self, num_pages: int, layer: int) -> None:
        gone, before = self._pages_to_go(num_pages, layer), self._pages()
        num_free = self.pool.num_free
        pages = self.pool.take_idle(self.now_ns, num_pages, layer)
        assert len(pages) == min(num_pages, num_free + len(gone))
        self.taken += pages
        self._check_gone(before, gone)

    @rule()
    def give_back(self) -> None:
        (blocks, rest) = divmod(len(self.taken), LAYERS)
        for _ in range(blocks):
            block = Block(self.pool.take_row(), LAYERS)
            self.pool.table[block.row] = [self.taken.pop() for _ in range(LAYERS)]
            self.pool.give_back([block])
        assert len(self.taken) == rest

    def _rest(self, blocks: list[Block], expected: int) -> None:
        until_ns = self.now_ns + expected * INSTANT_NS if expected else 0
        self.pool.rest(blocks, until_ns)
        self.groups.append(Idle(next(self.numbers), self.now_ns, until_ns, list(blocks)))
        self.groups = [group for group in self.groups if group.blocks]

    def _pages(self) -> list[tuple[int, Block]]:
        """Each that an idle block has, as its layer and the block."""
        return [
            (layer, block)
            for group in self.groups
            for block in group.blocks
            for layer, page in enumerate(self.pool.pages_of(block))
            if page != NO_PAGE
        ]

    def _pages_to_go(self, num_pages: int, layer: int | None = None) -> list[tuple[int, Block]]:
        """For somebody who needs so many, or for an announced turn that lacks `layer`."""
        places: list[tuple[bool, Place, int, Block]] = []
        for group in self.groups:
            is_expected = layer is not None and self.now_ns < group.until_ns
            for depth, block in enumerate(group.blocks):
                for at, page in enumerate(self.pool.pages_of(block)):
                    is_above = self.policy != "lru" and layer is not None and at > layer
                    if page != NO_PAGE and (is_above or not is_expected):
                        rate = self.pool.returns.index(
                            block.return_kind, bin_of(self.now_ns - group.used_at_ns)
                        )
                        place = group.place(self.policy, at, depth, self.now_ns, rate)
                        places.append((is_expected, place, at, block))
        places.sort(key=lambda each: each[:2])
        gone = [(at, block) for _, _, at, block in places]
        num = min(max(num_pages - self.pool.num_free, 0), len(gone))
        if self.policy == "lru":  # the last block goes with all its pages
            while 0 < num < len(gone) and gone[num][1] is gone[num - 1][1]:
                num += 1
        return gone[:num]

    def _check_gone(self, before: list[tuple[int, Block]], gone: list[tuple[int, Block]]) -> None:
        for group in self.groups:
            group.blocks = [block for block in group.blocks if block.num_present]
        self.groups = [group for group in self.groups if group.blocks]
        after = [(layer, id(block)) for layer, block in self._pages()]
        left = {(layer, id(block)) for layer, block in before} - set(after)
        assert left == {(layer, id(block)) for layer, block in gone}

    @invariant()
    def pages_are_conserved(self) -> None:
        if hasattr(self, "pool"):
            pool = self.pool
            held = pool.table[pool.table != NO_PAGE].tolist()
            assert sorted(held + pool.unused()[0].tolist() + self.taken) == list(range(NUM_PAGES))
            assert pool.num_takeable == len(self._pages()) == len(held)

    def teardown(self) -> None:
        if hasattr(self, "pool"):
            self.demand(self.pool.num_available)
            idle = self.pool._idle
            assert idle.next_run(1, self.now_ns) is None
            assert not idle._groups and not idle._order._groups and not idle.num_candidates


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
