"""The lease's shell: leader election by the key-value store of NATS."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from nats.aio.subscription import Subscription

from shared.bus.bucket import KvBucket, NoStore, RevisionConflict
from shared.effects import WakeAt
from shared.errors import NobodyListens, PeerUnavailable, SymphonyError
from shared.ids import new_id
from shared.lease.core.core import LeaseCore
from shared.lease.core.effects import (
    Announce,
    AskHolder,
    Lead,
    LeaseEffect,
    Lost,
    ReadLease,
    Released,
    Resume,
    Stored,
    Suspend,
    WriteLease,
)
from shared.lease.settings import LeaseConfig
from shared.runtime.events import EventQueue
from shared.runtime.metrics import counter, gauge
from shared.runtime.tasks import wait_set
from shared.service import Runtime
from shared.wire.messages import Empty, LeaderLease, LeaseHolder, LeaseWritten
from shared.wire.subjects import LEASE_HOLDER, LEASE_WRITTEN, LEASES

log = logging.getLogger(__name__)

EVENTS_MAX = 1024
# A server that has just started, or a new connection, may report a missing store for a moment.
NO_STORE_GRACE_S = 1.0
RETRY_S = 0.1
SPARE_AFTER_S = 0.5

CHANGES = counter("scheduler_lease_changes_total", "Changes of the leader's lease", ["change"])
DROPPED = counter(
    "scheduler_lease_events_dropped_total", "Events of the lease dropped: the queue was full"
)
FENCE = gauge("scheduler_lease_fence", "Fence that this instance leads under; 0 if it does not")


def _nothing() -> None:
    pass


class Lease:
    """One instance's candidacy for a leadership that one instance of a deployment has at a time.

    Await `lead` once. From then on check `is_leading` before each dispatch, and send `fence` with
    it; both may change at any time. Await `release` at the end.

    Args:
        key: names the leadership.
        on_fence: called with the new fence when it was raised (see `raise_fence`).
        on_suspend: the lease cannot be renewed; `is_leading` is False until `on_resume`.
        on_lost: another instance leads. Final; this one can only restart as a spare.
    """

    def __init__(
        self,
        runtime: Runtime,
        config: LeaseConfig,
        *,
        key: str = "leader",
        on_fence: Callable[[int], None] | None = None,
        on_suspend: Callable[[], None] = _nothing,
        on_resume: Callable[[], None] = _nothing,
        on_lost: Callable[[], None] = _nothing,
    ) -> None:
        runtime.parts["lease"] = self
        self._runtime = runtime
        self._config = config
        self._key = key
        self._on_fence = on_fence
        self._on_suspend = on_suspend
        self._on_resume = on_resume
        self._on_lost = on_lost
        self._clock = runtime.clock
        self._times = config.lease_times()
        self._instance = new_id(runtime.instance)
        self._core = LeaseCore(
            instance=self._instance,
            times=self._times,
            wall_offset_ms=(self._clock.wall_ns() - self._clock.now_ns()) // 1_000_000,
        )
        self._events: EventQueue[LeaseEffect] = EventQueue(
            EVENTS_MAX, self._clock, self._core.on_wake, DROPPED
        )
        self._bucket: KvBucket[LeaderLease] | None = None
        self._fence = 0
        self._is_alone = False  # leads without a lease
        self._has_led = asyncio.Event()
        self._is_over = asyncio.Event()
        self._num_cuts = 0  # disconnects that are not passed to the core yet
        self._presence: Subscription | None = None  # the holder's subscription that spares poll

    @property
    def instance(self) -> str:
        """The name in the lease: that of the service's instance and a random part."""
        return self._instance

    @property
    def fence(self) -> int:
        """The fence of the latest term; 0 before the first."""
        return self._fence

    @property
    def is_leading(self) -> bool:
        """Whether this instance may act as the leader at this instant: not while it is
        disconnected, nor before the core knows of a disconnect.
        """
        if self._is_alone:
            return True
        is_cut = self._num_cuts > 0 or not self._runtime.bus.connected
        return not is_cut and self._core.is_leading(self._clock.now_ns())

    async def lead(self) -> int:
        """Wait, as a spare, until this instance leads; returns the fence. May be cancelled; then
        `release`.

        Without a lease (by the setting, or without JetStream) it leads at once, alone, with the
        wall clock in ms as its fence.
        """
        if self._config.scheduler_lease == "auto":
            self._bucket = await self._open()
        if self._bucket is None:
            self._is_alone = True
            self._lead(self._clock.wall_ns() // 1_000_000)
            return self._fence
        await self._runtime.bus.subscribe(LEASE_WRITTEN, self._on_announced, self._key)
        self._runtime.bus.on_disconnect(self._on_disconnect)
        self._events.put(self._core.on_wake)
        self._runtime.spawn(self._consume(self._bucket), f"lease {self._key}")
        await self._has_led.wait()
        return self._fence

    def raise_fence(self, above: int) -> None:
        """A worker has seen the fence `above`: lead under a higher one, which is passed to
        `on_fence`, or returned by `lead` if this instance does not lead yet. The instance's own
        fence changes nothing.
        """
        if self._is_alone:
            if above > self._fence:
                self._lead(above + 1)
        else:
            self._events.put(partial(self._core.raise_fence, above))

    async def lead_or_stop(self) -> bool:
        """Wait until this process leads; False if it is stopped before. Then `release`.

        A waiting spare counts as ready.
        """
        runtime = self._runtime
        leading = asyncio.create_task(self.lead())
        stopping = asyncio.create_task(runtime.stopping.wait())
        both = {leading, stopping}
        await asyncio.wait(both, timeout=SPARE_AFTER_S, return_when=asyncio.FIRST_COMPLETED)
        if not leading.done() and not stopping.done():
            await runtime.ready()
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if leading.done():
            leading.result()
            return True
        leading.cancel()
        return False

    async def release(self, timeout_s: float = 1.0) -> None:
        """Stop leading, and release the lease so that a spare leads at once.

        If the store does not answer within `timeout_s` the lease has to expire.
        """
        if self._is_alone:
            self._is_alone = False
            self._finish("released", logging.INFO)
        elif self._bucket is not None and not self._is_over.is_set():
            await self._events.put_surely(self._core.release)
            if not await wait_set(self._is_over, timeout_s):
                log.warning("lease not released: the store does not answer")
        self._events.stop()

    async def _open(self) -> KvBucket[LeaderLease] | None:
        """The bucket, once the store answers; None if there is no store."""
        loop = asyncio.get_running_loop()
        give_up_at_s = loop.time() + NO_STORE_GRACE_S
        while True:
            try:
                return await self._runtime.bus.bucket(LEASES, timeout_s=self._times.beat_ns / 1e9)
            except NoStore as error:
                if loop.time() >= give_up_at_s:
                    log.warning("leading without a lease", extra={"why": error.message})
                    return None
            except PeerUnavailable as error:
                log.warning("waiting for the store of the lease", extra={"error": error.message})
            await asyncio.sleep(RETRY_S)

    def _on_announced(self, message: LeaseWritten) -> None:
        stored = Stored(message.lease, message.revision)
        self._events.put(partial(self._core.on_announced, stored))

    def _on_disconnect(self) -> None:
        self._num_cuts += 1
        self._runtime.spawn(self._events.put_surely(self._on_cut), "lease cut")

    def _on_cut(self, now_ns: int) -> list[LeaseEffect]:
        self._num_cuts -= 1
        return self._core.on_cut(now_ns)

    async def _consume(self, bucket: KvBucket[LeaderLease]) -> None:
        while not self._is_over.is_set():
            for effect in await self._events.next_effects():
                await self._perform(effect, bucket)

    async def _perform(self, effect: LeaseEffect, bucket: KvBucket[LeaderLease]) -> None:
        match effect:
            case ReadLease():
                self._runtime.spawn(self._read(bucket), "lease read")
            case WriteLease():
                self._runtime.spawn(self._write(bucket, effect), "lease write")
            case AskHolder():
                self._runtime.spawn(self._ask_holder(), "lease holder")
            case Announce(stored):
                await self._announce(stored)
            case WakeAt(at_ns):
                self._events.set_alarm(at_ns)
            case Lead(fence):
                await self._start_answering()
                self._lead(fence)
            case Suspend():
                self._change("suspended", logging.WARNING)
                self._on_suspend()
            case Resume():
                self._change("resumed", logging.INFO)
                self._on_resume()
            case Lost():
                await self._stop_answering()
                self._finish("lost", logging.WARNING)
                self._on_lost()
            case Released():
                await self._stop_answering()
                self._finish("released", logging.INFO)

    async def _read(self, bucket: KvBucket[LeaderLease]) -> None:
        try:
            entry = await bucket.get(self._key)
        except PeerUnavailable:
            await self._events.put_surely(self._core.on_no_answer)
        else:
            stored = Stored(entry.value, entry.revision)
            await self._events.put_surely(partial(self._core.on_read, stored))

    async def _write(self, bucket: KvBucket[LeaderLease], write: WriteLease) -> None:
        try:
            revision = await bucket.update(self._key, write.lease, write.expected_revision)
        except RevisionConflict:
            await self._events.put_surely(self._core.on_conflict)
        except PeerUnavailable:
            await self._events.put_surely(self._core.on_no_answer)
        else:
            await self._events.put_surely(partial(self._core.on_written, revision))

    async def _ask_holder(self) -> None:
        times = self._times
        try:
            holder = await self._runtime.bus.request(
                LEASE_HOLDER, Empty(), self._key, timeout_s=times.answer_ns / 1e9, grace_s=0.0
            )
        except NobodyListens:
            await self._events.put_surely(partial(self._core.on_holder, None))
        except SymphonyError:  # or an answer that cannot be decoded
            await self._events.put_surely(self._core.on_holder_silent)
        else:
            await self._events.put_surely(partial(self._core.on_holder, holder.instance))

    async def _start_answering(self) -> None:
        """Answer spares' polls, so that the bus reports it when this process is gone."""
        if self._presence is None:
            bus = self._runtime.bus
            self._presence = await bus.serve(LEASE_HOLDER, self._say_who, self._key)

    async def _stop_answering(self) -> None:
        """Stop answering polls: another instance answers from now on."""
        if self._presence is not None and self._runtime.bus.connected:
            await self._presence.unsubscribe()

    async def _say_who(self, _: Empty) -> LeaseHolder:
        return LeaseHolder(instance=self._instance)

    async def _announce(self, stored: Stored) -> None:
        assert stored.lease is not None
        message = LeaseWritten(lease=stored.lease, revision=stored.revision)
        try:
            await self._runtime.bus.publish(LEASE_WRITTEN, message, self._key)
        except PeerUnavailable as error:  # spares read the store without announcements
            log.warning("renewal not announced", extra={"error": error.message})

    def _lead(self, fence: int) -> None:
        self._fence = fence
        FENCE.set(fence)
        self._change("leading", logging.INFO)
        if self._has_led.is_set() and self._on_fence is not None:
            self._on_fence(fence)
        self._has_led.set()

    def _finish(self, change: str, level: int) -> None:
        FENCE.set(0)
        self._change(change, level)
        self._is_over.set()

    def _change(self, change: str, level: int) -> None:
        CHANGES.labels(change).inc()
        log.log(level, "lease %s", change, extra={"key": self._key, "fence": self._fence})
