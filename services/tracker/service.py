"""The tracker's shell: messages to the core through one queue, its effects back onto the bus."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from services.tracker.config import TrackerConfig
from services.tracker.core import Count, Drop, Effect, Expect, Record, TrackerCore, WakeAt
from shared.clock import Clock
from shared.errors import NoCapacity, SymphonyError
from shared.messages import Advisory, AdvisoryKey, AdvisoryState, ExpectSession, TurnArrived
from shared.metrics import counter, gauge
from shared.service import Runtime
from shared.subjects import (
    ADVISORY_GET,
    ADVISORY_INVALIDATE,
    ADVISORY_SUBMIT,
    SESSION_DROP,
    SESSION_EXPECT,
    TURN_ARRIVED,
)

log = logging.getLogger(__name__)

M = TypeVar("M")

Event = Callable[[int], list[Effect]]
"""One thing that happened, to be told to the core with the time."""

PLACEMENT_TIMEOUT_S = 2.0
SUBMIT_WAIT_S = 1.0  # a submit is answered by then, placed or not
WAKE_RETRY_S = 0.05

ADVISORIES = counter("advisories_total", "Advisories by what became of them", ["outcome"])
LIVE = gauge("advisories_live", "Advisories whose turn is expected")
DROPPED = counter("tracker_events_dropped_total", "Events dropped because the queue was full")


class TrackerService:
    """Feeds one core, and asks the scheduler on its behalf."""

    def __init__(self, runtime: Runtime, config: TrackerConfig) -> None:
        self._runtime = runtime
        self._bus = runtime.bus
        self._clock = runtime.clock
        self._core = TrackerCore(config.limits())
        self._events: asyncio.Queue[Event] = asyncio.Queue(config.tracker_queue_max)
        self._alarm: asyncio.TimerHandle | None = None
        self._answered: dict[AdvisoryKey, asyncio.Event] = {}

    async def start(self) -> None:
        """Subscribe to everything and begin to consume."""
        self._runtime.spawn(self._consume(), "tracker events")
        await self._bus.subscribe(TURN_ARRIVED, self._turn_arrived)
        await self._bus.serve(ADVISORY_SUBMIT, self._submit)
        await self._bus.serve(ADVISORY_INVALIDATE, self._invalidate)
        await self._bus.serve(ADVISORY_GET, self._get)

    def stop(self) -> None:
        """No more alarms."""
        if self._alarm is not None:
            self._alarm.cancel()

    async def _submit(self, advisory: Advisory) -> AdvisoryState:
        record = await self._tell(self._core.on_submit, advisory)
        answered = self._answered.get(record.wire_key)
        if record.state == "expected" and answered is not None:
            with suppress(TimeoutError):  # the caller needs no place, only an answer
                await asyncio.wait_for(answered.wait(), SUBMIT_WAIT_S)
        return _to_wire(record, self._clock)

    async def _invalidate(self, key: AdvisoryKey) -> AdvisoryState:
        return _to_wire(await self._tell(self._core.on_invalidate, key), self._clock)

    async def _get(self, key: AdvisoryKey) -> AdvisoryState:
        return _to_wire(self._core.get(key), self._clock)

    def _turn_arrived(self, arrived: TurnArrived) -> None:
        self._put(partial(self._core.on_turn_arrived, arrived))

    async def _tell(
        self, handler: Callable[[M, int], tuple[Record, list[Effect]]], message: M
    ) -> Record:
        """Put `message` through the queue to the core and return its record, or raise its error."""
        answer: asyncio.Future[Record] = asyncio.get_running_loop().create_future()

        def event(now_ns: int) -> list[Effect]:
            try:
                record, effects = handler(message, now_ns)
            except SymphonyError as error:
                answer.set_exception(error)
                return []
            answer.set_result(record)
            return effects

        if not self._put(event):
            raise NoCapacity("the tracker has too much to do")
        return await answer

    def _put(self, event: Event) -> bool:
        try:
            self._events.put_nowait(event)
        except asyncio.QueueFull:
            DROPPED.inc()
            return False
        return True

    async def _consume(self) -> None:
        while True:
            event = await self._events.get()
            for effect in event(self._clock.now_ns()):
                self._perform(effect)
            LIVE.set(self._core.num_live)

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
            case WakeAt(at_ns):
                self.stop()
                delay_s = max(at_ns - self._clock.now_ns(), 0) / 1e9
                self._alarm = asyncio.get_running_loop().call_later(delay_s, self._wake)

    async def _ask(self, message: ExpectSession, key: AdvisoryKey, answered: asyncio.Event) -> None:
        worker_id = None
        try:
            placement = await self._bus.request(
                SESSION_EXPECT, message, timeout_s=PLACEMENT_TIMEOUT_S
            )
            worker_id = placement.worker_id
        except SymphonyError as error:
            log.warning("no placement", extra={"session_id": key.session_id, "why": error.message})

        def event(now_ns: int) -> list[Effect]:
            effects = self._core.on_placed(key, worker_id, now_ns)
            self._answered.pop(key, None)
            answered.set()
            return effects

        await self._events.put(event)  # the core counts on this one: wait for room

    async def _drop(self, key: AdvisoryKey) -> None:
        try:
            await self._bus.request(SESSION_DROP, key, timeout_s=PLACEMENT_TIMEOUT_S)
        except SymphonyError as error:  # the reservation then ends by its expiry
            log.warning("drop unheard", extra={"session_id": key.session_id, "why": error.message})

    def _wake(self) -> None:
        if not self._put(self._core.on_wake):  # the core waits for this one: it must not be lost
            self._alarm = asyncio.get_running_loop().call_later(WAKE_RETRY_S, self._wake)


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
    )


async def main(runtime: Runtime, config: TrackerConfig) -> None:
    """Run the tracker until told to stop."""
    service = TrackerService(runtime, config)
    runtime.stack.callback(service.stop)
    await service.start()
    await runtime.ready()
    await runtime.stopping.wait()
