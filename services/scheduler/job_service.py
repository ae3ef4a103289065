"""The shells of the job cores: messages in through one queue, effects back onto the bus."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from services.scheduler.advice import publish_advice
from services.scheduler.config import SchedulerConfig
from services.scheduler.consume import consume, probe
from services.scheduler.core.base.effects import ProbeWorker
from services.scheduler.core.batching.job import Delays
from services.scheduler.core.batching.rules import make_rules
from services.scheduler.core.jobs import (
    AnswerDropped,
    CountJobs,
    Deposed,
    JobLimits,
    JobsCore,
    JobsEffect,
    PublishAdvice,
    RankCore,
    SendBatch,
    SendBooked,
    SendGrant,
    SendHold,
    SendOffer,
    ShardJobsCore,
)
from services.scheduler.core.jobs.remote_rank import RemoteBatcher, RemoteRank
from services.scheduler.core.partition.solving import Solved, SolvePartition, solve
from services.scheduler.leadership import Leadership
from services.scheduler.policies import make_batcher
from shared.effects import WakeAt
from shared.ids import WorkerId
from shared.runtime.events import EventQueue
from shared.runtime.metrics import counter, gauge
from shared.service import Runtime
from shared.wire.subjects import (
    BATCH_DONE,
    BATCH_START,
    JOBS_CANCEL,
    JOBS_DROPPED,
    JOBS_SUBMIT,
    ONESHOT_HOLD,
    RANK_BOOKED,
    RANK_GRANT,
    RANK_OFFER,
    WORKER_REPORT,
)

M = TypeVar("M")

JOBS = counter("jobs_total", "Jobs of one-shot models that are over", ["model", "outcome"])
BATCHES = counter("batches_total", "Batches sent to workers", ["model"])
BATCH_JOBS = counter("batch_jobs_total", "Jobs in batches sent to workers", ["model"])
EVENTS_DROPPED = counter("jobs_events_dropped_total", "Messages dropped: the queue was full")
BAD_RATE = gauge("jobs_bad_rate", "Smoothed share of jobs that were late or dropped")
IDLE_SHARE = gauge("jobs_idle_share", "Smoothed share of the workers' time without a batch")


class JobShell:
    """Feeds one job core and performs its effects.

    Args:
        on_wake: the core's own event for an alarm it set.
        on_gone: its event for a worker that does not answer.
        on_partition: its event for a partition that it asked for.
    """

    def __init__(
        self,
        runtime: Runtime,
        leadership: Leadership,
        queue_max: int,
        on_wake: Callable[[int], list[JobsEffect]],
        on_gone: Callable[[WorkerId, int], list[JobsEffect]],
        on_partition: Callable[[Solved, int], list[JobsEffect]] | None = None,
    ) -> None:
        self._runtime = runtime
        self._leadership = leadership
        self._bus = runtime.bus
        self._on_gone = on_gone
        self._on_partition = on_partition
        self._events: EventQueue[JobsEffect] = EventQueue(
            queue_max, runtime.clock, on_wake, EVENTS_DROPPED
        )
        self._events.put(on_wake)

    def feed(self, handler: Callable[[M, int], list[JobsEffect]]) -> Callable[[M], None]:
        """A subscription's handler that queues its messages for the core."""

        def on_message(message: M) -> None:
            self._events.put(partial(handler, message))

        return on_message

    def start(self) -> None:
        """Begin to consume."""
        self._runtime.stack.callback(self._events.stop)
        self._runtime.spawn(consume(self._events, self._leadership, self._perform), "job events")

    async def _perform(self, effect: JobsEffect) -> None:
        bus = self._bus
        match effect:
            case SendBatch(worker_id, start):
                BATCHES.labels(start.model_id).inc()
                BATCH_JOBS.labels(start.model_id).inc(len(start.jobs))
                await bus.publish(BATCH_START, start, worker_id)
            case AnswerDropped(frontend_id, dropped):
                await bus.publish(JOBS_DROPPED, dropped, frontend_id)
            case SendOffer(offer):
                await bus.publish(RANK_OFFER, offer)
            case SendBooked(booked):
                await bus.publish(RANK_BOOKED, booked)
            case SendGrant(shard, grant):
                await bus.publish(RANK_GRANT, grant, str(shard))
            case CountJobs(model_id, outcome, num_jobs):
                JOBS.labels(model_id, outcome).inc(num_jobs)
            case ProbeWorker(worker_id):
                asking = probe(bus, worker_id, self._events, self._on_gone)
                self._runtime.spawn(asking, f"probe {worker_id}")
            case PublishAdvice(advice):
                BAD_RATE.set(advice.bad_rate)
                IDLE_SHARE.set(advice.idle_share)
                await publish_advice(bus, advice)
            case Deposed(fence):
                self._leadership.raise_fence(fence)  # or lose the lease
            case SendHold(worker_id, order):
                await bus.publish(ONESHOT_HOLD, order, worker_id)
            case SolvePartition():
                self._runtime.spawn(self._solve(effect), "partition")
            case WakeAt(at_ns):
                self._events.set_alarm(at_ns)

    async def _solve(self, request: SolvePartition) -> None:
        """Up to a second of work."""
        solved = await asyncio.to_thread(solve, request)
        assert self._on_partition is not None, "only who orders models asks for partitions"
        await self._events.put_surely(partial(self._on_partition, solved))


