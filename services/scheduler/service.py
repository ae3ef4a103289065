"""The scheduler's shell: messages to the core through one queue, its effects back onto the bus."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from services.scheduler.advice import publish_advice
from services.scheduler.config import SchedulerConfig
from services.scheduler.consume import consume, probe
from services.scheduler.core import (
    CancelTurn,
    CountTurn,
    DropPrefetch,
    Effect,
    FailTurn,
    NotifyArrival,
    NotifyFrontends,
    NotifyPeer,
    NotifyPeers,
    ProbeWorker,
    PublishAdvice,
    SchedulerCore,
    SendPrefetch,
    StartTurn,
    StartTurns,
    merge_effects,
)
from services.scheduler.core.turns.turn_table import first_attempt
from services.scheduler.job_service import start_jobs, start_rank
from services.scheduler.leadership import Leadership
from services.scheduler.policies import make_placement
from services.scheduler.traces import PlacementTraces
from shared.effects import WakeAt
from shared.errors import NoCapacity
from shared.groups import in_groups
from shared.ids import WorkerId
from shared.runtime.events import EventQueue
from shared.runtime.metrics import counter, gauge
from shared.service import Runtime
from shared.wire.messages import (
    AdvisoryKey,
    Empty,
    ExpectSession,
    JobWindow,
    PlacedTurn,
    SchedulerStatus,
    SessionPlacement,
    TurnsPlaced,
    TurnsStart,
    TurnsSubmit,
    TurnStart,
)
from shared.wire.subjects import (
    SCHEDULER_PING,
    SCHEDULER_STATUS,
    SESSION_DROP,
    SESSION_EXPECT,
    SESSION_PLACED,
    TURN_CANCEL,
    TURN_FAILED,
    TURN_PREFETCHED,
    TURN_SUBMIT,
    TURNS_ENDED,
    TURNS_PLACED,
    WORKER_CANCEL,
    WORKER_PREFETCH,
    WORKER_PREFETCH_DROP,
    WORKER_REPORT,
    WORKER_START,
)
from shared.wire.tracker_shards import arrival_wires

log = logging.getLogger(__name__)

M = TypeVar("M")

GAUGES_EVERY_S = 1.0
PLACED_BYTES = 256  # of one placed turn in a message to peers, at most
START_BYTES = 1024  # of one start without its prompt, roughly
PAYLOAD_SHARE = 0.5  # of the largest message, since sizes are estimated

TURNS = counter("scheduler_turns_total", "Turns that are over", ["outcome"])
PLACEMENTS = counter("scheduler_placements_total", "Attempts sent to workers", ["reason"])
PREFETCHES = counter("scheduler_prefetches_total", "Prefetches requested of workers")
DROPPED = counter("scheduler_events_dropped_total", "Messages dropped because the queue was full")
WORKERS = gauge("scheduler_workers", "Workers by state", ["state"])
TURNS_NOW = gauge("scheduler_turns_held", "Turns by state", ["state"])
RESERVATIONS = gauge("scheduler_reservations", "Reservations for expected sessions")


class SchedulerService:
    """Feeds one core. The protocol makes up for messages that are dropped or unsent here: reports
    repeat, frontends submit again, missing turns are noticed.

    Attributes:
        windows: waiting one-shot jobs at an instant; empty until the job core runs.
    """

    def __init__(self, runtime: Runtime, config: SchedulerConfig, leadership: Leadership) -> None:
        self._runtime = runtime
        self._leadership = leadership
        self._bus = runtime.bus
        self._clock = runtime.clock
        self._traces = PlacementTraces(runtime.tracer, runtime.clock)
        self._num_tracker_shards = config.tracker_shards
        limits = config.limits()
        self._core = SchedulerCore(
            make_placement(config.scheduler_policy, limits),
            limits,
            started_at_ns=self._clock.now_ns(),
            attempt_floor=first_attempt(leadership.fence),
            share=config.share,
        )
        runtime.parts["turns"] = self._core
        self.windows: Callable[[int], list[JobWindow]] = lambda now_ns: []
        self._share, self._shard = config.share, str(config.share.index)
        leadership.on_fence(self._core.set_fence)
        self._events: EventQueue[Effect] = EventQueue(
            config.scheduler_queue_max, runtime.clock, self._core.on_wake, DROPPED
        )

    async def start(self) -> None:
        """Subscribe to everything and begin to consume."""
        core = self._core
        self._events.put(core.on_wake)
        self._runtime.spawn(
            consume(self._events, self._leadership, self._perform, merge_effects),
            "scheduler events",
        )
        self._runtime.spawn(self._refresh_gauges(), "scheduler gauges")
        await self._bus.subscribe(WORKER_REPORT, self._feed(core.on_report))
        await self._bus.subscribe(TURNS_ENDED, self._feed(core.on_turns_ended))
        await self._bus.subscribe(TURN_PREFETCHED, self._feed(core.on_turn_prefetched))
        await self._bus.subscribe(TURNS_PLACED, self._feed(core.on_turns_placed))
        await self._bus.subscribe(TURN_CANCEL, self._feed(core.on_turn_cancel), self._shard)
        await self._bus.subscribe(TURN_SUBMIT, self._on_submits, self._shard)
        await self._bus.serve(SESSION_EXPECT, self._expect, self._shard)
        await self._bus.serve(SESSION_DROP, self._drop, self._shard)
        await self._bus.serve(SCHEDULER_PING, self._ping, self._shard)
        await self._bus.serve(SCHEDULER_STATUS, self._status)

    def stop(self) -> None:
        """Cancel the alarm."""
        self._events.stop()

    async def _expect(self, message: ExpectSession) -> SessionPlacement:
        came_ns = self._clock.now_ns()
        placement = await self._events.ask(self._core.on_expect, message)
        self._traces.on_expected(message, placement, came_ns)
        return placement

    async def _drop(self, message: AdvisoryKey) -> Empty:
        if not self._events.put(partial(self._core.on_drop, message)):
            raise NoCapacity("the scheduler is overloaded")
        return Empty()

    async def _ping(self, _: Empty) -> Empty:
        return Empty()

    async def _status(self, _: Empty) -> SchedulerStatus:
        now_ns = self._clock.now_ns()
        status = self._core.status(now_ns)
        return replace(status, process=self._runtime.process, windows=self.windows(now_ns))

    def _feed(self, handler: Callable[[M, int], list[Effect]]) -> Callable[[M], None]:
        def on_message(message: M) -> None:
            self._events.put(partial(handler, message))

        return on_message

    def _on_submits(self, message: TurnsSubmit) -> None:
        self._traces.on_submits(message)
        self._events.put(partial(self._core.on_turns_submit, message))

    async def _perform(self, effect: Effect) -> None:
        match effect:
            case StartTurns(worker_id, starts):
                await self._start(worker_id, starts)
            case CancelTurn(worker_id, cancel):
                await self._bus.publish(WORKER_CANCEL, cancel, worker_id)
            case FailTurn(frontend_id, failed, request_id):
                fields = {"request_id": request_id, "turn_id": failed.turn_id, "code": failed.code}
                log.info("turn failed", extra=fields)
                await self._bus.publish(TURN_FAILED, failed, frontend_id)
            case SendPrefetch(worker_id, prefetch):
                PREFETCHES.inc()
                await self._bus.publish(WORKER_PREFETCH, prefetch, worker_id)
            case DropPrefetch(worker_id, drop):
                await self._bus.publish(WORKER_PREFETCH_DROP, drop, worker_id)
            case NotifyFrontends(placed):
                await self._bus.publish(SESSION_PLACED, placed)
            case NotifyPeers(turns, kept):
                await self._notify_peers(turns, kept)
            case NotifyArrival(arrived):
                for wire, ids, message in arrival_wires(arrived, self._num_tracker_shards):
                    await self._bus.publish(wire, message, *ids)
            case ProbeWorker(worker_id):
                asking = probe(self._bus, worker_id, self._events, self._core.on_worker_gone)
                self._runtime.spawn(asking, f"probe {worker_id}")
            case CountTurn(outcome):
                TURNS.labels(outcome).inc()
            case PublishAdvice(advice):
                await publish_advice(self._bus, advice)
            case WakeAt(at_ns):
                self._events.set_alarm(at_ns)
            case StartTurn() | NotifyPeer():
                raise AssertionError("`merge_effects` merges these")

    async def _start(self, worker_id: WorkerId, starts: list[StartTurn]) -> None:
        room = int(self._bus.payload_bytes_max * PAYLOAD_SHARE)
        unsent = [each.start for each in starts if not each.is_sent]
        for turns in in_groups(unsent, lambda start: START_BYTES + len(start.prompt), room):
            await self._bus.publish(WORKER_START, TurnsStart(turns=turns), worker_id)
        for each in starts:
            PLACEMENTS.labels(each.reason).inc()
            self._traces.on_started(worker_id, each.start, each.reason)
            _log_placed(worker_id, each.start, each.reason)

    async def _notify_peers(self, turns: list[PlacedTurn], kept: list[WorkerId]) -> None:
        shard = self._share.index
        room = int(self._bus.payload_bytes_max * PAYLOAD_SHARE)
        groups = list(in_groups(turns, lambda _: PLACED_BYTES, room))
        for group in groups or [[]]:
            await self._bus.publish(TURNS_PLACED, TurnsPlaced(shard=shard, turns=group, kept=kept))

    async def _refresh_gauges(self) -> None:
        while True:
            status = self._core.status(self._clock.now_ns())
            for state in ("loading", "ready", "draining", "dead"):
                WORKERS.labels(state).set(sum(w.state == state for w in status.workers))
            TURNS_NOW.labels("placed").set(status.num_turns_placed)
            TURNS_NOW.labels("waiting").set(status.num_turns_waiting)
            RESERVATIONS.set(status.num_reservations)
            await asyncio.sleep(GAUGES_EVERY_S)


def _log_placed(worker_id: WorkerId, start: TurnStart, reason: str) -> None:
    log.info(
        "turn placed",
        extra={
            "request_id": start.request_id,
            "turn_id": start.turn_id,
            "attempt": start.attempt,
            "worker_id": worker_id,
            "reason": reason,
        },
    )


async def main(runtime: Runtime, config: SchedulerConfig) -> None:
    """Run the scheduler until it is stopped; as a spare until it leads."""
    leadership = Leadership(runtime, config)
    if await leadership.take():
        if config.scheduler_role == "rank":
            await start_rank(runtime, config, leadership)
        else:
            service = SchedulerService(runtime, config, leadership)
            runtime.stack.callback(service.stop)
            await service.start()
            service.windows = (await start_jobs(runtime, config, leadership)).windows
        await runtime.ready()
        await runtime.stopping.wait()
    await leadership.leave()
