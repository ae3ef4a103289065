from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.worker.core.kv.pages import CANDIDATES_MAX, NO_PAGE, NO_ROW, ROWS_MIN, Block, PagePool
from shared.blocks import BlockKey
from shared.eviction import EvictionName
from shared.owners import NO_OWNER
from tests.unit.worker.driver import take_pages

LAYERS = 2


def cached(pool: PagePool, name: str) -> Block:
    """A backed block with all its pages, held by one turn."""
    (block,) = pool.allocate(1)
    pool.publish(block, BlockKey(name.encode()), NO_OWNER)
    block.backed = True
    return block


def layers_left(pool: PagePool, block: Block) -> list[int]:
    if block.row == NO_ROW:
        return []
    return [layer for layer, page in enumerate(pool.pages_of(block)) if page != NO_PAGE]


BOTH, LOW, NONE = [0, 1], [0], list[int]()


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (
            "predicted",
            [
                [BOTH, LOW, BOTH, BOTH],
                [LOW, LOW, BOTH, BOTH],
                [LOW, LOW, BOTH, LOW],
                [LOW, LOW, LOW, LOW],
                [LOW, NONE, LOW, LOW],
            ],
        ),
        (
            "layer",
            [
                [BOTH, LOW, BOTH, BOTH],
                [LOW, LOW, BOTH, BOTH],
                [LOW, LOW, BOTH, LOW],
                [LOW, LOW, LOW, LOW],
                [LOW, NONE, LOW, LOW],
            ],
        ),
        (
            "lru",
            [
                [BOTH, NONE, BOTH, BOTH],
                [BOTH, NONE, BOTH, BOTH],
                [NONE, NONE, BOTH, BOTH],
                [NONE, NONE, BOTH, BOTH],
                [NONE, NONE, BOTH, NONE],
            ],
        ),
    ],
)
def test_pages_of_two_sessions_go_by_the_policy(
    policy: EvictionName, expected: list[list[list[int]]]
) -> None:
    pool = PagePool(8, LAYERS, policy)
    old = [cached(pool, "a0"), cached(pool, "a1")]
    new = [cached(pool, "b0"), cached(pool, "b1")]
    pool.release(old)
    pool.release(new)
    seen = []
    for _ in range(5):
        take_pages(pool, 1)
        seen.append([layers_left(pool, block) for block in (*old, *new)])
    assert seen == expected


def test_a_used_block_is_the_youngest_again() -> None:
    pool = PagePool(4, LAYERS, "lru")
    first, second = cached(pool, "a"), cached(pool, "b")
    pool.release([first])
    pool.release([second])
    pool.acquire(first)
    pool.release([first])
    take_pages(pool, 2)
    assert layers_left(pool, first) == [0, 1]
    assert second.key not in pool.blocks


def test_pages_in_use_or_dirty_or_under_way_are_never_taken() -> None:
    pool = PagePool(6, LAYERS)
    cached(pool, "used")
    dirty, loading = cached(pool, "dirty"), cached(pool, "loading")
    dirty.backed = False
    loading.loading = 1
    pool.release([dirty, loading])
    assert pool.num_available == 0
    assert take_pages(pool, 1) is None
    assert pool.take_idle(0, 1, 0) == []


def test_a_dirty_block_may_be_taken_once_it_is_below() -> None:
    pool = PagePool(2, LAYERS)
    block = cached(pool, "a")
    block.backed = False
    pool.release([block])
    assert take_pages(pool, 2) is None
    pool.set_backed([block])
    assert take_pages(pool, 2) is not None


@pytest.mark.parametrize("at", ["its beginning", "its end"])
@pytest.mark.parametrize("policy", get_args(EvictionName))
def test_what_returns_is_learnt_where_the_policy_uses_it(policy: EvictionName, at: str) -> None:
    pool = PagePool(2, LAYERS, policy)
    block = cached(pool, "a")
    if at == "its end":
        pool.leave([block])
    else:
        pool.arrive([block.key], 0)
    assert (pool.returns.kinds_of([block.key]) is not None) == (policy == "predicted")


def test_blocks_that_become_clean_together_give_their_high_layers_first() -> None:
    pool = PagePool(4, LAYERS)
    blocks = [cached(pool, "a0"), cached(pool, "a1")]
    for block in blocks:
        block.backed = False
    pool.release(blocks)
    pool.set_backed(blocks)
    take_pages(pool, 2)
    assert [layers_left(pool, block) for block in blocks] == [[0], [0]]


def test_blocks_whose_copies_are_gone_go_whole_and_as_old_as_they_are() -> None:
    pool = PagePool(8, LAYERS)
    old, new = [cached(pool, "a0"), cached(pool, "a1")], [cached(pool, "b0"), cached(pool, "b1")]
    pool.release(old)
    pool.on_time(1)
    pool.release(new)
    pool.on_time(2)
    pool.on_copies_gone([old[1].key, new[1].key, BlockKey(b"unknown")])
    assert pool.num_unsafe == 2 * LAYERS
    seen = []
    for _ in range(4):
        take_pages(pool, 1)
        seen.append([layers_left(pool, block) for block in (*old, *new)])
    assert seen == [
        [LOW, BOTH, BOTH, BOTH],
        [LOW, BOTH, LOW, BOTH],
        [NONE, BOTH, LOW, BOTH],
        [NONE, NONE, LOW, BOTH],
    ]


