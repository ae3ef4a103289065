"""What announced turns may pin of an arena: a share of it, and each tenant a share of that. New KV,
and turns that are here, find pages whatever is announced.
"""

from collections import Counter

from shared.ids import TenantId

HINTED_SHARE = 0.8
TENANT_SHARE = 0.6  # so that there is some left when others come


class HintedPins:
    """Args:
    num_pages: of the arena.
    """

    def __init__(self, num_pages: int) -> None:
        self._most = int(HINTED_SHARE * num_pages)
        self._most_of_one = int(TENANT_SHARE * num_pages)
        self._num_pinned = 0
        self._num_pinned_by: Counter[TenantId] = Counter()

    def room(self, tenant: TenantId) -> int:
        """Pages that may be pinned for it now."""
        of_one = self._most_of_one - self._num_pinned_by[tenant]
        return max(min(of_one, self._most - self._num_pinned), 0)

    def pin(self, tenant: TenantId, num_pages: int) -> None:
        """So many more are."""
        self._num_pinned += num_pages
        self._num_pinned_by[tenant] += num_pages

    def unpin(self, tenant: TenantId, num_pages: int) -> None:
        """So many are not any more."""
        self._num_pinned -= num_pages
        self._num_pinned_by[tenant] -= num_pages
        if not self._num_pinned_by[tenant]:
            del self._num_pinned_by[tenant]
