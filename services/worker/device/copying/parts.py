"""A pool whose memory is in several parts of equal length, one behind the other."""

from collections.abc import Iterator

import numpy as np

from kernels.page_sums.select import PageNumbers
from shared.arena import Pages


def by_part(pool_pages: PageNumbers, part_pages: int) -> Iterator[tuple[int, Pages, Pages]]:
    """Pages of a pool by the part that they are in: its number, where in the list its pages stand,
    and their numbers within the part.

    >>> [(part, at.tolist(), pages.tolist()) for part, at, pages in by_part([12, 3, 10], 10)]
    [(0, [1], [3]), (1, [0, 2], [2, 0])]
    """
    parts, pages = np.divmod(np.asarray(pool_pages, np.int64), part_pages)
    for part in np.unique(parts).tolist():
        at = np.flatnonzero(parts == part)
        yield part, at, pages[at]
