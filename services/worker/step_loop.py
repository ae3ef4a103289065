"""Keeps a device busy: asks the core for steps, passes them to the device, reports their ends."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from services.worker import metrics
from services.worker.core.effects import Effect
from services.worker.core.engine.engine import EngineCore
from services.worker.core.step import StepPlan, StepResult
from services.worker.device.base.executor import Executor
from services.worker.device.isolate import launch_isolated
from services.worker.device.thread import DeviceThread
from shared.runtime.clock import Clock
from shared.runtime.tasks import wait_set

# Beside turns, a recording takes as long as a few dozen steps: this many go before the next one.
STEPS_A_RECORDING = 50
RECORDING_PAUSE_S = 0.1


@dataclass(slots=True)
class _InFlight:
    """A step that the device has, perhaps behind another one."""

    plan: StepPlan
    work: "asyncio.Future[StepResult]"


class StepLoop:
    """Drives one `EngineCore` from the event loop; the forward pass runs in `thread`.

    Args:
        perform: performs the core's effects, at once.
        send: sends what effects have left to be sent; called while the device computes.
        on_stuck: called when a step does not end.
    """

    def __init__(
        self,
        core: EngineCore,
        clock: Clock,
        executor: Executor,
        thread: DeviceThread,
        perform: Callable[[list[Effect]], None],
        send: Callable[[], Awaitable[None]],
        on_stuck: Callable[[str], None],
    ) -> None:
        self._core = core
        self._clock = clock
        self._executor = executor
        self._thread = thread
        self._perform = perform
        self._send = send
        self._on_stuck = on_stuck
        self._wake = asyncio.Event()
        self._is_idle = asyncio.Event()
        self._in_flight: deque[_InFlight] = deque()
        self._first_since_ns = 0  # when the first of them began
        self._recording: asyncio.Future[None] | None = None
        self._num_landed = 0  # steps since the last recording

    def wake(self) -> None:
        """Something has happened: look again."""
        self._wake.set()

    async def wait_idle(self) -> None:
        """Wait until nothing can run for the next time."""
        self._is_idle.clear()
        await self._is_idle.wait()

    async def run(self) -> None:
        """Plan, launch, account, for ever."""
        while True:
            self._wake.clear()
            self._land()
            if self._in_flight or not self._core.num_turns:  # else the device waits for a plan
                await self._send()
            self._plan()
            self._record()
            await self._send()
            if not self._in_flight:
                self._is_idle.set()
            await self._sleep()

    def _land(self) -> None:
        """Every step that is over."""
        while self._in_flight and self._in_flight[0].work.done():
            done = self._in_flight.popleft()
            now_ns = self._first_since_ns = self._clock.now_ns()
            self._num_landed += 1
            result = done.work.result()
            self._perform(self._core.on_step(result, now_ns))
            metrics.count_step(self._executor.info.model_id, done.plan, result)

    def _plan(self) -> None:
        """The next step, if it is time."""
        at_ns, now_ns = self._core.plan_at_ns(), self._clock.now_ns()
        if at_ns is None or now_ns < at_ns:
            return
        self._core.set_assist_tokens(self._executor.assist_tokens)
        plan, effects = self._core.plan_step(now_ns)
        self._perform(effects)
        if plan is None:
            return
        if not self._in_flight:
            self._first_since_ns = self._clock.now_ns()
        launch = partial(launch_isolated, self._executor, plan)
        work = self._thread.step(self._executor.info.model_id, launch)
        work.add_done_callback(self._on_done)
        self._in_flight.append(_InFlight(plan, work))

    def _record(self) -> None:
        """Have the device record a pass while no turn is here, or now and then."""
        if self._recording is not None:
            if not self._recording.done():
                return
            self._recording.result()  # raises where the device is lost
            self._recording = None
        is_time = not self._core.num_turns or self._num_landed >= STEPS_A_RECORDING
        if self._executor.num_unrecorded and is_time:
            self._num_landed = 0
            recording = self._thread.run(self._executor.record_next)
            self._recording = asyncio.ensure_future(recording)
            self._recording.add_done_callback(self._on_recorded)

    def _on_recorded(self, _: "asyncio.Future[None]") -> None:
        """Other models of this worker have the device for a while."""
        asyncio.get_running_loop().call_later(RECORDING_PAUSE_S, self._wake.set)

    def _on_done(self, _: "asyncio.Future[StepResult]") -> None:
        self._wake.set()

    async def _sleep(self) -> None:
        """Until something happens, a step is to be planned, or one does not end."""
        now_ns = self._clock.now_ns()
        if not self._in_flight:
            deadline_ns = self._core.next_deadline_ns()
            if deadline_ns is None:
                await self._wake.wait()
            else:
                await wait_set(self._wake, max(deadline_ns - now_ns, 0) / 1e9)
            return
        plan = self._in_flight[0].plan
        limit_ns = self._core.step_limit_ns(plan)
        left_ns = self._first_since_ns + limit_ns - now_ns
        if left_ns <= 0:
            self._on_stuck(f"a step of {plan.num_rows} turns has run for {limit_ns / 1e9:.0f} s")
            await self._wake.wait()
            return
        at_ns = self._core.plan_at_ns()
        if at_ns is not None and at_ns > now_ns:
            left_ns = min(left_ns, at_ns - now_ns)
        await wait_set(self._wake, left_ns / 1e9)
