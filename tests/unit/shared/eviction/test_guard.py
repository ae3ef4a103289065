"""`Guard`: prediction is trusted as long as it finds about as much as least recent use."""

from collections import OrderedDict
from random import Random

import pytest

from shared.eviction.guard import MEMORY_SIZES, REST_SIZES, Guard, Part

SIZE = 100
BLOCKS = 10  # of each chain


def ask(guard: Guard, chain: int, num_found: int) -> None:
    """A turn of a chain of which so many blocks were found."""
    parts = [Part(chain, BLOCKS)]
    guard.on_arrival(parts, 0, BLOCKS, num_found)
    guard.use(parts)


def rounds(guard: Guard, num: int, num_found: int) -> None:
    """Four chains, which fit, one after the other."""
    for number in range(num):
        ask(guard, number % 4, num_found)


def test_who_finds_as_much_is_trusted() -> None:
    guard = Guard(SIZE)
    rounds(guard, 500, BLOCKS)
    assert guard.is_trusted


def test_where_nothing_is_found_that_lru_has_prediction_rests_and_is_tried_again_later() -> None:
    guard = Guard(SIZE)
    rests: list[int] = []
    was_trusted = True
    for _ in range(4000):
        rounds(guard, 1, 0)
        if was_trusted and not guard.is_trusted:
            rests.append(0)
        if not guard.is_trusted:
            rests[-1] += 1
        was_trusted = guard.is_trusted
    first = REST_SIZES * SIZE / BLOCKS
    assert rests[0] == pytest.approx(first, abs=1)
    assert rests[:4] == pytest.approx([first * 2**number for number in range(4)], abs=1)


def test_what_lru_would_not_have_either_is_no_deficit() -> None:
    """A cycle that does not fit: nothing is found by either."""
    guard = Guard(SIZE)
    for number in range(3000):
        ask(guard, number % 12, 0)
    assert guard.is_trusted


def test_a_shared_part_counts_once_and_what_follows_it_needs_it() -> None:
    guard = Guard(25)
    shared = Part(1, 10)
    for chain in (2, 3):  # 10 shared, and 5 each: all fit
        guard.use([shared, Part(chain, 15)])
    guard.on_arrival([shared, Part(2, 15)], 0, 15, 15)
    guard.use([Part(4, 20)])  # in place of the second chain and of the shared part
    before = guard._num_by_lru
    guard.on_arrival([shared, Part(3, 15)], 0, 15, 0)
    assert guard._num_by_lru == pytest.approx(before * 0.5 ** (15 / (MEMORY_SIZES * 25)))


def test_the_other_order_is_lru() -> None:
    """Beside the obvious one, of whole chains."""
    guard, random, kept = Guard(SIZE), Random(3), OrderedDict[int, int]()
    num_by_lru = 0.0
    for _ in range(2000):
        chain = random.randrange(30)
        size = 1 + chain % 17
        guard.on_arrival([Part(chain, size)], 0, size, size)
        num_by_lru = num_by_lru * 0.5 ** (size / (MEMORY_SIZES * SIZE)) + kept.get(chain, 0)
        assert guard._num_by_lru == pytest.approx(num_by_lru)
        guard.use([Part(chain, size)])
        kept.pop(chain, None)
        kept[chain] = size
        while sum(kept.values()) > SIZE:
            kept.popitem(last=False)
