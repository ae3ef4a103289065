"""The shell of `core.turns.jobs`: bus messages in, effects out, ends to their waiters."""

import asyncio
import logging
from functools import partial

from services.frontend.core.limits.capacity import Taking, TooManyRequests
from services.frontend.core.turns.job_events import (
    AnswerPull,
    Cancel,
    Done,
    Effect,
    Fail,
    NewRequest,
    Submit,
)
from services.frontend.core.turns.jobs import Jobs
from services.frontend.observability import telemetry
from services.frontend.turns.hub import STOP_S, ClientGone
from services.frontend.turns.outbox import Outbox
from shared.bus import Bus
from shared.effects import WakeAt
from shared.errors import NoCapacity
from shared.ids import FrontendId, job_group
from shared.runtime.clock import Clock
from shared.service import Runtime
from shared.wire.messages import (
    InputPull,
    InputReply,
    JobDropped,
    JobResults,
    JobsDropped,
    LeaderChanged,
)
from shared.wire.subjects import (
    INPUT_PULL,
    JOB_RESULTS,
    JOBS_CANCEL,
    JOBS_DROPPED,
    JOBS_SUBMIT,
    LEADER_CHANGED,
)

log = logging.getLogger(__name__)

SUBMITS_MAX = 4096  # of up to a thousand jobs each


class JobError(NoCapacity):
    """A job could not be served in time."""

    def __init__(self, why: JobDropped) -> None:
        super().__init__(why.message, why.retry_after_s)
        self.code = why.code
        self.http_status = why.http_status


class JobHub:
    """Every job in flight, on the bus."""

    def __init__(self, bus: Bus, clock: Clock, frontend_id: FrontendId, jobs: Jobs) -> None:
        self._bus = bus
        self._clock = clock
        self._frontend_id = frontend_id
        self._jobs = jobs
        self._waiters: dict[str, asyncio.Future[Done]] = {}
        self._outbox = Outbox(SUBMITS_MAX)
        self._alarm: asyncio.TimerHandle | None = None

    async def start(self, runtime: Runtime) -> None:
        """Subscribe, and start the tasks that run until the service ends."""
        await self._bus.serve(INPUT_PULL, self._on_pull, self._frontend_id)
        await self._bus.subscribe(JOB_RESULTS, self._on_results, self._frontend_id)
        await self._bus.subscribe(JOBS_DROPPED, self._on_dropped, self._frontend_id)
        await self._bus.subscribe(LEADER_CHANGED, self._on_leader_changed)
        self._bus.on_reconnect(self._resubmit_all)
        runtime.spawn(self._outbox.run(), "job outbox")

    def open(self, new: NewRequest) -> asyncio.Future[Done]:
        """Start a request; the future ends with it.

        Raises (the future):
            JobError: it cannot be had, or not in time.
        """
        waiter: asyncio.Future[Done] = asyncio.get_running_loop().create_future()
        self._waiters[new.request_id] = waiter
        self._perform(self._jobs.on_new(new, self._clock.now_ns()))
        return waiter

    def cancel(self, request_id: str) -> None:
        """The client is gone; a request that ended is ignored."""
        self._waiters.pop(request_id, None)
        self._perform(self._jobs.on_cancel(request_id))

    async def stop(self) -> None:
        """End every request that is still open with an error, and send what waits to be sent."""
        self._perform(self._jobs.on_stop())
        if self._alarm is not None:
            self._alarm.cancel()
        await self._outbox.flush(STOP_S)

    async def _on_pull(self, pull: InputPull) -> InputReply:
        effect = self._jobs.on_pull(pull, self._clock.now_ns())[0]
        assert isinstance(effect, AnswerPull)
        return effect.message

    def _on_results(self, message: JobResults) -> None:
        self._perform(self._jobs.on_results(message, self._clock.now_ns()))

    def _on_dropped(self, message: JobsDropped) -> None:
        self._perform(self._jobs.on_dropped(message))

    def _on_leader_changed(self, message: LeaderChanged) -> None:
        log.info("scheduler leads", extra={"scheduler": message.instance, "fence": message.fence})
        self._resubmit_all()

    def _resubmit_all(self) -> None:
        self._perform(self._jobs.on_resubmit_all(self._clock.now_ns()))

    def _on_wake(self) -> None:
        self._perform(self._jobs.on_wake(self._clock.now_ns()))

    def _perform(self, effects: list[Effect]) -> None:
        publish = self._bus.publish
        for effect in effects:
            match effect:
                case Done() | Fail():
                    self._end(effect)
                case Submit(shard, jobs):
                    self._outbox.put("submit", partial(publish, JOBS_SUBMIT, jobs, str(shard)))
                case Cancel(shard, jobs):
                    self._outbox.put("cancel", partial(publish, JOBS_CANCEL, jobs, str(shard)))
                case WakeAt():
                    self._wake_at(effect.at_ns)

    def _wake_at(self, at_ns: int) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        delay_s = max(at_ns - self._clock.now_ns(), 0) / 1e9
        self._alarm = asyncio.get_running_loop().call_later(delay_s, self._on_wake)

    def _end(self, event: Done | Fail) -> None:
        waiter = self._waiters.pop(event.request_id)
        if waiter.done():
            return  # the client has just hung up
        count(event)
        if isinstance(event, Done):
            waiter.set_result(event)
        else:
            waiter.set_exception(JobError(event.why))


