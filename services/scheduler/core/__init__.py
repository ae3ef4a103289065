"""Decisions of the scheduler: pure, synchronous, told the time."""

from services.scheduler.core.effects import (
    CancelTurn,
    CountTurn,
    DropPrefetch,
    Effect,
    FailTurn,
    NotifyArrival,
    PlacementReason,
    ProbeWorker,
    SendPrefetch,
    StartTurn,
    StartTurns,
    TellOthers,
    TellPlace,
    TellPlaced,
    together,
)
from services.scheduler.core.turns.core import SchedulerCore
from services.scheduler.core.turns.limits import Limits
from services.scheduler.core.turns.placement import DEFAULT_POLICY, POLICIES, PlacementPolicy

__all__ = [
    "DEFAULT_POLICY",
    "POLICIES",
    "CancelTurn",
    "CountTurn",
    "DropPrefetch",
    "Effect",
    "FailTurn",
    "Limits",
    "NotifyArrival",
    "PlacementPolicy",
    "PlacementReason",
    "ProbeWorker",
    "SchedulerCore",
    "SendPrefetch",
    "StartTurn",
    "StartTurns",
    "TellOthers",
    "TellPlace",
    "TellPlaced",
    "together",
]
