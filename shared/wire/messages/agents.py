"""Agents on the wire: what a turn says of the agent that takes it (SYMPHONY, section 3.2)."""

from dataclasses import dataclass, field
from hashlib import blake2b

from shared.blocks import KEY_BYTES, PREFIX_BLOCKS_MAX
from shared.ids import DEFAULT_TENANT, ModelId, SessionId, TenantId
from shared.wire.messages.adapters import AdapterRef


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRef:
    """Whose turn it is in which workflow, both named by the client."""

    agent: str  # its name
    workflow_id: str  # the run that it is part of


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTurnLeft:
    """Frontend to tracker: an agent's turn is over.

    Attributes:
        tools: names of those that it ended with a call of.
        model_id, adapter: that it ran on; None: not known.
        keys: packed, of the first full blocks of its prompt, `PREFIX_BLOCKS_MAX` at most; empty:
            they are not to be learned from.
    """

    agent: AgentRef
    session_id: SessionId
    tenant: TenantId = DEFAULT_TENANT
    tools: list[str] = field(default_factory=list)
    model_id: ModelId | None = None
    adapter: AdapterRef | None = None
    keys: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPrefix:
    """What stands for the session of an agent's turn that is expected in one that is not known yet.

    Attributes:
        keys: packed, of the blocks that all prompts of the agent begin with.
    """

    agent: AgentRef
    keys: str

    @property
    def num_blocks(self) -> int:
        """Of it, as many as a correct sender sends."""
        return min(len(self.keys) // (2 * KEY_BYTES), PREFIX_BLOCKS_MAX)


def prefix_session(agent: AgentRef) -> SessionId:
    """The name under which such a turn is expected, once a workflow: of no client's session, but by
    a client's own will. Lengths keep names from running into each other.

    >>> prefix_session(AgentRef(agent="a", workflow_id="bc")) == prefix_session(
    ...     AgentRef(agent="ab", workflow_id="c")
    ... )
    False
    """
    digest = blake2b(digest_size=16, person=b"symphony-prefix")
    for part in (agent.agent, agent.workflow_id):
        raw = part.encode(errors="surrogatepass")
        digest.update(len(raw).to_bytes(4, "little") + raw)
    return SessionId(f"#{digest.hexdigest()}")
