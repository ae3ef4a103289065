"""Placement policies by name."""

from collections.abc import Callable

from services.scheduler.core.limits import Limits
from services.scheduler.core.placement.balance import Balance
from services.scheduler.core.placement.policy import PlacementPolicy

POLICIES: dict[str, Callable[[Limits], PlacementPolicy]] = {"balance": Balance}

__all__ = ["POLICIES", "Balance", "PlacementPolicy"]
