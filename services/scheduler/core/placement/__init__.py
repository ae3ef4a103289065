"""Placement policies by name."""

from services.scheduler.core.placement.balance import Balance
from services.scheduler.core.placement.least_cost import LeastCost
from services.scheduler.core.placement.policy import Demand, PlacementPolicy

DEFAULT_POLICY = "cost"
POLICIES: dict[str, type[PlacementPolicy]] = {
    DEFAULT_POLICY: LeastCost,
    "balance": Balance,
}

__all__ = ["DEFAULT_POLICY", "POLICIES", "Balance", "Demand", "LeastCost", "PlacementPolicy"]
