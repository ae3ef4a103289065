"""Admits advisories by how many of their sender's earlier ones were used, before the bus."""

import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import TypeVar

from services.frontend.core.limits.delayed_refusals import DelayedRefusals
from services.frontend.observability import telemetry
from shared.bus import Bus
from shared.bus.asking import NO_RESPONDER_GRACE_S
from shared.errors import HintsThrottled, InvalidRequest, MalformedMessage, NoCapacity
from shared.ids import FrontendId, SessionId, TenantId
from shared.runtime.clock import Clock
from shared.runtime.sparsely import Sparsely
from shared.runtime.tasks import Tasks
from shared.wire.hint_accounts import HintAccounts, HintLimits, HintSender, session_name
from shared.wire.messages import Advisory, AdvisoryKey, AdvisoryState, HintPayer, HintStatus
from shared.wire.subjects import HINTS_ENDED, Subject
from shared.wire.tracker_shards import at_shard, shard_of

log = logging.getLogger(__name__)

About = TypeVar("About", Advisory, AdvisoryKey)

SPAWNED_MAX = 256
TRACKER_TIMEOUT_S = 2.0
NATS_PLACE = "nats"  # the sender of all of a tenant's advisories that come over NATS


class HintGate:
    """The frontend's way to the tracker.

    Args:
        num_shards: among which the tracker is divided.

    Attributes:
        frontend_id: to which the tracker reports which advisories were used.
    """

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        frontend_id: FrontendId,
        limits: HintLimits,
        num_shards: int = 1,
    ) -> None:
        self.frontend_id = frontend_id
        self._bus = bus
        self._clock = clock
        self._num_shards = num_shards
        self._accounts = HintAccounts(limits)
        self._refusals = DelayedRefusals()
        self._sparsely = Sparsely()
        self._tasks = Tasks("carrying out a kv hint failed")
        self._num_spawned = 0

    async def start(self) -> None:
        """Subscribe to reports on advisories."""
        await self._bus.subscribe(HINTS_ENDED, self._accounts.on_ended, self.frontend_id)

    def take(self, sender: HintSender, cost: float = 1.0, *, has_kv: bool = False) -> HintPayer:
        """Count one more advisory of this sender. Returns whose account pays.

        Args:
            has_kv: the session is known to have KV.

        Raises:
            HintsThrottled: too many of its earlier ones came to nothing.
        """
        now_ns, (tenant, place, _) = self._clock.now_ns(), sender
        try:
            return self._accounts.take(sender, now_ns, cost, has_kv=has_kv)
        except HintsThrottled:
            telemetry.HINTS_THROTTLED.inc()
            if num := self._sparsely.hear(tenant, now_ns):
                fields = {"tenant": tenant, "client": place, "num": num}
                log.warning("advisories throttled", extra=fields)
            raise

    def is_answered(self, tenant: TenantId) -> bool:
        """Whether to answer one that is refused and came over NATS, where senders cannot be made to
        wait: one that goes on is not answered every time.
        """
        return self._refusals.is_due((tenant, NATS_PLACE), self._clock.now_ns())

    @asynccontextmanager
    async def held(self, tenant: TenantId, place: str) -> AsyncIterator[float]:
        """How long to hold back the answer to one that is refused, seconds. Leave the context when
        it is answered.
        """
        hold_ns = self._refusals.hold((tenant, place), self._clock.now_ns())
        try:
            yield hold_ns / 1e9
        finally:
            if hold_ns:
                self._refusals.release()

    def spawn(self, work: Coroutine[None, None, None]) -> bool:
        """Run work that no request waits for. Returns whether there is room for it."""
        if self._num_spawned >= SPAWNED_MAX:
            work.close()
            return False
        self._num_spawned += 1
        self._tasks.spawn(self._counted(work))
        return True

    async def _counted(self, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        finally:
            self._num_spawned -= 1

    async def ask(
        self,
        subject: Subject[About, AdvisoryState],
        message: About,
        *,
        timeout_s: float = TRACKER_TIMEOUT_S,
        grace_s: float = NO_RESPONDER_GRACE_S,
    ) -> AdvisoryState:
        """Ask the tracker, of several shards the one that has the session. As `Bus.request`.

        Raises:
            NoCapacity: also, one of the two cannot read what the other wrote. The client's request
                was right.
        """
        tenant, session_id = message.tenant, message.session_id
        wire, ids = at_shard(subject, tenant, session_id, self._num_shards)
        ask = self._bus.request(wire, message, *ids, timeout_s=timeout_s, grace_s=grace_s)
        try:
            return await ask
        except InvalidRequest as error:
            if error.code != MalformedMessage.code:
                raise
            raise NoCapacity("the tracker is of another release than this frontend") from error

    def on_turn(self, tenant: TenantId, session_id: SessionId) -> None:
        """A turn of a session began."""
        self._accounts.on_turn(tenant, session_name(tenant, session_id), self._clock.now_ns())

    def on_sent(self, advisory: Advisory) -> None:
        """One that was let in goes to the tracker."""
        self._accounts.on_sent(sender_of(advisory), advisory.payer, self._shard_of(advisory))

    def on_refund(self, advisory: Advisory) -> None:
        """One that was sent repeated an earlier one, or no tracker took it."""
        self._accounts.on_refund(sender_of(advisory), advisory.payer, self._shard_of(advisory))

    def status(self) -> HintStatus:
        """What `symphony status` shows."""
        return HintStatus(throttled=self._accounts.throttled(self._clock.now_ns()))

    def _shard_of(self, advisory: Advisory) -> int:
        return shard_of(advisory.tenant, advisory.session_id, self._num_shards)


def sender_of(about: Advisory | AdvisoryKey, place: str = "") -> HintSender:
    """Who pays for an advisory, or for withdrawing it from this place."""
    if isinstance(about, Advisory):
        place = about.place
    return HintSender(about.tenant, place, session_name(about.tenant, about.session_id))
