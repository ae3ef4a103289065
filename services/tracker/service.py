"""The tracker's shell: messages to the core through one queue, its effects back onto the bus."""

import asyncio
import logging
from dataclasses import replace
from functools import partial

from services.tracker.config import TrackerConfig
from services.tracker.core import (
    AgentTurns,
    Count,
    Drop,
    Effect,
    EndTrace,
    Expect,
    ForwardForeseen,
    ObserveLead,
    Record,
    SendVerdicts,
    Shards,
    TrackerCore,
)
from services.tracker.core.agents import AgentFollower, AgentLimits
from services.tracker.graphs import read_graphs
from services.tracker.routing import ShardRouter
from services.tracker.subscriptions import TurnSubscriptions
from services.tracker.traces import AdvisoryTraces
from shared.effects import WakeAt
from shared.errors import HintsThrottled, SymphonyError
from shared.ids import FrontendId, new_id
from shared.lease.lease import Lease
from shared.runtime.clock import Clock
from shared.runtime.events import EventQueue
from shared.runtime.metrics import counter, gauge, histogram
from shared.runtime.tasks import wait_set
from shared.service import Runtime
from shared.wire.messages import (
    Advisory,
    AdvisoryKey,
    AdvisoryState,
    AgentTurnLeft,
    ExpectSession,
    HintsEnded,
    TurnArrived,
    TurnsForeseen,
)
from shared.wire.shards import session_shard
from shared.wire.subjects import (
    ADVISORY_GET,
    ADVISORY_INVALIDATE,
    ADVISORY_SUBMIT,
    HINTS_ENDED,
    SESSION_DROP,
    SESSION_EXPECT,
    TURNS_FORESEEN,
)

log = logging.getLogger(__name__)

PLACEMENT_TIMEOUT_S = 2.0
SUBMIT_WAIT_S = 1.0  # a submit is answered by then, placed or not
LEADS_S = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
UNLIKELY = "too few announced turns of this kind came recently: nothing is prefetched for them"

ADVISORIES = counter("advisories_total", "Advisories by outcome", ["outcome"])
LIVE = gauge("advisories_live", "Advisories whose turn is expected")
AGENT_HINTS = counter("agent_hints_total", "Hints of agents' next turns by outcome", ["outcome"])
LEAD = histogram("advisory_lead_seconds", "Advisory to its turn", buckets=LEADS_S)
THROTTLED = counter(
    "tracker_hints_throttled_total", "Advisories refused that were sent by NATS directly"
)
DROPPED = counter("tracker_events_dropped_total", "Events dropped because the queue was full")


