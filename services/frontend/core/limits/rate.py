"""Rate limit of each tenant."""

from collections.abc import Callable
from math import ceil

from shared.errors import TenantQuota
from shared.ids import TenantId

MINUTE_NS = 60_000_000_000
FULL_ONES_MAX = 1024  # tenants; above this, those with a full allowance are forgotten


class TenantRate:
    """So many a minute for each tenant; a whole minute's worth may come at once.

    Args:
        per_minute: 0: any number.
        what: they are called, in plural.
    """

    def __init__(self, per_minute: int, what: str, now_ns: Callable[[], int]) -> None:
        self._per_minute = per_minute
        self._what = what
        self._now_ns = now_ns
        self._free_at_ns: dict[TenantId, int] = {}  # when it has a whole minute's worth again

    def take(self, tenant: TenantId) -> None:
        """Count one more.

        Raises:
            TenantQuota: it is too early for another one.
        """
        if not self._per_minute:
            return
        now_ns, step_ns = self._now_ns(), MINUTE_NS // self._per_minute
        free_at_ns = max(self._free_at_ns.get(tenant, now_ns), now_ns) + step_ns
        if (early_ns := free_at_ns - now_ns - MINUTE_NS) > 0:
            raise TenantQuota(
                f"this tenant has made too many {self._what}: it may make {self._per_minute} a "
                "minute",
                retry_after_s=ceil(early_ns / 1e9),
            )
        self._free_at_ns[tenant] = free_at_ns
        if len(self._free_at_ns) > FULL_ONES_MAX:
            self._free_at_ns = {of: at for of, at in self._free_at_ns.items() if at > now_ns}
