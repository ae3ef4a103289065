"""What a worker needs of its machine: threads, files, loaded models. A simulation has its own.

The bus, the clocks and the tracer come with `shared.service.Runtime`.
"""

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, TypeAlias, TypeVar

from services.worker.config import WorkerConfig
from services.worker.core.step import StepResult
from services.worker.device.copying.mover import Moved
from services.worker.device.executor import Executor, Finished, Launched
from services.worker.oneshot.model import OneshotModel
from shared.arena import Arena
from shared.dying import die

T = TypeVar("T")

OnMoved: TypeAlias = Callable[[Moved], None]
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


class Lock(Protocol):
    """A file that is locked until it is closed, or its process dies."""

    def close(self) -> None: ...


class HostFiles(Protocol):
    """The files that a worker shares with the kvstore of its host."""

    def attach(self, path: str) -> Arena:
        """Map the arena.

        Raises:
            ArenaError: not an arena of this release.
            OSError: no such file.
        """
        ...

    def lock(self, path: str) -> Lock:
        """Lock a file, which is made if it is not there.

        Raises:
            OSError: it cannot be opened.
        """
        ...


@dataclass(frozen=True, slots=True)
class TextModel:
    """A loaded generative model.

    Attributes:
        number: of the model among all of this worker.
    """

    number: int
    executor: Executor


LoadModels: TypeAlias = Callable[
    [WorkerConfig, DeviceThread, Callable[[str], OnMoved]], AsyncIterator[TextModel | OneshotModel]
]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPorts:
    """What a worker gets from its machine.

    Attributes:
        load: gives every model of the configuration once it is loaded; its third argument gives
            the callback for the page copies of the model of this name, callable from any thread.
        pid: of the process, as reports name it.
        on_stuck: called with the reason when a step does not end: ends the process.
    """

    thread: DeviceThread
    files: HostFiles
    load: LoadModels
    pid: int
    on_stuck: Callable[[str], None] = die


class DeviceThreads:
    """One thread launches steps. Where launching is not computing, another one a lane waits for
    their ends, so that a step is launched while the one before it computes.

    Args:
        launching: an executor of one thread; made by default.
    """

    def __init__(self, launching: ThreadPoolExecutor | None = None) -> None:
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


class _FileLock:
    def __init__(self, path: str) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file_number = os.open(path, flags, 0o600)
        fcntl.flock(self._file_number, fcntl.LOCK_EX)

    def close(self) -> None:
        os.close(self._file_number)


class SharedFiles:
    """The machine's file system."""

    def attach(self, path: str) -> Arena:
        return Arena.attach(Path(path))

    def lock(self, path: str) -> Lock:
        return _FileLock(path)
