"""Agents on the wire: what a turn says of the agent that takes it (SYMPHONY, section 3.2)."""

from dataclasses import dataclass, field

from shared.ids import DEFAULT_TENANT, SessionId, TenantId


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRef:
    """Whose turn it is in which workflow, both named by the client."""

    agent: str
    workflow_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTurnLeft:
    """Frontend to tracker: an agent's turn is over.

    Attributes:
        tools: names of those that it ended with a call of.
    """

    agent: AgentRef
    session_id: SessionId
    tenant: TenantId = DEFAULT_TENANT
    tools: list[str] = field(default_factory=list)
