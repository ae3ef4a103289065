"""Call graphs of agents, learned from their turns (SYMPHONY, sections 3.2 and 3.3), with which the
successors of a turn can be announced when it begins.
"""

from services.tracker.core.agents.agent_limits import AgentLimits
from services.tracker.core.agents.follower import AgentFollower, Reaction
from services.tracker.core.agents.graph import CallGraph, Successor
from services.tracker.core.agents.hints import AgentHint
from services.tracker.core.agents.stored import dump_graph, load_graph

__all__ = [
    "AgentFollower",
    "AgentHint",
    "AgentLimits",
    "CallGraph",
    "Reaction",
    "Successor",
    "dump_graph",
    "load_graph",
]
