"""A distribution of delays, of bounded size."""

import math

FIRST_NS = 1_000_000  # shorter delays share one bucket
BUCKETS_AN_OCTAVE = 4
LAST_BUCKET = 27 * BUCKETS_AN_OCTAVE  # begins at 37 hours


class Delays:
    """A histogram over logarithmic buckets: a quantile is right within 9% of the delay.

    >>> delays = Delays()
    >>> for seconds in (1, 2, 3, 4, 100):
    ...     delays.add(seconds * 1_000_000_000)
    >>> round(delays.quantile(0.5) / 1e9)
    3
    """

    def __init__(self, weights: dict[int, float] | None = None) -> None:
        self.weights: dict[int, float] = weights if weights is not None else {}

    def add(self, delay_ns: int, kept: float = 1.0) -> None:
        """Add a delay, and decay the weight of earlier ones by `kept`."""
        for bucket in self.weights:
            self.weights[bucket] *= kept
        bucket = _bucket(delay_ns)
        self.weights[bucket] = self.weights.get(bucket, 0.0) + 1.0

    def quantile(self, share: float) -> int:
        """The delay in ns that `share` of all do not exceed.

        There must be one (`weights` is not empty).
        """
        assert self.weights, "there is no delay"
        wanted = share * sum(self.weights.values())
        for bucket in sorted(self.weights):
            wanted -= self.weights[bucket]
            if wanted <= 0:
                break
        return int(FIRST_NS * 2 ** ((bucket + 0.5) / BUCKETS_AN_OCTAVE))


def _bucket(delay_ns: int) -> int:
    if delay_ns <= FIRST_NS:
        return 0
    return min(int(math.log2(delay_ns / FIRST_NS) * BUCKETS_AN_OCTAVE), LAST_BUCKET)
