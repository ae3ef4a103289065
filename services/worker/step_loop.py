"""Keeps a device busy: asks the core for steps, hands them over, and tells it of their ends.

One thread launches steps. Where launching is not computing, another one waits for their ends, so
that a step is launched while the one before it computes.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from services.worker import metrics
from services.worker.core.effects import Effect
from services.worker.core.engine.engine import EngineCore
from services.worker.core.step import StepPlan, StepResult
from services.worker.device.executor import Executor, Finished, Launched
from services.worker.device.isolate import launch_isolated
from shared.clock import Clock
from shared.tasks import wait_set


@dataclass(slots=True)
class _UnderWay:
    """A step that the thread has, perhaps behind another one."""

    plan: StepPlan
    work: "Future[StepResult]"


class StepLoop:
    """Drives one `EngineCore` from the event loop; the forward pass runs in `thread`.

    Args:
        perform: for the core's effects, at once.
        send: for what effects have left to be said; called while the device computes.
        on_stuck: told that a step does not end.
    """

    def __init__(
        self,
        core: EngineCore,
        clock: Clock,
        executor: Executor,
        thread: ThreadPoolExecutor,
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
        self._reader = ThreadPoolExecutor(1, "step-results")  # no thread before it is used
        self._under_way: deque[_UnderWay] = deque()
        self._first_since = 0.0  # when the first of them began, by the monotonic clock

    def wake(self) -> None:
        """Something has happened: look again."""
        self._wake.set()

    async def wait_idle(self) -> None:
        """Wait until nothing can run for the next time."""
        self._is_idle.clear()
        await self._is_idle.wait()

    async def run(self) -> None:
        """Plan, hand over, account, for ever."""
        try:
            while True:
                self._wake.clear()
                self._land()
                if self._under_way or not self._core.turns:  # else the device waits for a plan
                    await self._send()
                self._plan()
                await self._send()
                if not self._under_way:
                    self._is_idle.set()
                await self._sleep()
        finally:
            self._reader.shutdown(wait=False)

    def _land(self) -> None:
        """Every step that is over."""
        while self._under_way and self._under_way[0].work.done():
            done = self._under_way.popleft()
            self._first_since = time.monotonic()
            result = done.work.result()
            self._perform(self._core.on_step(result, self._clock.now_ns()))
            metrics.count_step(self._executor.info.model_id, done.plan, result)

    def _plan(self) -> None:
        """The next step, if it is time."""
        at_ns, now_ns = self._core.plan_at_ns(), self._clock.now_ns()
        if at_ns is None or now_ns < at_ns:
            return
        self._core.adapters.loading.ways.assist_tokens = self._executor.assist_tokens
        plan, effects = self._core.plan_step(now_ns)
        self._perform(effects)
        if plan is None:
            return
        if not self._under_way:
            self._first_since = time.monotonic()
        work: Future[StepResult] = Future()
        work.add_done_callback(partial(self._on_done, asyncio.get_running_loop()))
        self._under_way.append(_UnderWay(plan, work))
        self._thread.submit(self._launch, plan, work)

    def _on_done(self, loop: asyncio.AbstractEventLoop, work: "Future[StepResult]") -> None:
        """In a thread; the worker may have gone meanwhile."""
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(self._wake.set)

    def _launch(self, plan: StepPlan, work: "Future[StepResult]") -> None:
        """In the launching thread."""
        try:
            launched = launch_isolated(self._executor, plan)
        except BaseException as error:
            work.set_exception(error)
            return
        if isinstance(launched, Finished):
            work.set_result(launched.outcome)
        else:
            self._reader.submit(_read, launched, work)

    async def _sleep(self) -> None:
        """Until something happens, a step is to be planned, or one does not end."""
        now_ns = self._clock.now_ns()
        if not self._under_way:
            deadline_ns = self._core.next_deadline_ns()
            if deadline_ns is None:
                await self._wake.wait()
            else:
                await wait_set(self._wake, max(deadline_ns - now_ns, 0) / 1e9)
            return
        plan = self._under_way[0].plan
        limit_s = self._core.step_limit_ns(plan) / 1e9
        left_s = self._first_since + limit_s - time.monotonic()
        if left_s <= 0:
            self._on_stuck(f"a step of {plan.num_rows} turns has run for {limit_s:.0f} s")
            await self._wake.wait()
            return
        at_ns = self._core.plan_at_ns()
        if at_ns is not None and at_ns > now_ns:
            left_s = min(left_s, (at_ns - now_ns) / 1e9)
        await wait_set(self._wake, left_s)


def _read(launched: Launched, work: "Future[StepResult]") -> None:
    """Wait for a step's end, in the reading thread."""
    try:
        work.set_result(launched.result())
    except BaseException as error:
        work.set_exception(error)
