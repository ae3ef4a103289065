"""Placement policies by name."""

from collections.abc import Callable

from services.scheduler.core.turns.limits import Limits
from services.scheduler.core.turns.placement.balance import Balance
from services.scheduler.core.turns.placement.policy import Demand, PlacementPolicy

POLICIES: dict[str, Callable[[Limits], PlacementPolicy]] = {"balance": Balance}

__all__ = ["POLICIES", "Balance", "Demand", "PlacementPolicy"]
