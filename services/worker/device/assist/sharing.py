"""How many helpers compute some rows, and which rows each of them."""

from collections.abc import Mapping
from itertools import pairwise

# To give a helper one more row costs nothing as long as reading the weights takes longer. Beyond,
# another helper is worth its core when a single one takes so many times what one row takes ...
SLOWER_MAX = 2.0
# ... and longer than it takes to tell a second one and to see its answer.
WORTH_NS = 200_000


def most_ns(one_row_ns: int) -> int:
    """How long one core may take before another one helps."""
    return max(int(SLOWER_MAX * one_row_ns), WORTH_NS)


def rows_per_core(times_ns: Mapping[int, int]) -> int:
    """How many rows one core is given before another one helps.

    Args:
        times_ns: what some numbers of rows took, 1 among them.

    >>> rows_per_core({1: 150_000, 2: 160_000, 4: 290_000, 8: 310_000})
    4
    >>> rows_per_core({1: 10, 2: 50_000, 4: 190_000, 8: 310_000})
    4
    """
    most, taken = most_ns(times_ns[1]), 1
    for num_rows in sorted(times_ns):
        if times_ns[num_rows] > most:
            break
        taken = num_rows
    return taken


def share_rows(num_rows: int, rows_max: int, num_helpers: int) -> list[tuple[int, int]]:
    """First row and the one behind the last of each helper's share: as few helpers as have no more
    than `rows_max` each, or else all of them, and equal shares.

    >>> share_rows(5, rows_max=8, num_helpers=2)
    [(0, 5)]
    >>> share_rows(17, rows_max=8, num_helpers=4)
    [(0, 5), (5, 11), (11, 17)]
    >>> share_rows(99, rows_max=8, num_helpers=2)
    [(0, 49), (49, 99)]
    """
    assert num_rows >= 0 and rows_max > 0 and num_helpers > 0
    count = min(-(-num_rows // rows_max), num_helpers)
    cuts = [num_rows * each // max(count, 1) for each in range(count + 1)]
    return list(pairwise(cuts))
