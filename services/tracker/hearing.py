"""What the tracker is told of turns: by those who know which shard has a session, or a workflow,
and by those who know of no shards and tell all.
"""

from collections.abc import Callable

from services.tracker.core import Shards, check_foreseen
from services.tracker.front import Front
from shared.bus import Bus
from shared.messages import AgentTurnLeft, TurnArrived, TurnsForeseen
from shared.subjects import (
    AGENT_TURN_LEFT,
    SHARD_AGENT_TURN_LEFT,
    SHARD_TURN_ARRIVED,
    TURN_ARRIVED,
    TURNS_FORESEEN,
)


class Hearing:
    """Tells of each turn what this shard has to do with.

    Args:
        on_arrived, on_left, on_foreseen: are told.
    """

    def __init__(
        self,
        shards: Shards,
        front: Front,
        on_arrived: Callable[[TurnArrived], None],
        on_left: Callable[[AgentTurnLeft], None],
        on_foreseen: Callable[[TurnsForeseen], None],
    ) -> None:
        self._shards = shards
        self._front = front
        self._on_arrived = on_arrived
        self._on_left = on_left
        self._on_foreseen = on_foreseen

    async def start(self, bus: Bus) -> None:
        """Begin to hear."""
        own = str(self._shards.own)
        await bus.subscribe(TURN_ARRIVED, self._any_arrived)
        await bus.subscribe(AGENT_TURN_LEFT, self._any_left)
        await bus.subscribe(SHARD_TURN_ARRIVED, self._own_arrived, own)
        await bus.subscribe(SHARD_AGENT_TURN_LEFT, self._own_left, own)
        await bus.subscribe(TURNS_FORESEEN, self._foreseen, own)

    def _any_arrived(self, arrived: TurnArrived) -> None:
        if (part := self._shards.part_of(arrived)) is not None:
            self._on_arrived(part)

    def _any_left(self, left: AgentTurnLeft) -> None:
        if self._shards.other(left.tenant, left.agent.workflow_id) is None:
            self._on_left(left)

    def _own_arrived(self, arrived: TurnArrived) -> None:
        agent, key = arrived.agent, str(arrived.session_id)
        if agent is not None and arrived.part == "workflow":
            key = agent.workflow_id
        self._front.see(arrived.tenant, key)
        self._on_arrived(arrived)

    def _own_left(self, left: AgentTurnLeft) -> None:
        self._front.see(left.tenant, left.agent.workflow_id)
        self._on_left(left)

    def _foreseen(self, message: TurnsForeseen) -> None:
        check_foreseen(message)
        for each in message.turns:
            self._front.see(each.advisory.tenant, each.advisory.session_id)
        self._on_foreseen(message)
