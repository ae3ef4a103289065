"""Agents' turns and the advisories that they lead to (SYMPHONY, section 3.3: at runtime, advisories
are sent for all next hops of an agent as soon as it runs).
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from services.tracker.core.agents import AgentFollower, AgentHint
from services.tracker.core.agents.prefixes import AgentKey, AgentPrefixes
from services.tracker.core.tracker_limits import SECOND_NS
from shared.blocks import prefix_keys
from shared.errors import MalformedMessage
from shared.ids import SessionId, TenantId
from shared.wire.advisory_checks import EXPECTED_ARRIVAL_MAX_S, TTL_MAX_MS
from shared.wire.messages import (
    Advisory,
    AgentPrefix,
    AgentRef,
    AgentTurnLeft,
    TurnArrived,
    prefix_session,
)

MS_NS = 1_000_000


@dataclass(frozen=True, slots=True)
class Foreseen:
    """An advisory that the tracker makes itself.

    Attributes:
        chance: probability that its turn comes, 0 to 1.
        prefix: the agent's prompt prefix, in place of a session that is not known yet.
        is_handed_on: another shard of the tracker forwarded it.
    """

    advisory: Advisory
    chance: float
    prefix: AgentPrefix | None = None
    is_handed_on: bool = False


@dataclass(frozen=True, slots=True)
class Followed:
    """What a turn's arrival leads to.

    Attributes:
        expected_as: the session name under which it was expected, if not its own.
        foreseen: turns that probably follow it.
    """

    expected_as: SessionId | None = None
    foreseen: list[Foreseen] = field(default_factory=list)


class AgentTurns:
    """Passes every turn that names its agent to the follower.

    Attributes:
        num_of_prefix: hints for sessions that are not known yet, for which the agent's prompt
            prefix is prefetched.
        num_without_session: such hints of agents whose prompt prefix is unknown.
    """

    def __init__(self, follower: AgentFollower) -> None:
        self._follower = follower
        self._prefixes = AgentPrefixes()
        self.outcomes = follower.outcomes
        self.num_of_prefix = 0
        self.num_without_session = 0

    def counts(self) -> dict[str, int]:
        """All hints so far, by outcome."""
        outcomes = self.outcomes
        return {
            "given": outcomes.num_given,
            "used": outcomes.num_used,
            "expired": outcomes.num_expired,
            "of_prefix": self.num_of_prefix,
            "without_session": self.num_without_session,
        }

    def on_arrived(self, arrived: TurnArrived, now_ns: int) -> Followed:
        """A turn was placed: expect its agent's successors."""
        if arrived.agent is None:
            return Followed()
        tenant, agent = arrived.tenant, arrived.agent
        reaction = self._follower.on_turn_began(
            tenant, agent.workflow_id, agent.agent, arrived.session_id, now_ns
        )
        is_new = reaction.used is not None and reaction.used.hint.session_id is None
        foreseen = self._foreseen(tenant, agent.workflow_id, reaction.hints, arrived.request_id)
        return Followed(prefix_session(agent) if is_new else None, list(foreseen))

    def on_left(self, left: AgentTurnLeft, now_ns: int) -> list[Foreseen]:
        """A turn ended; if it called tools, expect its session again when they are done."""
        self._learn_prefix(left)
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
            session_id, prefix, model_id, adapter = hint.session_id, None, None, None
            if session_id is None:
                agent = AgentRef(agent=hint.agent, workflow_id=workflow_id)
                learned = self._prefixes.of(_key_of(tenant, hint.agent))
                if learned is None:
                    self.num_without_session += 1
                    continue
                self.num_of_prefix += 1
                prefix = AgentPrefix(agent=agent, keys=learned.keys.hex())
                session_id, model_id = prefix_session(agent), learned.model_id
                adapter = learned.adapter
            arrival = ttl_ms = None
            if hint.arrives_in_ns is not None:
                arrival = min(hint.arrives_in_ns / SECOND_NS, EXPECTED_ARRIVAL_MAX_S)
            if hint.expires_in_ns is not None:  # until then the follower counts it as announced
                ttl_ms = min(-(-hint.expires_in_ns // MS_NS), TTL_MAX_MS)
            advisory = Advisory(
                session_id=session_id,
                tenant=tenant,
                model_id=model_id,
                adapter=adapter,
                expected_arrival=arrival,
                request_id=request_id,
                agent=hint.agent,
                workflow_id=workflow_id,
                ttl_ms=ttl_ms,
            )
            yield Foreseen(advisory, hint.chance, prefix)

    def _learn_prefix(self, left: AgentTurnLeft) -> None:
        if left.model_id is None:
            return
        with suppress(MalformedMessage):  # then nothing is learned from it
            keys = b"".join(prefix_keys(left.keys))
            agent = _key_of(left.tenant, left.agent.agent)
            self._prefixes.learn(agent, left.session_id, left.model_id, left.adapter, keys)


def _key_of(tenant: TenantId, agent: str) -> AgentKey:
    """The key of prompts that are compared: never those of different tenants."""
    return tenant, agent
