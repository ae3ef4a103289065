"""Which adapters a batch asks for (Punica, section 7)."""

import math
from collections.abc import Callable

SKEW = 1.5  # requests to an adapter over those to the next popular one


def distinct(batch: int) -> list[int]:
    """Rows of each adapter: one.

    >>> distinct(3)
    [1, 1, 1]
    """
    return [1] * batch


def uniform(batch: int) -> list[int]:
    """As many rows for each of ceil(sqrt(n)) adapters.

    >>> uniform(8), uniform(1)
    ([3, 3, 2], [1])
    """
    count = math.isqrt(batch - 1) + 1
    return [batch // count + (number < batch % count) for number in range(count)]


def skewed(batch: int) -> list[int]:
    """Each adapter has `SKEW` times the rows of the next.

    >>> skewed(8), skewed(32), skewed(1)
    ([3, 2, 1, 1, 1], [11, 7, 5, 3, 2, 2, 1, 1], [1])
    """
    rows, left = [], batch
    while left:
        rows.append(max(1, math.floor(left * (1 - 1 / SKEW) + 0.5)))
        left -= rows[-1]
    return rows


def identical(batch: int) -> list[int]:
    """All rows for one adapter."""
    return [batch]


POPULARITIES: dict[str, Callable[[int], list[int]]] = {
    "distinct": distinct,
    "uniform": uniform,
    "skewed": skewed,
    "identical": identical,
}
