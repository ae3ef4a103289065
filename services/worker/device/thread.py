"""Threads beside the event loop: one launches what the device computes, others wait for it."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Protocol, TypeAlias, TypeVar

from services.worker.core.step import StepResult
from services.worker.device.base.executor import Finished, Launched

T = TypeVar("T")
_Deliver: TypeAlias = Callable[[StepResult | BaseException], None]


class DeviceThread(Protocol):
    """Runs what blocks, outside of the event loop."""

    def step(self, lane: str, launch: Callable[[], Launched]) -> "asyncio.Future[StepResult]":
        """Launch a step behind everything that was passed before, and wait for its end.

        Args:
            lane: the model's name: steps of one lane end in their order.
        """
        ...

    async def run(self, work: Callable[[], T]) -> T:
        """Run on the device's thread, between two steps."""
        ...

    async def run_beside(self, work: Callable[[], T]) -> T:
        """Run while the device's thread goes on."""
        ...

    def close(self) -> None:
        """End the threads, behind what they run."""
        ...


class DeviceThreads:
    """One thread launches steps. Where launching is not computing, another one a lane waits for
    their ends, so that a step is launched while the one before it computes.

    Args:
        launching: an executor of one thread, which stays open; made, and closed, by default.
    """

    def __init__(self, launching: ThreadPoolExecutor | None = None) -> None:
        self._is_own = launching is None
        self._launching = launching or ThreadPoolExecutor(1, "forward")
        self._reading: dict[str, ThreadPoolExecutor] = {}

    def step(self, lane: str, launch: Callable[[], Launched]) -> "asyncio.Future[StepResult]":
        loop = asyncio.get_running_loop()
        result: asyncio.Future[StepResult] = loop.create_future()
        if lane not in self._reading:
            self._reading[lane] = ThreadPoolExecutor(1, "step-results")  # no thread before its use
        self._launching.submit(self._launch, launch, lane, partial(_deliver, loop, result))
        return result

    async def run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._launching, work)

    async def run_beside(self, work: Callable[[], T]) -> T:
        return await asyncio.to_thread(work)

    def close(self) -> None:
        if self._is_own:
            self._launching.shutdown()
        for reading in self._reading.values():
            reading.shutdown(wait=False)

    def _launch(self, launch: Callable[[], Launched], lane: str, deliver: _Deliver) -> None:
        """In the launching thread."""
        try:
            launched = launch()
        except BaseException as error:
            deliver(error)
            return
        if isinstance(launched, Finished):
            deliver(launched.outcome)
        else:
            self._reading[lane].submit(_read, launched, deliver)


def _read(launched: Launched, deliver: _Deliver) -> None:
    """Wait for a step's end, in a reading thread."""
    try:
        deliver(launched.result())
    except BaseException as error:
        deliver(error)


def _deliver(
    loop: asyncio.AbstractEventLoop,
    future: "asyncio.Future[StepResult]",
    outcome: StepResult | BaseException,
) -> None:
    """From a thread; the worker may have ended meanwhile."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(_settle, future, outcome)


def _settle(future: "asyncio.Future[StepResult]", outcome: StepResult | BaseException) -> None:
    if future.done():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
