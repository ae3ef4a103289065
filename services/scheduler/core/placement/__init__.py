"""Placement policies by name."""

from services.scheduler.core.placement.balance import Balance
from services.scheduler.core.placement.policy import Demand, PlacementPolicy
from services.scheduler.core.placement.symphony import Symphony

DEFAULT_POLICY = "symphony"
POLICIES: dict[str, type[PlacementPolicy]] = {
    DEFAULT_POLICY: Symphony,
    "balance": Balance,
}

__all__ = ["DEFAULT_POLICY", "POLICIES", "Balance", "Demand", "PlacementPolicy", "Symphony"]
