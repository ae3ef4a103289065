"""How long things take that are called by name, from how long they took.

The answer is a weighted quantile: a call that hangs once changes nothing. Old ones weigh less, by
half in `half_life_s`, so a tool that became slower is known as slow after a few calls, since only
the last `samples_max` count at all. Names are bounded: what was not used for longest goes.
"""

from bisect import insort
from collections import OrderedDict, deque
from math import isfinite

NAMES_MAX = 512
SAMPLES_MAX = 32
HALF_LIFE_S = 1800.0


class Durations:
    """Learns durations. The time is an argument, of any monotonic clock."""

    def __init__(
        self,
        *,
        names_max: int = NAMES_MAX,
        samples_max: int = SAMPLES_MAX,
        half_life_s: float = HALF_LIFE_S,
    ) -> None:
        assert names_max > 0 and samples_max > 0 and half_life_s > 0
        self._names_max = names_max
        self._samples_max = samples_max
        self._half_life_s = half_life_s
        self._samples: OrderedDict[str, deque[tuple[float, float]]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._samples)

    def learn(self, name: str, lasted_s: float, now_s: float) -> None:
        """It took so long. What is no duration is not learned from."""
        if not isfinite(lasted_s) or lasted_s < 0:
            return
        samples = self._samples.setdefault(name, deque(maxlen=self._samples_max))
        samples.append((now_s, lasted_s))
        self._samples.move_to_end(name)
        if len(self._samples) > self._names_max:
            self._samples.popitem(last=False)

    def expected(
        self, name: str, now_s: float, *, elapsed_s: float = 0.0, quantile: float = 0.5
    ) -> float | None:
        """How long it takes altogether, if it has taken `elapsed_s` already; None: unknown.

        Once it has taken longer than ever before, all that can be said is that it may end now.

        >>> durations = Durations()
        >>> for lasted_s in (1.0, 1.0, 9.0, 9.0, 9.0):
        ...     durations.learn("search", lasted_s, now_s=0.0)
        >>> durations.expected("search", 0.0), durations.expected("search", 0.0, quantile=0.1)
        (9.0, 1.0)
        >>> durations.expected("search", 0.0, elapsed_s=12.0)
        12.0
        >>> durations.expected("dig", 0.0)
        """
        samples = self._samples.get(name)
        if not samples:
            return None
        self._samples.move_to_end(name)
        longer: list[tuple[float, float]] = []
        for at_s, lasted_s in samples:
            if lasted_s >= elapsed_s:
                insort(longer, (lasted_s, 0.5 ** (max(now_s - at_s, 0.0) / self._half_life_s)))
        return _quantile(longer, quantile) if longer else elapsed_s


def _quantile(weighted: list[tuple[float, float]], quantile: float) -> float:
    """The first value, of sorted ones, up to which there is this share of all weight."""
    total = sum(weight for _, weight in weighted)
    reached = 0.0
    for value, weight in weighted:
        reached += weight
        if reached >= quantile * total:
            return value
    return weighted[-1][0]
