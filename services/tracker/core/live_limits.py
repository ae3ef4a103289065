"""Limits of live advisories: of all, of one tenant, and of those that no client announced."""

from collections import Counter

from services.tracker.core.records import Record
from services.tracker.core.tracker_limits import Limits
from shared.errors import NoCapacity, TenantQuota
from shared.ids import TenantId

FORESEEN_SHARE = 4  # at most one of so many live advisories was announced by no client


class LiveLimits:
    """Counts live advisories and refuses new ones above the limits.

    Attributes:
        num_foreseen: live advisories that only this tracker expects.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._num_live = 0
        self._num_of: Counter[TenantId] = Counter()
        self.num_foreseen = 0

    def check(self, tenant: TenantId, *, is_foreseen: bool) -> None:
        """Whether one more advisory is allowed.

        Raises:
            NoCapacity: too many advisories are live.
            TenantQuota: too many of the tenant's are.
        """
        limits = self._limits
        if 0 < limits.tenant_advisories_max <= self._num_of[tenant]:
            raise TenantQuota(
                f"this tenant has too many advisories live: {limits.tenant_advisories_max}"
            )
        is_full = self._num_live >= limits.advisories_max
        if is_full or (is_foreseen and self.num_foreseen * FORESEEN_SHARE >= limits.advisories_max):
            raise NoCapacity("too many advisories are live")

    def add(self, record: Record) -> None:
        """Count a new live advisory."""
        self._num_live += 1
        self._num_of[record.key[0]] += 1
        self.num_foreseen += record.origin.is_own

    def remove(self, record: Record) -> None:
        """Uncount an advisory that ended."""
        self._num_live -= 1
        self.num_foreseen -= record.origin.is_own
        tenant = record.key[0]
        self._num_of[tenant] -= 1
        if not self._num_of[tenant]:
            del self._num_of[tenant]