class TrackerService:
    """Feeds one core, and asks the scheduler on its behalf."""

    def __init__(
        self, runtime: Runtime, config: TrackerConfig, agent_limits: AgentLimits | None = None
    ) -> None:
        self._num_schedulers = config.scheduler_shards
        self._runtime = runtime
        self._bus = runtime.bus
        self._clock = runtime.clock

        self._shards = Shards(config.tracker_shards, config.tracker_shard)
        self._router = ShardRouter(runtime.bus, runtime.clock, self._shards)
        self._core = TrackerCore(
            config.limits(),
            _agents_of(config, agent_limits),
            tracker_id=new_id("tracker"),
            is_spare=True,
            shards=self._shards,
        )
        runtime.parts["advisories"] = self._core
        self._is_leading = False
        self._events: EventQueue[Effect] = EventQueue(
            config.tracker_queue_max, runtime.clock, self._core.on_wake, DROPPED
        )
        self._traces = AdvisoryTraces(runtime.tracer, runtime.clock)
        self._answered: dict[AdvisoryKey, asyncio.Event] = {}
        self._num_counted: dict[str, int] = {}

    async def start(self) -> None:
        """Subscribe to turns and learn from them, as a spare does until it leads."""
        self._runtime.spawn(self._consume(), "tracker events")
        subscriptions = TurnSubscriptions(
            self._shards, self._router, self._turn_arrived, self._agent_turn_left, self._foreseen
        )
        await subscriptions.start(self._bus)

    async def lead(self) -> None:
        """Serve advisories, and act on them."""
        self._is_leading = True
        self._runtime.hints = lambda: self._core.status(self._clock.now_ns())
        await self._events.put_surely(self._core.on_lead)
        router = self._router
        await router.serve(ADVISORY_SUBMIT, self._submit)
        await router.serve(ADVISORY_INVALIDATE, self._invalidate)
        await router.serve(ADVISORY_GET, self._get)

    def stop(self) -> None:
        """Cancel the alarm."""
        self._events.stop()

    async def _submit(self, advisory: Advisory) -> AdvisoryState:
        advisory = self._traces.on_submit(advisory)
        try:
            record, num_merged = await self._events.ask(self._on_submit, advisory)
        except SymphonyError as error:
            self._traces.on_refused(advisory.trace, error.code)
            if isinstance(error, HintsThrottled):
                THROTTLED.inc()
            raise
        log.info(
            "advisory",
            extra={
                "request_id": advisory.request_id,
                "session_id": advisory.session_id,
                "state": record.state,
                "num_merged": num_merged,
                "acted_on": record.is_acted_on,
            },
        )
        answered = self._answered.get(record.wire_key)
        if record.state == "expected" and answered is not None:
            await wait_set(answered, SUBMIT_WAIT_S)  # the caller needs an answer, not a reservation
        return replace(_to_wire(record, self._clock), num_merged=num_merged)

    def _on_submit(
        self, advisory: Advisory, now_ns: int
    ) -> tuple[tuple[Record, int], list[Effect]]:
        """The record and its current `num_merged`, which may grow until this one is answered."""
        record, effects = self._core.on_submit(advisory, now_ns)
        return (record, record.num_merged), effects

    async def _invalidate(self, key: AdvisoryKey) -> AdvisoryState:
        return _to_wire(await self._events.ask(self._core.on_invalidate, key), self._clock)

    async def _get(self, key: AdvisoryKey) -> AdvisoryState:
        return _to_wire(self._core.get(key), self._clock)

    def _turn_arrived(self, arrived: TurnArrived) -> None:
        if self._is_leading and arrived.part != "workflow":  # else several trackers log it
            log.info(
                "turn arrived",
                extra={
                    "request_id": arrived.request_id,
                    "session_id": arrived.session_id,
                    "turn_id": arrived.turn_id,
                    "reserved": arrived.reserved,
                },
            )
        self._events.put(partial(self._core.on_turn_arrived, arrived))

    def _agent_turn_left(self, left: AgentTurnLeft) -> None:
        self._events.put(partial(self._core.on_agent_turn_left, left))

    def _foreseen(self, message: TurnsForeseen) -> None:
        self._events.put(partial(self._core.on_foreseen, message))

    async def _consume(self) -> None:
        while True:
            for effect in await self._events.next_effects():
                self._perform(effect)
            LIVE.set(self._core.num_live)
            self._count_hints()

    def _count_hints(self) -> None:
        counts = self._core.agent_hint_counts()
        for outcome, num in counts.items() if self._is_leading else ():
            AGENT_HINTS.labels(outcome).inc(num - self._num_counted.get(outcome, 0))
        self._num_counted = counts

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Expect(message):
                key = AdvisoryKey(tenant=message.tenant, session_id=message.session_id)
                answered = self._answered.setdefault(key, asyncio.Event())
                self._runtime.spawn(self._ask(message, key, answered), "placement")
            case Drop(key):
                self._runtime.spawn(self._drop(key), "drop")
            case Count(outcome):
                ADVISORIES.labels(outcome).inc()
            case ObserveLead(seconds):
                LEAD.observe(seconds)
            case SendVerdicts(frontend_id, ended):
                self._runtime.spawn(self._send_verdicts(ended, frontend_id), "verdicts")
            case EndTrace(trace, outcome, worker_id):
                self._traces.on_end(trace, outcome, worker_id)
            case ForwardForeseen(shard, message):
                self._runtime.spawn(self._forward(shard, message), "foreseen")
            case WakeAt(at_ns):
                self._events.set_alarm(at_ns)

    async def _ask(self, message: ExpectSession, key: AdvisoryKey, answered: asyncio.Event) -> None:
        worker_id = None
        try:
            placement = await self._bus.request(
                SESSION_EXPECT, message, self._scheduler_of(key), timeout_s=PLACEMENT_TIMEOUT_S
            )
            worker_id = placement.worker_id
        except SymphonyError as error:
            log.warning("no placement", extra={"session_id": key.session_id, "why": error.message})

        def event(now_ns: int) -> list[Effect]:
            effects = self._core.on_placed(key, worker_id, now_ns)
            self._answered.pop(key, None)
            answered.set()
            return effects

        await self._events.put_surely(event)

    async def _send_verdicts(self, ended: HintsEnded, frontend_id: FrontendId) -> None:
        try:
            await self._bus.publish(HINTS_ENDED, ended, frontend_id)
        except SymphonyError as error:  # token buckets refill by themselves, more slowly
            log.warning("verdicts not sent", extra={"why": error.message})

    def _scheduler_of(self, key: AdvisoryKey) -> str:
        return str(session_shard(key.tenant, key.session_id, self._num_schedulers))

    async def _forward(self, shard: int, message: TurnsForeseen) -> None:
        try:
            await self._bus.publish(TURNS_FORESEEN, message, str(shard))
        except SymphonyError as error:  # those turns arrive unannounced
            log.warning(
                "foreseen turns not forwarded", extra={"shard": shard, "why": error.message}
            )

    async def _drop(self, key: AdvisoryKey) -> None:
        try:
            shard = self._scheduler_of(key)
            await self._bus.request(SESSION_DROP, key, shard, timeout_s=PLACEMENT_TIMEOUT_S)
        except SymphonyError as error:  # the reservation then expires
            log.warning("drop not sent", extra={"session_id": key.session_id, "why": error.message})


