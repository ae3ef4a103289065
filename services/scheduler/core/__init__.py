"""Decisions of the scheduler: pure and synchronous; the time is an argument."""

from services.scheduler.core.base.effects import (
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
    PublishAdvice,
    SendPrefetch,
    StartTurn,
    StartTurns,
    merge_effects,
)
from services.scheduler.core.fleet.fleet_limits import Limits
from services.scheduler.core.placement import DEFAULT_POLICY, POLICIES, PlacementPolicy
from services.scheduler.core.turns.core import SchedulerCore

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
    "PublishAdvice",
    "SchedulerCore",
    "SendPrefetch",
    "StartTurn",
    "StartTurns",
    "merge_effects",
]
