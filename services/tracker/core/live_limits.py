"""Limits of live advisories: of all, of one tenant, of sessions without KV, and of those that no
client announced.
"""

from collections import Counter

from services.tracker.core.records import Record, SessionKey
from services.tracker.core.tracker_limits import Limits
from shared.errors import NoCapacity, TenantQuota
from shared.ids import TenantId
from shared.locations import worth_keeping
from shared.wire.messages import Advisory

FORESEEN_SHARE = 4  # at most one of so many live advisories was announced by no client
UNKNOWN_SHARE = 2  # at most one of so many is of a session without KV: those can be invented


class LiveLimits:
    """Counts live advisories and refuses new ones above the limits.

    Attributes:
        num_foreseen: live advisories that only this tracker expects.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._num_live = 0
        self._num_of: Counter[TenantId] = Counter()
        self._unknown: set[SessionKey] = set()
        self.num_foreseen = 0

    def check(self, advisory: Advisory, *, is_foreseen: bool) -> None:
        """Whether one more advisory is allowed.

        Raises:
            NoCapacity: too many advisories are live.
            TenantQuota: too many of the tenant's are.
        """
        limits = self._limits
        if 0 < limits.tenant_advisories_max <= self._num_of[advisory.tenant]:
            raise TenantQuota(
                f"this tenant has too many advisories live: {limits.tenant_advisories_max}"
            )
        is_full = self._num_live >= limits.advisories_max
        if is_foreseen:
            is_full = is_full or self.num_foreseen * FORESEEN_SHARE >= limits.advisories_max
        elif not worth_keeping(advisory.kv_at):
            is_full = is_full or len(self._unknown) * UNKNOWN_SHARE >= limits.advisories_max
        if is_full:
            raise NoCapacity("too many advisories are live")

    def add(self, record: Record) -> None:
        """Count a new live advisory."""
        self._num_live += 1
        self._num_of[record.key[0]] += 1
        self.num_foreseen += record.origin.is_own
        if not (record.origin.is_own or record.origin.has_kv):
            self._unknown.add(record.key)

    def remove(self, record: Record) -> None:
        """Uncount an advisory that ended."""
        self._num_live -= 1
        self.num_foreseen -= record.origin.is_own
        self._unknown.discard(record.key)
        tenant = record.key[0]
        self._num_of[tenant] -= 1
        if not self._num_of[tenant]:
            del self._num_of[tenant]
