"""Limits of what announced turns may hold, in every service: a hint is an untrusted guess."""

from collections import Counter

from shared.ids import TenantId

# How long after its expected turn something is held for a hint, whatever its expiry.
HINT_HOLD_NS = 120_000_000_000
HINTED_SHARE = 0.8  # of pages; the rest is always left for new KV and arrived turns
TENANT_SHARE = 0.6  # of pages; the rest is left for other tenants


class HintShares:
    """Counts how much hints hold, in total and per tenant.

    Args:
        most: limit of the total.
        most_of_one: limit of one tenant.
    """

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._num_of: Counter[TenantId] = Counter()
        self.num_held = 0

    @classmethod
    def of_pages(cls, num_pages: int) -> "HintShares":
        """The shares of a host memory tier or a GPU pool."""
        return cls(int(HINTED_SHARE * num_pages), int(TENANT_SHARE * num_pages))

    def resize(self, num_pages: int) -> None:
        """Set the number of pages."""
        self._most = int(HINTED_SHARE * num_pages)
        self._most_of_one = int(TENANT_SHARE * num_pages)

    def held_by(self, tenant: TenantId) -> int:
        """How much a tenant's hints hold."""
        return self._num_of[tenant]

    def room(self, tenant: TenantId) -> int:
        """How much more a tenant's hints may hold now."""
        of_one = self._most_of_one - self._num_of[tenant]
        return max(min(of_one, self._most - self.num_held), 0)

    def take(self, tenant: TenantId, num: int) -> None:
        """Count more as held."""
        self.num_held += num
        self._num_of[tenant] += num

    def give(self, tenant: TenantId, num: int) -> None:
        """Count as released."""
        self.num_held -= num
        self._num_of[tenant] -= num
        if not self._num_of[tenant]:
            del self._num_of[tenant]
