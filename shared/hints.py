"""Limits of what announced turns may hold, in every service: a hint is an untrusted guess."""

from collections import Counter

from shared.ids import DEFAULT_TENANT, TenantId
from shared.owners import OwnerKey

# How long after its expected turn something is held for a hint, whatever its expiry.
HINT_HOLD_NS = 120_000_000_000
HINTED_SHARE = 0.8  # of pages; the rest is always left for new KV and arrived turns
SHARE_OF_ONE = 0.6  # of pages, of one tenant; the rest is left for the others


class HintShares:
    """Counts how much hints hold: in total, and of one tenant.

    Where there are no tenants, which is to say no hint of another than the default one has come,
    the limit of one is each session's instead, and hints together may hold all of the total.

    Args:
        most: limit of the total.
        most_of_one: limit of one tenant.
    """

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._num_of: Counter[TenantId | OwnerKey] = Counter()
        self._has_tenants = False
        self.num_held = 0

    @classmethod
    def of_pages(cls, num_pages: int) -> "HintShares":
        """The shares of a host memory tier or a GPU pool."""
        return cls(int(HINTED_SHARE * num_pages), int(SHARE_OF_ONE * num_pages))

    def resize(self, num_pages: int) -> None:
        """Set the number of pages."""
        self._most = int(HINTED_SHARE * num_pages)
        self._most_of_one = int(SHARE_OF_ONE * num_pages)

    def room(self, tenant: TenantId, owner: OwnerKey) -> int:
        """How much more a session's hints may hold now.

        Args:
            owner: the session.
        """
        self._has_tenants = self._has_tenants or tenant != DEFAULT_TENANT
        of_one = self._most_of_one - self._num_of[tenant if self._has_tenants else owner]
        return max(min(of_one, self._most - self.num_held), 0)

    def take(self, tenant: TenantId, owner: OwnerKey, num: int) -> None:
        """Count more as held."""
        self.num_held += num
        self._num_of[tenant] += num
        self._num_of[owner] += num

    def give(self, tenant: TenantId, owner: OwnerKey, num: int) -> None:
        """Count as released."""
        self.num_held -= num
        for name in (tenant, owner):
            self._num_of[name] -= num
            if not self._num_of[name]:
                del self._num_of[name]
