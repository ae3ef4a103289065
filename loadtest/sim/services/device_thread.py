"""The threads of a simulated worker: launches one after the other, results when they are there."""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, Protocol, TypeVar

from loadtest.sim.services.device import DeviceLost, SimStep
from loadtest.sim.timeline import US, Action
from services.worker.core.step import StepResult
from services.worker.device.base.executor import Launched

T = TypeVar("T")

LAUNCH_MAX_NS = 100 * US  # until a launch that nothing is ahead of begins


class Host(Protocol):
    """The process that the threads are in.

    Attributes:
        spent_ns: by which its clock is ahead while a call keeps the launching thread.
    """

    spent_ns: int

    def later(self, delay_ns: int, action: Action) -> None:
        """Do it in `delay_ns`, in this life."""


class SimThread:
    """`DeviceThread` of one life of a worker."""

    def __init__(self, host: Host, random: Random) -> None:
        self._host = host
        self._random = random
        self._queue: deque[Action] = deque()
        self._has_batch = False

    def step(self, lane: str, launch: Callable[[], Launched]) -> "asyncio.Future[StepResult]":
        del lane
        loop = asyncio.get_running_loop()
        future: asyncio.Future[StepResult] = loop.create_future()

        def begin() -> None:
            try:
                launched = launch()
            except DeviceLost as error:
                _settle(loop, future, error)
                return
            assert isinstance(launched, SimStep)
            launched.on_over = lambda result: _settle(loop, future, result)

        self._put(begin)
        return future

    async def run(self, work: Callable[[], T]) -> T:
        """It keeps the thread for as long as it advances the clock."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        assert not self._has_batch, "two batches on one device"
        self._has_batch = True

        def begin() -> None:
            try:
                outcome: T | BaseException = work()
            except Exception as error:
                outcome = error
            self._host.later(self._host.spent_ns, partial(end, outcome))

        def end(outcome: T | BaseException) -> None:
            self._has_batch = False
            _settle(loop, future, outcome)

        self._put(begin)
        return await future

    async def run_beside(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(None, work)

    def close(self) -> None:
        """Launch nothing more."""
        self._queue.clear()

    def _put(self, begin: Action) -> None:
        self._queue.append(begin)
        if len(self._queue) == 1:
            self._host.later(self._random.randrange(LAUNCH_MAX_NS), self._next)

    def _next(self) -> None:
        if not self._queue:
            return
        self._host.spent_ns = 0
        self._queue[0]()
        busy_ns, self._host.spent_ns = self._host.spent_ns, 0
        self._host.later(busy_ns, self._done)

    def _done(self) -> None:
        if self._queue:
            self._queue.popleft()
            self._next()


def _settle(loop: Any, future: "asyncio.Future[Any]", outcome: object) -> None:
    loop.call_soon_threadsafe(_set, future, outcome)


def _set(future: "asyncio.Future[Any]", outcome: object) -> None:
    if future.done():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
