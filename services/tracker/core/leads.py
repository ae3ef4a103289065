"""How long after its advisory a turn comes that was announced for no instant in particular.

The logarithms of such leads are taken to be normally distributed, as times are that people take to
read and to type. Of a session little is seen: its mean and spread are drawn towards those of its
application, and these towards the tenant's.
"""

from dataclasses import dataclass
from math import exp, log, sqrt

from services.tracker.core.levels import Levels, Whose

NUM_MIN = 20.0  # of a tenant's: before so many, nothing is said
PRIOR_WEIGHT = 8.0
HALF_LIFE_NS = 6 * 3600 * 1_000_000_000  # people and programs stay as fast as they are
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

    def learn(self, whose: Whose, lead_s: float, now_ns: int) -> None:
        """A turn came so long after its advisory, which had not said when."""
        value = log(max(lead_s, LEAD_MIN_S))
        self._levels.add(whose, value, value * value, now_ns)

    def expected(self, whose: Whose, now_ns: int) -> Lead | None:
        """When the turn of an advisory comes that says nothing of it; None: too little is known."""
        mean = square = 0.0
        is_known = False
        for sums in self._levels.read(whose, now_ns):
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
