"""The probability that an announced turn comes, learned from earlier advisories (SYMPHONY, section
3.4: some advisories are spurious).
"""

from itertools import islice

from services.tracker.core.levels import HintSource, Levels, Sums
from shared.ids import DEFAULT_TENANT, TenantId

FIRST_CHANCE = 0.9  # of an unknown sender: most people who begin to type send a message
DOUBTFUL_CHANCE = 0.3  # after nine that were not used, a session's is below a tenth
PRIOR_WEIGHT = 4.0  # observations that a broader level's chance counts as
HALF_LIFE_NS = 600_000_000_000
TENANTS_SHOWN_MAX = 20


class Outcomes:
    """Outcomes of advisories by session, application and tenant."""

    def __init__(self) -> None:
        self._levels = Levels(HALF_LIFE_NS)

    def learn(self, source: HintSource, now_ns: int, *, is_used: bool) -> None:
        """Learn whether an advisory's turn came. The more is known of a session, the less another
        one says about its application: however many a session sends, they count there as five.
        """
        own = self._levels.of_session(source, now_ns)
        weight = (PRIOR_WEIGHT / (PRIOR_WEIGHT + own.num)) ** 2
        self._levels.add(source, float(is_used), 0.0, now_ns, weight)

    def chance(self, source: HintSource, now_ns: int) -> float:
        """Probability that a turn announced now comes, 0 to 1.

        Where there are no tenants, a session with KV answers for itself: what came of others' makes
        it doubtful at most, and a few of its own decide.
        """
        own = self._levels.of_session(source, now_ns)
        chance = FIRST_CHANCE
        for sums in self._levels.read(source, now_ns):
            chance = chance if sums is own else _shrunk(sums, chance)
        has_tenants = source.tenant != DEFAULT_TENANT or self._levels.has_other(DEFAULT_TENANT)
        if source.has_kv and not has_tenants:
            chance = max(chance, DOUBTFUL_CHANCE)
        return _shrunk(own, chance)

    def rates(self, now_ns: int) -> list[tuple[TenantId, float, float]]:
        """For the most recently active tenants: the share of advisories source turns came, and the
        number of advisories.
        """
        shown = islice(self._levels.tenants(now_ns), TENANTS_SHOWN_MAX)
        return [(tenant, sums.first / sums.num, sums.num) for tenant, sums in shown if sums.num]


def _shrunk(sums: Sums, broader: float) -> float:
    """The share of used ones, shrunk towards the broader level's."""
    return (sums.first + PRIOR_WEIGHT * broader) / (sums.num + PRIOR_WEIGHT)
