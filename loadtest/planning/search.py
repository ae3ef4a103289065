"""The search for the smallest number of GPUs that is enough, with some runs at a time.

A run's verdict is noisy near the boundary, so what counts is the largest number that was not
enough: the answer is the smallest above it that was. From the guess on it goes up until one is
enough; then the gap below is divided evenly until it is narrow.
"""

from math import ceil

GROWTH = 1.25  # of what is tried next while nothing was enough
NARROW = 12  # a gap of this part of the answer is narrow enough; one, of small answers


class GpuSearch:
    """Args:
    first: where to begin, at least 1.
    floor: neither it nor anything below is tried.
    most: nothing above is tried.
    runs_max: trials at most; `at_once`: of them in one round.
    """

    def __init__(self, first: int, floor: int, most: int, runs_max: int, at_once: int = 2) -> None:
        assert 0 <= floor < most and first >= 1 and runs_max >= 1 and at_once >= 1
        self._most = most
        self._floor = floor
        self._first = min(max(first, floor + 1), most)
        self._runs_left = runs_max
        self._at_once = at_once
        self._verdicts: dict[int, bool] = {}

    @property
    def short(self) -> int:
        """The largest number that was not enough; the floor if there is none."""
        return max((n for n, is_good in self._verdicts.items() if not is_good), default=self._floor)

    @property
    def enough(self) -> int | None:
        """The smallest number above `short` that was; None: none yet."""
        short = self.short
        return min(
            (n for n, is_good in self._verdicts.items() if is_good and n > short), default=None
        )

    def next_round(self) -> list[int]:
        """What to try now, ascending; nothing: it is over."""
        limit = min(self._at_once, self._runs_left)
        if limit <= 0:
            return []
        short, enough = self.short, self.enough
        if enough is None:
            return self._above(short, limit)
        gap = enough - short
        if gap <= max(enough // NARROW, 1):
            return []
        if short not in self._verdicts:  # far below runs take the longest and say the least
            return [max(min(int(enough / GROWTH), enough - 1), short + 1)]
        inner = {short + max(gap * part // (limit + 1), 1) for part in range(1, limit + 1)}
        return sorted(n for n in inner if short < n < enough)

    def _above(self, short: int, limit: int) -> list[int]:
        tried: list[int] = []
        last = max(short, self._first - 1)
        while len(tried) < limit and last < self._most:
            grown = last + 1 if last < self._first else max(ceil(last * GROWTH), last + 1)
            last = min(grown, self._most)
            tried.append(last)
        return tried

    def on_verdict(self, gpus: int, *, is_enough: bool) -> None:
        """What a trial said."""
        self._verdicts[gpus] = is_enough
        self._runs_left -= 1
