"""Decisions of the tracker: pure and synchronous; the time is an argument."""

from services.tracker.core.agent_turns import AgentTurns
from services.tracker.core.effects import (
    Count,
    Drop,
    Effect,
    EndTrace,
    Expect,
    ForwardForeseen,
    ObserveLead,
    SendVerdicts,
)
from services.tracker.core.records import Record
from services.tracker.core.shards import Shards, check_foreseen
from services.tracker.core.tracker import TrackerCore
from services.tracker.core.tracker_limits import Limits

__all__ = [
    "AgentTurns",
    "Count",
    "Drop",
    "Effect",
    "EndTrace",
    "Expect",
    "ForwardForeseen",
    "Limits",
    "ObserveLead",
    "Record",
    "SendVerdicts",
    "Shards",
    "TrackerCore",
    "check_foreseen",
]
