"""From how often something of a kind returned at which age, what it is worth to keep it.

Ages are in bins that double in width. The *index* of an age is the best rate of returns per second
of keeping that any plan reaches which keeps from that age on and gives up at a later one: a Gittins
index. To keep what has the largest index at every instant is the best order for memory of a fixed
size where many things come and go (as the hit density of LHD, Beckmann et al., NSDI '18, with the
horizon chosen for each age).
"""

from collections.abc import Sequence

FIRST_BIN_BITS = 28  # the first bin ends at 2**28 ns, about a quarter of a second
NUM_BINS = 21  # the last one begins after three days, and has no end
EDGES_NS = (0, *(1 << (FIRST_BIN_BITS + number) for number in range(NUM_BINS)))
PRIOR_HAZARDS = tuple(0.1 / (2 * number + 5) for number in range(NUM_BINS))
HAZARD_MAX = 0.98


def bin_of(age_ns: int) -> int:
    """Which bin an age is in; one below 0 counts as 0.

    >>> bin_of(-1), bin_of(1 << 28), bin_of((1 << 29) - 1), bin_of(1 << 60)
    (0, 1, 1, 20)
    """
    number = (max(age_ns, 0) >> FIRST_BIN_BITS).bit_length()
    return number if number < NUM_BINS else NUM_BINS - 1


def indices(hazards: Sequence[float]) -> list[float]:
    """The index at the beginning of each bin, in returns per second.

    Of what reaches a bin, the share `hazards[bin]` returns within it, in the mean in its middle.
    The slope of the upper hull of (seconds kept, returns), walked from the end: O(bins).

    >>> never, soon = [0.0] * NUM_BINS, [0.5] + [0.0] * (NUM_BINS - 1)
    >>> indices(never)[0], round(indices(soon)[0], 2), indices(soon)[1]
    (0.0, 2.48, 0.0)
    """
    kept, returned, alive = [0.0], [0.0], 1.0
    for number, hazard in enumerate(hazards):
        width_s = (EDGES_NS[number + 1] - EDGES_NS[number]) / 1e9
        gone = alive * min(hazard, HAZARD_MAX)
        kept.append(kept[-1] + (alive - gone / 2) * width_s)
        returned.append(returned[-1] + gone)
        alive -= gone
    found = [0.0] * NUM_BINS
    hull = [NUM_BINS]  # the next corner is last
    for at in range(NUM_BINS - 1, -1, -1):
        x, y = kept[at], returned[at]
        while len(hull) > 1:
            near, far = hull[-1], hull[-2]
            if (returned[near] - y) * (kept[far] - x) > (returned[far] - y) * (kept[near] - x):
                break
            hull.pop()
        found[at] = (returned[hull[-1]] - y) / (kept[hull[-1]] - x)
        hull.append(at)
    return found
