"""From which length on history is better fetched than computed, and what workers decide."""

from collections.abc import Sequence
from dataclasses import dataclass

NEAR = 0.1  # times that differ by no more than this part are the same


@dataclass(frozen=True, slots=True)
class Length:
    """What turns took whose history is of this length, medians, ms.

    Attributes:
        fetch_ms: of a worker that fetches all of it.
        compute_ms: of one that computes all of it.
        decided_ms: of one that decides.
        share_fetched: how much of it that one did not compute.
    """

    num_tokens: int
    fetch_ms: float
    compute_ms: float
    decided_ms: float
    share_fetched: float

    @property
    def is_fetched(self) -> bool:
        """Whether the worker decided for that, at least for half of it: it may compute the end
        while the beginning comes."""
        return self.share_fetched >= 0.5

    @property
    def is_right(self) -> bool:
        """Whether it decided for the faster way, or for one that is as fast."""
        if abs(self.fetch_ms - self.compute_ms) <= NEAR * min(self.fetch_ms, self.compute_ms):
            return True
        return self.over_best <= 1 + NEAR or self.is_fetched == (self.fetch_ms < self.compute_ms)

    @property
    def over_best(self) -> float:
        """What it took, over the faster of the two ways."""
        return self.decided_ms / min(self.fetch_ms, self.compute_ms)


def crossover_tokens(lengths: Sequence[Length]) -> float | None:
    """The length from which on fetching is faster, at every measured length; between two of them as
    if what is gained grew evenly. None: it is slower at the longest.

    >>> slow, fast = Length(100, 30, 20, 20, 0), Length(200, 30, 40, 30, 1)
    >>> crossover_tokens([slow, fast]), crossover_tokens([fast]), crossover_tokens([fast, slow])
    (150.0, 200.0, None)
    """
    last_slow: Length | None = None
    first_fast: Length | None = None
    for each in lengths:
        if each.fetch_ms > each.compute_ms:
            last_slow, first_fast = each, None
        elif first_fast is None:
            first_fast = each
    if first_fast is None:
        return None
    if last_slow is None:
        return float(first_fast.num_tokens)
    lost = last_slow.fetch_ms - last_slow.compute_ms
    gained = first_fast.compute_ms - first_fast.fetch_ms
    share = lost / (lost + gained)
    return last_slow.num_tokens + share * (first_fast.num_tokens - last_slow.num_tokens)


def decided_tokens(lengths: Sequence[Length]) -> int | None:
    """The shortest measured length from which on the worker fetches; None: it computes the longest.

    >>> decided_tokens([Length(1, 1, 1, 1, 0.9), Length(2, 1, 1, 1, 0.1), Length(4, 1, 1, 1, 1.0)])
    4
    """
    found: int | None = None
    for each in lengths:
        if not each.is_fetched:
            found = None
        elif found is None:
            found = each.num_tokens
    return found
