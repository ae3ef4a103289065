"""Which tracker has to do with what, where several divide the sessions and the workflows of a
deployment (docs/scale.md, "The tracker").
"""

from dataclasses import replace
from hashlib import blake2b
from typing import TypeVar

from shared.ids import TenantId
from shared.wire.messages import AgentTurnLeft, TurnArrived
from shared.wire.subjects import AGENT_TURN_LEFT, TURN_ARRIVED, Subject, of_tracker_shard

TRACKER_SHARDS_MAX = 64

Req = TypeVar("Req")
Rep = TypeVar("Rep")


def shard_of(tenant: TenantId, key: str, num_shards: int) -> int:
    """Which shard has a session, or a workflow, of this name: the same in every process and
    release. Schedulers divide sessions by another hash (`shared.wire.shards`). Neither can change:
    while a deployment is upgraded, processes of two releases have to agree, or advisories and turns
    of a session would meet at no shard.

    >>> shard_of(TenantId("acme"), "order-17", 1)
    0
    """
    if num_shards == 1:
        return 0
    raw = tenant.encode(errors="surrogatepass")  # its length keeps the two from running together
    digest = blake2b(len(raw).to_bytes(4, "little") + raw, digest_size=8)
    digest.update(key.encode(errors="surrogatepass"))
    return int.from_bytes(digest.digest(), "little") % num_shards


def at_shard(
    subject: Subject[Req, Rep], tenant: TenantId, key: str, num_shards: int
) -> tuple[Subject[Req, Rep], tuple[str, ...]]:
    """On which wire, with which ids in it, a message about this session or workflow goes.

    Args:
        subject: the wire of an undivided tracker, which is taken where the tracker is not divided.
    """
    if num_shards == 1:
        return subject, ()
    return of_tracker_shard(subject), (str(shard_of(tenant, key, num_shards)),)


def arrival_wires(
    arrived: TurnArrived, num_shards: int
) -> list[tuple[Subject[TurnArrived, None], tuple[str, ...], TurnArrived]]:
    """Which shards learn that a turn arrived: that of its session and, of an agent's turn, that
    of its workflow; one message if they are the same.
    """
    if num_shards == 1:
        return [(TURN_ARRIVED, (), arrived)]
    wire = of_tracker_shard(TURN_ARRIVED)
    tenant, agent = arrived.tenant, arrived.agent
    session = shard_of(tenant, arrived.session_id, num_shards)
    workflow = session
    if agent is not None:
        workflow = shard_of(tenant, agent.workflow_id, num_shards)
    if session == workflow:
        return [(wire, (str(session),), arrived)]
    return [
        (wire, (str(session),), replace(arrived, part="session")),
        (wire, (str(workflow),), replace(arrived, part="workflow")),
    ]


def left_wire(
    left: AgentTurnLeft, num_shards: int
) -> tuple[Subject[AgentTurnLeft, None], tuple[str, ...]]:
    """Which shard learns that an agent's turn is over: the shard of its workflow."""
    return at_shard(AGENT_TURN_LEFT, left.tenant, left.agent.workflow_id, num_shards)
