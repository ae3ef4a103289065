"""The tracker's subscriptions to turns: those addressed to its shard, and those published to all
shards by senders that do not know the shards.
"""

from collections.abc import Callable

from services.tracker.core import Shards, check_foreseen
from services.tracker.routing import ShardRouter
from shared.bus import Bus
from shared.wire.messages import AgentTurnLeft, TurnArrived, TurnsForeseen
from shared.wire.subjects import (
    AGENT_TURN_LEFT,
    SHARD_AGENT_TURN_LEFT,
    SHARD_TURN_ARRIVED,
    TURN_ARRIVED,
    TURNS_FORESEEN,
)


class TurnSubscriptions:
    """Passes on each turn's part that concerns this shard.

    Args:
        on_arrived, on_left, on_foreseen: called with the messages.
    """

    def __init__(
        self,
        shards: Shards,
        router: ShardRouter,
        on_arrived: Callable[[TurnArrived], None],
        on_left: Callable[[AgentTurnLeft], None],
        on_foreseen: Callable[[TurnsForeseen], None],
    ) -> None:
        self._shards = shards
        self._router = router
        self._on_arrived = on_arrived
        self._on_left = on_left
        self._on_foreseen = on_foreseen

    async def start(self, bus: Bus) -> None:
        """Subscribe."""
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
        self._router.check_owner(arrived.tenant, key)
        self._on_arrived(arrived)

    def _own_left(self, left: AgentTurnLeft) -> None:
        self._router.check_owner(left.tenant, left.agent.workflow_id)
        self._on_left(left)

    def _foreseen(self, message: TurnsForeseen) -> None:
        check_foreseen(message)
        for each in message.turns:
            self._router.check_owner(each.advisory.tenant, each.advisory.session_id)
        self._on_foreseen(message)