async def start_jobs(runtime: Runtime, config: SchedulerConfig, leadership: Leadership) -> JobsCore:
    """Batch jobs in this process: all of them, or one shard's."""
    fence = leadership.fence
    limits = JobLimits()
    delays = Delays(limits.ctrl_ns, limits.data_ns, limits.slack_ns)
    name = f"{config.shard_name}-{fence}-{runtime.clock.wall_ns() // 1_000_000:x}"
    started_at_ns = runtime.clock.now_ns()
    core: JobsCore
    if config.scheduler_role == "shard":
        remote = RemoteRank(config.scheduler_shard, first_seq=runtime.clock.wall_ns())
        batcher = RemoteBatcher(remote, make_rules(config.batch_policy), delays)
        core = ShardJobsCore(
            batcher,
            limits,
            fence=fence,
            started_at_ns=started_at_ns,
            name=name,
            leadership=config.shard_name,
        )
    else:
        policy = make_batcher(config.batch_policy, delays)
        core = JobsCore(policy, limits, fence=fence, started_at_ns=started_at_ns, name=name)
    runtime.parts["jobs"] = core
    leadership.on_fence(core.set_fence)
    shell = JobShell(
        runtime, leadership, config.scheduler_queue_max, core.on_wake, core.on_worker_gone,
        core.on_partition,
    )  # fmt: skip
    shell.start()
    bus, shard = runtime.bus, str(config.scheduler_shard)
    await bus.subscribe(WORKER_REPORT, shell.feed(core.on_report))
    await bus.subscribe(BATCH_DONE, shell.feed(core.on_batch_done))
    await bus.subscribe(JOBS_SUBMIT, shell.feed(core.on_jobs), shard)
    await bus.subscribe(JOBS_CANCEL, shell.feed(core.on_cancel), shard)
    if isinstance(core, ShardJobsCore):
        await bus.subscribe(RANK_GRANT, shell.feed(core.on_grant), shard)
    await bus.flush()
    await leadership.announce()
    return core


async def start_rank(runtime: Runtime, config: SchedulerConfig, leadership: Leadership) -> None:
    """Match the offers of scheduler shards to workers in this process."""
    clock = runtime.clock
    core = RankCore(
        JobLimits(),
        started_at_ns=clock.now_ns(),
        first_grant=clock.wall_ns(),
    )
    shell = JobShell(
        runtime, leadership, config.scheduler_queue_max, core.on_wake, core.on_worker_gone
    )
    shell.start()
    bus = runtime.bus
    await bus.subscribe(WORKER_REPORT, shell.feed(core.on_report))
    await bus.subscribe(BATCH_DONE, shell.feed(core.on_batch_done))
    await bus.subscribe(RANK_OFFER, shell.feed(core.on_offer))
    await bus.subscribe(RANK_BOOKED, shell.feed(core.on_booked))
