"""Fetch or recompute: how much of what the kvstore has of a prompt to bring up.

Its beginning is fetched while its end is computed: a pass that computes the end needs the
beginning's first layer first, and the others come in behind it. So both ways run at once, and the
prompt is done when the slower of them is: soonest where they take equally long.
"""

from collections.abc import Callable
from dataclasses import dataclass

WORTH = 1.1  # so much later, computing less is worth it: others want the device as well


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """What staged blocks take to be on the device, by what was promised and measured.

    Attributes:
        num_blocks: that are staged.
        num_here: the first of them that are in the arena already.
        wait_ns: before the first of those that come from below are in the arena.
        source_ns: what they take then, all of them.
        link_ns: what all staged blocks take from the arena to the device.
    """

    num_blocks: int
    num_here: int = 0
    wait_ns: float = 0.0
    source_ns: float = 0.0
    link_ns: float = 0.0

    def fetch_ns(self, num_blocks: int) -> float:
        """When so many leading blocks are here, from now. Layers pass both ways one behind the
        other, so the slower of the two counts."""
        if not num_blocks:
            return 0.0
        link_ns = num_blocks / self.num_blocks * self.link_ns
        return max(self.ready_ns(num_blocks), link_ns)

    def ready_ns(self, num_blocks: int) -> float:
        """When so many leading blocks are in the arena, from now."""
        if not self.source_ns or num_blocks <= self.num_here:
            return 0.0
        share = (num_blocks - self.num_here) / (self.num_blocks - self.num_here)
        return self.wait_ns + share * self.source_ns


def blocks_to_fetch(supply: Supply, compute_ns: Callable[[int], float]) -> int:
    """So many leading staged blocks are worth bringing up.

    Args:
        compute_ns: what computing all behind so many staged blocks takes.

    >>> compute_ns = lambda num: 20.0 * (10 - num)
    >>> [blocks_to_fetch(Supply(num_blocks=9, link_ns=ns), compute_ns) for ns in (9, 90, 540)]
    [9, 7, 2]
    >>> [blocks_to_fetch(Supply(num_blocks=9, num_here=num, wait_ns=300, source_ns=9), compute_ns)
    ...  for num in (0, 4)]
    [0, 4]
    """
    num = _first(supply.num_blocks, lambda at: supply.fetch_ns(at) >= compute_ns(at))
    soonest_ns = max(supply.fetch_ns(num), compute_ns(num))
    if num:
        soonest_ns = min(soonest_ns, compute_ns(num - 1))
    return _first(supply.num_blocks + 1, lambda at: supply.fetch_ns(at) > WORTH * soonest_ns) - 1


def _first(end: int, is_so: Callable[[int], bool]) -> int:
    """The first number below `end` of which it is so, as it is of all behind that; else `end`."""
    first = 0
    while first < end:
        middle = (first + end) // 2
        if is_so(middle):
            end = middle
        else:
            first = middle + 1
    return first