def test_a_part_of_a_block_whose_copy_is_gone_is_dropped_unless_it_is_loading() -> None:
    pool = PagePool(6, LAYERS)
    part, loading = cached(pool, "a"), cached(pool, "b")
    used = cached(pool, "c")
    pool.release([part, loading])
    take_pages(pool, 2)
    pool.withdraw(loading)
    loading.loading = 1
    pool.on_copies_gone([part.key, loading.key, used.key])
    assert list(pool.blocks.values()) == [loading, used] and pool.num_free == 1
    pool.release([used])
    assert pool.num_unsafe == pool.num_takeable == LAYERS
    pool.set_unbacked(used)
    pool.set_backed([used])
    assert not used.is_safe, "until a copy was committed"


@pytest.mark.parametrize("policy", get_args(EvictionName))
def test_prefetch_spares_expected_sessions_until_they_are_overdue(policy: EvictionName) -> None:
    pool = PagePool(4, LAYERS, policy)
    block = cached(pool, "a")
    other = cached(pool, "b")
    pool.release([block])
    pool.rest([block], expected_until_ns=10)
    assert pool.take_idle(9, 1, LAYERS - 1) == []
    assert len(pool.take_idle(10, 1, LAYERS - 1)) == 1
    pool.release([other])
    assert take_pages(pool, 1) is not None, "a running turn may always"


def test_a_lost_block_is_dropped_when_its_last_turn_leaves() -> None:
    pool = PagePool(2, LAYERS)
    block = cached(pool, "a")
    pool.acquire(block)
    block.lost = True
    pool.release([block])
    assert block.key in pool.blocks
    pool.release([block])
    assert not pool.blocks
    assert pool.num_free == 2


def test_sessions_that_come_and_go_leave_no_trace_behind() -> None:
    pool = PagePool(8, LAYERS)
    block = cached(pool, "a")
    pool.release([block])
    for _ in range(1000):
        pool.acquire(block)
        pool.release([block])
    num_candidates = sum(len(group.blocks) for group in pool._idle._groups.values())
    assert num_candidates == pool._idle.num_candidates <= CANDIDATES_MAX * ROWS_MIN
    assert take_pages(pool, 8) is not None


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5)), max_size=60),
    st.sampled_from(get_args(EvictionName)),
)
def test_pages_are_conserved(actions: list[tuple[int, int]], policy: EvictionName) -> None:
    pool = PagePool(9, LAYERS, policy)
    private: list[int] = []
    own: list[Block] = []
    for number, (action, choice) in enumerate(actions):
        blocks = list(pool.blocks.values())
        block = blocks[choice % len(blocks)] if blocks else None
        if action == 0 and pool.num_available >= LAYERS:
            cached(pool, str(number)).backed = bool(choice % 2)
        elif action == 1 and choice != 4:
            private += take_pages(pool, choice) or []
        elif action == 2:
            private += pool.take_idle(0, choice, choice % LAYERS)
        elif action == 4 and choice in (0, 2):
            own += pool.allocate(1 + choice)
        elif action == 4 and choice == 1:
            pool.give_back(own)
            own = []
        elif block is not None and block.refs:
            pool.release([block])
        elif block is not None and action == 3:
            pool.set_backed([block])
        elif block is not None and action == 1 and choice == 4:
            pool.on_copies_gone([block.key])
        elif block is not None and choice == 5:
            pool.acquire(block)
            if pool.num_available >= LAYERS - block.num_present:
                pool.fill(block)
            else:
                pool.release([block])
        elif block is not None and pool.is_whole(block):
            pool.acquire(block)
        held = [*pool.blocks.values(), *own]
        in_blocks = [p for b in held for p in pool.pages_of(b) if p != NO_PAGE]
        assert sorted(private + in_blocks + pool._free[: pool.num_free].tolist()) == list(range(9))
        assert sorted([*pool._free_rows, *(b.row for b in held)]) == list(range(len(pool.table)))
        idle = [b for b in pool.blocks.values() if not b.refs and b.backed]
        assert pool.num_takeable == sum(b.num_present for b in idle)
        assert pool.num_unsafe == sum(b.num_present for b in idle if not b.is_safe)
        assert all(b.group for b in idle)
        assert all(b.num_present == LAYERS for b in pool.blocks.values() if b not in idle)


def test_the_table_grows_with_the_blocks_and_keeps_their_pages() -> None:
    pool = PagePool(3 * ROWS_MIN * LAYERS, LAYERS)
    blocks = [cached(pool, str(number)) for number in range(3 * ROWS_MIN)]
    assert len({block.row for block in blocks}) == len(blocks)
    pages = [page for block in blocks for page in pool.pages_of(block)]
    assert sorted(pages) == list(range(pool.num_pages)) and not pool.allocate(1)
