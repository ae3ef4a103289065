"""Prefetches take pages for a run of blocks at once. That is to come to the same as one at a time,
whatever making room for one does to the next.
"""

from dataclasses import dataclass
from typing import get_args

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from services.worker.core.effects import Effect, LoadPages
from services.worker.core.kv import staging
from services.worker.core.kv.expecting import Expected
from services.worker.core.kv.pages import NO_PAGE, PagePool
from services.worker.core.kv.staging import PREFETCH_LOADS_MAX, Stager
from shared.blocks import BlockKey
from shared.eviction import EvictionName
from shared.ids import DEFAULT_TENANT, SessionId
from shared.owners import NO_OWNER
from tests.unit.worker.driver import NUM_LAYERS, of_kind, staged_blocks, take_pages

NOW_NS, LATER_NS = 5, 10
SESSIONS, BLOCKS = range(3), range(4)
NAMES = [BlockKey(f"{session}{index}".encode()) for session in SESSIONS for index in BLOCKS]


@dataclass(frozen=True)
class Case:
    """What is in the pool when two sessions are expected.

    Attributes:
        idle: sessions in order of use, and how many of their blocks are there.
        num_taken: pages that somebody took since; None: all free ones.
        holes: blocks that lack their lowest layer: a prefetch has gone on above it.
        expected: their blocks, in order.
        used: blocks that somebody used after that, so that they may be taken.
        num_free: pages given back at last.
    """

    idle: list[tuple[int, int]]
    num_taken: int | None
    holes: list[BlockKey]
    expected: list[list[BlockKey]]
    used: list[BlockKey]
    num_free: int
    policy: EvictionName

    def build(self) -> Stager:
        pool = PagePool(26, NUM_LAYERS, self.policy)
        stager = Stager(pool)
        (free,) = pool.allocate(1)
        for session, num_blocks in self.idle:
            blocks = pool.allocate(num_blocks)
            for index, block in enumerate(blocks):
                pool.publish(block, BlockKey(f"{session}{index}".encode()), NO_OWNER)
                block.backed = True
            pool.release(blocks)
        take_pages(pool, pool.num_free if self.num_taken is None else self.num_taken)
        for key in self.holes:
            if (hollow := pool.blocks.get(key)) is not None and pool.is_whole(hollow):
                pool.acquire(hollow)
                pool.table[hollow.row, 0] = NO_PAGE
                hollow.num_present, hollow.is_gapped = NUM_LAYERS - 1, True
                pool.release([hollow])
        for ticket, keys in enumerate(self.expected):
            expected = Expected(
                tenant=DEFAULT_TENANT,
                session_id=SessionId(f"s{ticket}"),
                priority=0,
                expires_at_ns=LATER_NS,
            )
            name = expected.owner, ""
            stager.expect(staged_blocks(ticket, keys), name, NO_OWNER, expected, 0)
        for block in [pool.blocks[key] for key in self.used if key in pool.blocks]:
            pool.acquire(block)
            pool.release([block])
        if self.num_free:
            pool.give_back([free])
        return stager


cases = st.builds(
    Case,
    idle=st.lists(
        st.tuples(st.sampled_from(SESSIONS), st.integers(1, 4)), unique_by=lambda s: s[0]
    ),
    num_taken=st.integers(0, 20) | st.none(),
    holes=st.lists(st.sampled_from(NAMES), max_size=4),
    expected=st.lists(st.lists(st.sampled_from(NAMES), unique=True, min_size=1), max_size=2),
    used=st.lists(st.sampled_from(NAMES), unique=True),
    num_free=st.integers(0, 1),
    policy=st.sampled_from(get_args(EvictionName)),
)


def name_of(page: int, policy: EvictionName) -> int:
    """One for all under `lru`, where a block makes room for more than one page, in any order."""
    return page if policy != "lru" else min(page, 0)


def loads_of(effects: list[Effect], policy: EvictionName) -> list[tuple[int, int, int]]:
    """Layer, arena page and pool page of each load, by layer."""
    runs = [run for each in of_kind(effects, LoadPages) for run in each.loads]
    loads = [
        (run.layer, arena_page, name_of(pool_page, policy))
        for run in runs
        for arena_page, pool_page in zip(run.arena_pages, run.pool_pages, strict=True)
    ]
    return sorted(loads, key=lambda load: load[0])


def table_of(pool: PagePool) -> dict[BlockKey, list[int]]:
    """Pages of each block."""
    return {
        key: [name_of(page, pool.eviction) for page in pool.pages_of(block)]
        for key, block in pool.blocks.items()
    }


ONLY_ITS_OWN = Case(
    idle=[(0, 2)],
    num_taken=None,
    holes=NAMES[:2],
    expected=[NAMES[:2]],
    used=[],
    num_free=0,
    policy="layer",
)
"""A session whose higher pages are all that may be taken for the lower ones."""


@settings(deadline=None, max_examples=300)
@example(case=ONLY_ITS_OWN, num_max=3)
@given(case=cases, num_max=st.sampled_from([3, PREFETCH_LOADS_MAX]))
def test_a_run_is_what_its_pages_are_one_by_one(case: Case, num_max: int) -> None:
    at_once, one_by_one = case.build(), case.build()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staging, "PREFETCH_LOADS_MAX", num_max)
        effects = at_once.pump(NOW_NS)
        expected: list[Effect] = []
        for number in range(num_max):
            patch.setattr(staging, "PREFETCH_LOADS_MAX", number + 1)
            expected += one_by_one.pump(NOW_NS)
    assert loads_of(effects, case.policy) == loads_of(expected, case.policy)
    assert [each for each in effects if not isinstance(each, LoadPages)] == [
        each for each in expected if not isinstance(each, LoadPages)
    ]
    for stager in (at_once, one_by_one):
        assert stager.num_loading == stager.flights.num_prefetching <= num_max
    assert table_of(at_once.pool) == table_of(one_by_one.pool)
    assert at_once.pool.num_available == one_by_one.pool.num_available