def _agents_of(config: TrackerConfig, limits: AgentLimits | None) -> AgentTurns:
    limits = limits or AgentLimits(slack_ns=config.limits().slack_ns)
    learned = read_graphs(config.agent_graphs, limits) if config.agent_graphs is not None else {}
    return AgentTurns(AgentFollower(limits, learned))


def _to_wire(record: Record, clock: Clock) -> AdvisoryState:
    tenant, session_id = record.key
    wall_minus_now_ns = clock.wall_ns() - clock.now_ns()
    return AdvisoryState(
        session_id=session_id,
        tenant=tenant,
        state=record.state,
        model_id=record.model_id,
        worker_id=record.worker_id,
        priority=record.priority,
        num_merged=record.num_merged,
        created=(record.created_at_ns + wall_minus_now_ns) / 1e9,
        expires=(record.expires_at_ns + wall_minus_now_ns) / 1e9,
        agent=record.origin.agent,
        workflow_id=record.origin.workflow_id,
        chance=round(record.chance, 3),
        acted_on=record.is_acted_on,
        why="" if record.is_acted_on else UNLIKELY,
    )


async def main(
    runtime: Runtime, config: TrackerConfig, agent_limits: AgentLimits | None = None
) -> None:
    """Run the tracker until it is stopped; as a spare until it leads."""
    service = TrackerService(runtime, config, agent_limits)
    runtime.stack.callback(service.stop)
    await service.start()
    # Two leaders for a moment do no harm, since hints are only hints: nothing waits for the lease.
    lost = partial(runtime.fail, "another tracker leads: leaving")
    lease = Lease(runtime, config, key=config.leadership, on_lost=lost)
    if await lease.lead_or_stop():
        await service.lead()
        await runtime.ready()
        await runtime.stopping.wait()
    await lease.release()
