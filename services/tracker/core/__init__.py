"""Decisions of the tracker: pure, synchronous, told the time."""

from services.tracker.core.agent_turns import AgentTurns
from services.tracker.core.effects import (
    Count,
    Drop,
    Effect,
    EndTrace,
    Expect,
    Pass,
    SeeLead,
    Tell,
)
from services.tracker.core.limits import Limits
from services.tracker.core.records import Record
from services.tracker.core.shards import Shards, check_foreseen
from services.tracker.core.tracker import TrackerCore

__all__ = [
    "AgentTurns",
    "Count",
    "Drop",
    "Effect",
    "EndTrace",
    "Expect",
    "Limits",
    "Pass",
    "Record",
    "SeeLead",
    "Shards",
    "Tell",
    "TrackerCore",
    "check_foreseen",
]
