"""What announced turns may hold, in every service: a hint is a guess, and a stranger's."""

from collections import Counter

from shared.ids import TenantId

# So long after its turn was expected nothing is held for a hint, however long it lives.
HINT_HOLD_NS = 120_000_000_000
HINTED_SHARE = 0.8  # of pages: new KV, and turns that are here, find some whatever is announced
TENANT_SHARE = 0.6  # so that there is some left when others come


class HintShares:
    """How much of something hints hold, all of them and each tenant's.

    Args:
        most: of all.
        most_of_one: of one tenant's.
    """

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._num_of: Counter[TenantId] = Counter()
        self.num_held = 0

    @classmethod
    def of_pages(cls, num_pages: int) -> "HintShares":
        """Of an arena or a pool."""
        return cls(int(HINTED_SHARE * num_pages), int(TENANT_SHARE * num_pages))

    def resize(self, num_pages: int) -> None:
        """There are so many pages now."""
        self._most = int(HINTED_SHARE * num_pages)
        self._most_of_one = int(TENANT_SHARE * num_pages)

    def held_by(self, tenant: TenantId) -> int:
        """How much a tenant's hold."""
        return self._num_of[tenant]

    def room(self, tenant: TenantId) -> int:
        """How much more a tenant's may hold now."""
        of_one = self._most_of_one - self._num_of[tenant]
        return max(min(of_one, self._most - self.num_held), 0)

    def take(self, tenant: TenantId, num: int) -> None:
        """So much more is held."""
        self.num_held += num
        self._num_of[tenant] += num

    def give(self, tenant: TenantId, num: int) -> None:
        """So much is not held any more."""
        self.num_held -= num
        self._num_of[tenant] -= num
        if not self._num_of[tenant]:
            del self._num_of[tenant]
