"""Decisions of the tracker: pure, synchronous, told the time."""

from services.tracker.core.agent_turns import AgentTurns
from services.tracker.core.effects import Count, Drop, Effect, Expect, SeeLead, Tell
from services.tracker.core.limits import Limits
from services.tracker.core.records import Record
from services.tracker.core.tracker import TrackerCore

__all__ = [
    "AgentTurns",
    "Count",
    "Drop",
    "Effect",
    "Expect",
    "Limits",
    "Record",
    "SeeLead",
    "Tell",
    "TrackerCore",
]
