"""Numbers that bound what is learned of agents, and that decide what is announced."""

from dataclasses import dataclass

SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLimits:
    """Durations in ns, bounds in entries.

    Attributes:
        half_life: turns in the same place after which what was learned counts half.
        order_max: how many agents, the one that runs included, predict the next: 1 or 2.
        backs_off: an agent that is new here is predicted as others are; else not at all.
        chance_min: a successor below it is not announced: a hint that is wrong costs little beside
            what a right one gains (SYMPHONY, Figure 20).
        cover: successors are announced, the likeliest first, until their chances make this up.
        arrival_max_ns: what is expected later is not announced: nobody keeps a place for so long.
        slack_ns: how long after it is expected a successor is still expected at least, as of any
            advisory. None is for longer than so long after `arrival_max_ns`.
        hints_max: announced at once of one turn, whatever was learned.
        contexts_max: places in a call graph; the one not seen for longest is forgotten.
        edges_max: successors of one place; the rarest is forgotten.
        graphs_max: call graphs of all tenants and applications; of the tenant that has most of
            them, the one not used for longest is forgotten.
        workflows_max: of all tenants, followed at once; forgotten likewise.
        workflow_turns_max: turns of one workflow that are remembered.
        workflow_sessions_max: sessions of one workflow that are remembered.
        workflow_idle_ns: a workflow that nothing is heard of for so long is over.
        turn_ns: a turn of which no end is heard is taken to be over.
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
