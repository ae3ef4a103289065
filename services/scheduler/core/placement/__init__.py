"""Placement policies by name."""

from collections.abc import Callable

from services.scheduler.core.fleet.limits import Limits
from services.scheduler.core.placement.balance import Balance
from services.scheduler.core.placement.policy import Demand, PlacementPolicy
from services.scheduler.core.placement.symphony import Symphony

DEFAULT_POLICY = "symphony"
POLICIES: dict[str, Callable[[Limits], PlacementPolicy]] = {
    DEFAULT_POLICY: Symphony,
    "balance": Balance,
}

__all__ = ["DEFAULT_POLICY", "POLICIES", "Balance", "Demand", "PlacementPolicy", "Symphony"]