class PendingJobs:
    """One client's wait for its jobs. A context: leaving it gives back what its inputs took of
    the capacity, and cancels what still runs.

    Args:
        capacity: for its inputs.

    Attributes:
        request_id: its jobs' ids begin with it. It is unique, and holds what the client calls it.
        arrived_at_ns: when its target began to count.
    """

    def __init__(self, hub: JobHub, capacity: Taking, now_ns: int, request_id: str) -> None:
        self.request_id = job_group(request_id)
        self.arrived_at_ns = now_ns
        self._hub = hub
        self._capacity = capacity
        self._num = 0
        self._num_bytes = 0
        self._waiter: asyncio.Future[Done] | None = None
        self._is_abandoned = False

    def __enter__(self) -> "PendingJobs":
        return self

    def __exit__(self, *_: object) -> None:
        self._capacity.give(self._num, self._num_bytes)
        if self._waiter is not None and not _has_ended(self._waiter):
            telemetry.JOBS.labels("cancelled").inc(self._num)
            self._hub.cancel(self.request_id)

    def abandon(self) -> None:
        """The client hung up."""
        self._is_abandoned = True
        if self._waiter is not None:
            self._waiter.cancel()

    def take(self, num: int, num_bytes: int) -> None:
        """Make room for inputs.

        Raises:
            TooManyRequests: there is none.
            TenantQuota, InvalidRequest: there is none for this tenant.
        """
        if not self._capacity.take(num, num_bytes):
            raise TooManyRequests("too many inputs at once")
        self._num += num
        self._num_bytes += num_bytes

    async def run(self, new: NewRequest) -> Done:
        """Wait for the results.

        Raises:
            JobError: they cannot be had, or not in time.
            ClientGone: the client hung up.
        """
        if self._is_abandoned:
            raise ClientGone
        self._waiter = self._hub.open(new)
        try:
            return await self._waiter
        except asyncio.CancelledError:
            if self._is_abandoned:
                raise ClientGone from None
            raise


def count(event: Done | Fail) -> None:
    """Into the metrics with a request's end."""
    if isinstance(event, Done):
        num = len(event.values)
        telemetry.JOBS.labels("late" if event.is_late else "done").inc(num)
        telemetry.JOB_LATENCY.observe(event.took_ns / 1e9)
        is_missed = event.is_late
    else:
        num, is_missed = event.num_jobs, event.outcome != "failed"
        telemetry.JOBS.labels(event.outcome).inc(num)
    if is_missed:
        telemetry.JOB_MISSES.inc(num)


def _has_ended(waiter: asyncio.Future[Done]) -> bool:
    return waiter.done() and not waiter.cancelled()
