"""Limits of what is learned about agents, and thresholds of what is announced."""

from dataclasses import dataclass

SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLimits:
    """Durations in ns, bounds in entries.

    Attributes:
        half_life: turns at the same position after which an observation counts half.
        order_max: how many agents, including the running one, predict the next: 1 or 2.
        backs_off: successors at a new position are predicted from more general tables; else not.
        chance_min: less probable successors are not announced. It is low since a wrong hint costs
            little compared to the gain of a right one (SYMPHONY, Figure 20).
        cover: successors are announced, the most probable first, until their chances sum to this.
        arrival_max_ns: later successors are not announced: no reservation is kept for so long.
        slack_ns: how long at least a successor is expected after its expected arrival, and at most
            after `arrival_max_ns`.
        hints_max: announcements that one turn leads to.
        contexts_max: positions in a call graph; the least recently seen is forgotten.
        edges_max: successors of one position; the rarest is forgotten.
        graphs_max: call graphs of all tenants and applications; the least recently used one of the
            tenant with the most is forgotten.
        workflows_max: workflows of all tenants that are followed; forgotten in the same way.
        workflow_turns_max: turns of one workflow that are remembered.
        workflow_sessions_max: sessions of one workflow that are remembered.
        workflow_idle_ns: idle time after which a workflow has ended.
        turn_ns: time after which a turn without a reported end has ended.
    """

    half_life: int = 200
    order_max: int = 2
    backs_off: bool = True
    chance_min: float = 0.1
    cover: float = 0.9
    arrival_max_ns: int = 600 * SECOND_NS
    slack_ns: int = 30 * SECOND_NS
    hints_max: int = 16
    contexts_max: int = 512
    edges_max: int = 16
    graphs_max: int = 256
    workflows_max: int = 8192
    workflow_turns_max: int = 64
    workflow_sessions_max: int = 128
    workflow_idle_ns: int = 1800 * SECOND_NS
    turn_ns: int = 600 * SECOND_NS
