"""How likely an announced turn comes, as far as earlier announcements teach (SYMPHONY, section 3.4:
some advisories are spurious).
"""

from itertools import islice

from services.tracker.core.levels import Levels, Whose
from shared.ids import TenantId

FIRST_CHANCE = 0.9  # of somebody of whom nothing is known: most that type a word send it
PRIOR_WEIGHT = 4.0  # observations that a broader level's chance counts as
HALF_LIFE_NS = 600_000_000_000
TENANTS_SHOWN_MAX = 20


class Outcomes:
    """What became of advisories, by session, application and tenant."""

    def __init__(self) -> None:
        self._levels = Levels(HALF_LIFE_NS)

    def learn(self, whose: Whose, now_ns: int, *, is_used: bool) -> None:
        """An advisory's turn came, or will not."""
        self._levels.add(whose, float(is_used), 0.0, now_ns)

    def chance(self, whose: Whose, now_ns: int) -> float:
        """Of a turn's coming that is announced now, 0 to 1."""
        chance = FIRST_CHANCE
        for sums in self._levels.read(whose, now_ns):
            chance = (sums.first + PRIOR_WEIGHT * chance) / (sums.num + PRIOR_WEIGHT)
        return chance

    def rates(self, now_ns: int) -> list[tuple[TenantId, float, float]]:
        """Of those tenants that were heard of last: the share of their advisories whose turns came,
        and how many it is of.
        """
        shown = islice(self._levels.tenants(now_ns), TENANTS_SHOWN_MAX)
        return [(tenant, sums.first / sums.num, sums.num) for tenant, sums in shown if sums.num]
