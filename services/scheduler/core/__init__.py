"""Decisions of the scheduler: pure and synchronous; the time is an argument."""

from services.scheduler.core.effects import (
    CancelTurn,
    CountTurn,
    DropPrefetch,
    Effect,
    FailTurn,
    NotifyArrival,
    NotifyFrontends,
    NotifyPeer,
    NotifyPeers,
    PlacementReason,
    ProbeWorker,
    SendPrefetch,
    StartTurn,
    StartTurns,
    merge_effects,
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
    "NotifyFrontends",
    "NotifyPeer",
    "NotifyPeers",
    "PlacementPolicy",
    "PlacementReason",
    "ProbeWorker",
    "SchedulerCore",
    "SendPrefetch",
    "StartTurn",
    "StartTurns",
    "merge_effects",
]
