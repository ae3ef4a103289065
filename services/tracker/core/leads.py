"""The time from an advisory without an arrival time to its turn.

Such leads are modelled as log-normal, like the times in which people read and type. A session has
few observations: its mean and spread are shrunk towards those of its application, and these towards
the tenant's.
"""

from dataclasses import dataclass
from math import exp, log, sqrt

from services.tracker.core.levels import HintSource, Levels

NUM_MIN = 20.0  # observations of a tenant below which there is no estimate
PRIOR_WEIGHT = 8.0
HALF_LIFE_NS = 6 * 3600 * 1_000_000_000  # people and programs rarely change their speed
LEAD_MIN_S = 0.01
SPREAD_MIN = 0.1  # of the logarithm
EARLY, LATE = -2.0, 2.5  # standard deviations: 2% come before the one, 0.6% after the other


@dataclass(frozen=True, slots=True)
class Lead:
    """Attributes:
    early_s: hardly any turn comes sooner after its advisory.
    late_s: hardly any comes later.
    """

    early_s: float
    late_s: float


class Leads:
    """Leads by session, application and tenant."""

    def __init__(self) -> None:
        self._levels = Levels(HALF_LIFE_NS)

    def learn(self, source: HintSource, lead_s: float, now_ns: int) -> None:
        """Learn the lead of an advisory without an arrival time."""
        value = log(max(lead_s, LEAD_MIN_S))
        self._levels.add(source, value, value * value, now_ns)

    def expected(self, source: HintSource, now_ns: int) -> Lead | None:
        """The expected lead of an advisory without an arrival time; None: too few observations."""
        mean = square = 0.0
        is_known = False
        for sums in self._levels.read(source, now_ns):
            if not is_known:
                if sums.num < NUM_MIN:
                    return None
                is_known, mean, square = True, sums.first / sums.num, sums.second / sums.num
                continue
            weight = sums.num + PRIOR_WEIGHT
            mean = (sums.first + PRIOR_WEIGHT * mean) / weight
            square = (sums.second + PRIOR_WEIGHT * square) / weight
        if not is_known:
            return None
        spread = max(sqrt(max(square - mean * mean, 0.0)), SPREAD_MIN)
        return Lead(exp(mean + EARLY * spread), exp(mean + LATE * spread))
