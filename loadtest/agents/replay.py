"""A trace of agents replayed in virtual time, so that the tracker's core learns from it."""

from collections.abc import Sequence
from heapq import heappop, heappush

from loadtest.agents.calls import AgentTrace, Call
from services.tracker.core.agents import AgentFollower, AgentLimits, CallGraph
from shared.ids import DEFAULT_TENANT, SessionId

BETWEEN_NS = 60_000_000_000  # workflows
SECOND_NS = 1_000_000_000


def learn(trace: AgentTrace, limits: AgentLimits, *, application: str = "") -> CallGraph:
    """What the production core learns from a trace, whose workflows run one after another."""
    follower = AgentFollower(limits)
    now_ns = 0
    for calls in trace.workflows():
        now_ns = _run(calls, follower, now_ns) + BETWEEN_NS
        follower.on_workflow_over(DEFAULT_TENANT, calls[0].workflow)
    return follower.graph(DEFAULT_TENANT, application)


def _run(calls: Sequence[Call], follower: AgentFollower, began_ns: int) -> int:
    """One workflow, as it was recorded; returns when its last call has ended."""
    first_s = min(call.start_s for call in calls)
    events: list[tuple[float, int, int]] = []  # when; 0: ends, 1: begins; which call
    for number, call in enumerate(calls):
        heappush(events, (call.start_s, 1, number))
    at_ns = began_ns
    while events:
        at_s, begins, number = heappop(events)
        call, at_ns = calls[number], began_ns + int((at_s - first_s) * SECOND_NS)
        names = DEFAULT_TENANT, call.workflow, call.agent, SessionId(call.session), at_ns
        if begins:
            follower.on_turn_began(*names)
            heappush(events, (call.end_s, 0, number))
        else:
            follower.on_turn_ended(*names, tools=call.tools)
    return at_ns
