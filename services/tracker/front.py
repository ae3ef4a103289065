"""What the tracker is asked for, by anybody and by who knows that a session is this shard's."""

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from services.tracker.core import Shards
from shared.bus import Bus
from shared.clock import Clock
from shared.ids import TenantId
from shared.messages import Advisory, AdvisoryKey, AdvisoryState
from shared.metrics import counter
from shared.sparsely import Sparsely
from shared.subjects import Subject, of_tracker_shard

log = logging.getLogger(__name__)

About = TypeVar("About", Advisory, AdvisoryKey)

# Nobody waits long for a shard that is away: others' questions wait behind this one.
HAND_ON_GRACE_S = 0.1
HAND_ON_TIMEOUT_S = 1.5

HANDED_ON = counter(
    "tracker_handed_on_total", "Questions about sessions of other shards, handed on to them"
)
MISDIRECTED = counter(
    "tracker_misdirected_total",
    "Messages about what is another shard's by this one's count: settings disagree",
)


class Front:
    """Answers what is asked of this shard, and hands on what is asked of any one and is another's:
    once, since a shard answers whatever it is asked by its number.
    """

    def __init__(self, bus: Bus, clock: Clock, shards: Shards) -> None:
        self._bus = bus
        self._clock = clock
        self._shards = shards
        self._sparsely = Sparsely()

    async def serve(
        self,
        public: Subject[About, AdvisoryState],
        answer: Callable[[About], Awaitable[AdvisoryState]],
    ) -> None:
        """Begin to take these questions."""
        wire = of_tracker_shard(public)

        async def answer_anybody(message: About) -> AdvisoryState:
            shard = self._shards.other(message.tenant, message.session_id)
            if shard is None:
                return await answer(message)
            HANDED_ON.inc()
            return await self._bus.request(
                wire, message, str(shard), timeout_s=HAND_ON_TIMEOUT_S, grace_s=HAND_ON_GRACE_S
            )

        async def answer_own(message: About) -> AdvisoryState:
            self.see(message.tenant, message.session_id)
            return await answer(message)

        await self._bus.serve(public, answer_anybody)
        await self._bus.serve(wire, answer_own, str(self._shards.own))

    def see(self, tenant: TenantId, key: str) -> None:
        """Somebody takes this session, or workflow, for one of this shard's."""
        if (other := self._shards.other(tenant, key)) is None:
            return
        MISDIRECTED.inc()
        if num := self._sparsely.hear("misdirected", self._clock.now_ns()):
            fields = {"shard": other, "num_shards": self._shards.num, "num": num}
            log.warning("another shard's, unless SYMPHONY_TRACKER_SHARDS is wrong", extra=fields)
