"""Agents' turns as they come, and the advisories that they lead to (SYMPHONY, section 3.3: at
runtime, advisories go out for all next hops of an agent as soon as it runs).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from services.tracker.core.agents import AgentFollower, AgentHint
from services.tracker.core.limits import SECOND_NS
from shared.advisory_checks import EXPECTED_ARRIVAL_MAX_S, TTL_MAX_MS
from shared.ids import TenantId
from shared.messages import Advisory, AgentTurnLeft, TurnArrived

MS_NS = 1_000_000


@dataclass(frozen=True, slots=True)
class Foreseen:
    """An advisory that nobody sent, and the chance of its turn's coming, 0 to 1."""

    advisory: Advisory
    chance: float


class AgentTurns:
    """Tells the follower of every turn that names its agent.

    Attributes:
        num_without_session: hints of agents that were not called in their workflow yet: what all
            of their prompts begin with cannot be brought up by its name yet.
    """

    def __init__(self, follower: AgentFollower) -> None:
        self._follower = follower
        self.outcomes = follower.outcomes
        self.num_without_session = 0

    def on_arrived(self, arrived: TurnArrived, now_ns: int) -> list[Foreseen]:
        """A turn was placed: what its agent is followed by is expected from now on."""
        if arrived.agent is None:
            return []
        tenant, agent = arrived.tenant, arrived.agent
        reaction = self._follower.on_turn_began(
            tenant, agent.workflow_id, agent.agent, arrived.session_id, now_ns
        )
        return list(self._foreseen(tenant, agent.workflow_id, reaction.hints, arrived.request_id))

    def on_left(self, left: AgentTurnLeft, now_ns: int) -> list[Foreseen]:
        """A turn is over; if it called tools, its session is back when they are done."""
        reaction = self._follower.on_turn_ended(
            left.tenant,
            left.agent.workflow_id,
            left.agent.agent,
            left.session_id,
            now_ns,
            tools=tuple(left.tools),
        )
        return list(self._foreseen(left.tenant, left.agent.workflow_id, reaction.hints, ""))

    def _foreseen(
        self, tenant: TenantId, workflow_id: str, hints: list[AgentHint], request_id: str
    ) -> Iterator[Foreseen]:
        for hint in hints:
            if hint.session_id is None:
                self.num_without_session += 1
                continue
            arrival = ttl_ms = None
            if hint.arrives_in_ns is not None:
                arrival = min(hint.arrives_in_ns / SECOND_NS, EXPECTED_ARRIVAL_MAX_S)
            if hint.expires_in_ns is not None:  # until then the follower takes it for announced
                ttl_ms = min(-(-hint.expires_in_ns // MS_NS), TTL_MAX_MS)
            advisory = Advisory(
                session_id=hint.session_id,
                tenant=tenant,
                expected_arrival=arrival,
                request_id=request_id,
                agent=hint.agent,
                workflow_id=workflow_id,
                ttl_ms=ttl_ms,
            )
            yield Foreseen(advisory, hint.chance)
