"""Routes the tracker's requests to the shard that has the session."""

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from services.tracker.core import Shards
from shared.bus import Bus
from shared.ids import TenantId
from shared.runtime.clock import Clock
from shared.runtime.metrics import counter
from shared.runtime.sparsely import Sparsely
from shared.wire.messages import Advisory, AdvisoryKey, AdvisoryState
from shared.wire.subjects import Subject, of_tracker_shard

log = logging.getLogger(__name__)

About = TypeVar("About", Advisory, AdvisoryKey)

# Short, since other requests wait behind one to a shard that is away.
HAND_ON_GRACE_S = 0.1
HAND_ON_TIMEOUT_S = 1.5

HANDED_ON = counter(
    "tracker_handed_on_total", "Requests for sessions of other shards, forwarded to them"
)
MISDIRECTED = counter(
    "tracker_misdirected_total",
    "Messages for sessions that belong to another shard by this one's settings",
)


class ShardRouter:
    """Answers requests for this shard's sessions and forwards others. A request is forwarded at
    most once, since a shard answers whatever is addressed to its number.
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
        """Subscribe to a public subject, and to this shard's subject for the same requests."""
        wire = of_tracker_shard(public)

        async def answer_or_forward(message: About) -> AdvisoryState:
            shard = self._shards.other(message.tenant, message.session_id)
            if shard is None:
                return await answer(message)
            HANDED_ON.inc()
            return await self._bus.request(
                wire, message, str(shard), timeout_s=HAND_ON_TIMEOUT_S, grace_s=HAND_ON_GRACE_S
            )

        async def answer_own(message: About) -> AdvisoryState:
            self.check_owner(message.tenant, message.session_id)
            return await answer(message)

        await self._bus.serve(public, answer_or_forward)
        await self._bus.serve(wire, answer_own, str(self._shards.own))

    def check_owner(self, tenant: TenantId, key: str) -> None:
        """Count and log a message for a session, or workflow, that is another shard's."""
        if (other := self._shards.other(tenant, key)) is None:
            return
        MISDIRECTED.inc()
        if num := self._sparsely.hear("misdirected", self._clock.now_ns()):
            fields = {"shard": other, "num_shards": self._shards.num, "num": num}
            log.warning("misdirected: SYMPHONY_TRACKER_SHARDS may differ", extra=fields)
