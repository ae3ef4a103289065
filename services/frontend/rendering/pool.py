"""The shell around `core.process_pool`: child processes, and what is said to them."""

import asyncio
import logging
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import services
from services.frontend.core.process_pool import (
    Effect,
    Fail,
    Give,
    Kill,
    PoolLimits,
    ProcessPool,
    Start,
    Why,
)
from services.frontend.observability.access_log import served_tenant
from services.frontend.rendering import frames
from shared.errors import NoCapacity
from shared.fair_slots import Overloaded
from shared.ids import TenantId
from shared.runtime.clock import Clock
from shared.runtime.tasks import Tasks

log = logging.getLogger(__name__)

ENDING_S = 1.0  # of a process that has closed its output
_PACKAGES = str(Path(services.__path__[0]).parent)


@dataclass(frozen=True, slots=True)
class ChildKind:
    """Attributes:
    module: that a child runs, with its parent's process id as the argument.
    work: what it does, for the log.
    error: what a request gets whose work is over without a result, after how many ns of work.
    ended_by: signals by which a process ends whose work no process can do: they are no reason to
        try another one.
    """

    module: str
    work: str
    error: Callable[[Why, int], Exception]
    ended_by: frozenset[int] = frozenset()


@dataclass(slots=True)
class _Work:
    task: bytes
    answer: asyncio.Future[tuple[bytes, bytes]]


class Pool:
    """Processes that are begun for work, or before it comes, and do one piece at a time."""

    def __init__(self, clock: Clock, limits: PoolLimits, kind: "ChildKind | None" = None) -> None:
        self._clock = clock
        self._limits = limits
        self._kind = kind or TEXTS
        self._crew = ProcessPool(limits)
        self._works: dict[int, _Work] = {}
        self._num_works = 0
        self._processes: dict[int, Process] = {}
        self._tasks = Tasks("a text process's task failed")
        self._timer: asyncio.TimerHandle | None = None

    @property
    def limit_s(self) -> float:
        """How long one piece of work may take."""
        return self._limits.work_ns / 1e9

    @property
    def pids(self) -> list[int]:
        """Of the children that run."""
        return [process.pid for process in self._processes.values()]

    def begin(self) -> None:
        """Begin a process before there is work, which then does not wait for its imports."""
        self._perform(self._crew.on_open(self._clock.now_ns()))

    async def run(self, task: bytes, tenant: TenantId | None = None) -> tuple[bytes, bytes]:
        """A child's answer: its kind and its data.

        Args:
            task: packed, as the child reads it.
            tenant: whose work it is; None: of the request that is served.

        Raises:
            Exception: what the `ChildKind` has for work without a result.
        """
        self._num_works += 1
        number = self._num_works
        answer: asyncio.Future[tuple[bytes, bytes]] = asyncio.get_running_loop().create_future()
        self._works[number] = _Work(task, answer)
        tenant = served_tenant() if tenant is None else tenant
        self._perform(self._crew.on_work(number, self._clock.now_ns(), tenant))
        try:
            return await answer
        finally:
            self._works.pop(number, None)
            self._crew.on_abandoned(number)

    async def close(self) -> None:
        """End all children."""
        if self._timer is not None:
            self._timer.cancel()
        self._tasks.cancel()
        await self._tasks.wait(5.0)

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Start():
                    self._tasks.spawn(self._live(effect.child))
                case Kill():
                    self._kill(effect.child)
                case Give():
                    self._give(effect)
                case Fail():
                    self._fail(effect)
        self._set_timer()

    def _give(self, effect: Give) -> None:
        work = self._works[effect.work]  # abandoned work is not given
        stdin = self._processes[effect.child].stdin
        assert stdin is not None
        stdin.write(work.task)

    def _kill(self, child: int) -> None:
        process = self._processes.get(child)
        if process is not None and process.returncode is None:
            with suppress(ProcessLookupError):  # its own `kill` may wait for it before asyncio does
                os.kill(process.pid, signal.SIGKILL)

    def _fail(self, effect: Fail) -> None:
        log.warning("%s failed", self._kind.work, extra={"why": effect.why})
        work = self._works.get(effect.work)
        if work is not None and not work.answer.done():
            work.answer.set_exception(self._kind.error(effect.why, self._limits.work_ns))

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (at_ns := self._crew.next_at_ns()) is not None:
            left_s = max(at_ns - self._clock.now_ns(), 0) / 1e9
            self._timer = asyncio.get_running_loop().call_later(left_s, self._on_timer)

    def _on_timer(self) -> None:
        self._perform(self._crew.on_tick(self._clock.now_ns()))

    async def _live(self, child: int) -> None:
        """A child's life, from its start to its end."""
        is_by_work = False
        try:
            process = await _start(self._kind.module)
        except OSError as error:
            log.error("no process for %s", self._kind.work, extra={"error": str(error)})
        else:
            self._processes[child] = process
            try:
                await self._listen(child, process)
                with suppress(TimeoutError):  # its output is closed: it is about to end
                    await asyncio.wait_for(process.wait(), ENDING_S)
            finally:
                self._kill(child)
                code = await process.wait()
                del self._processes[child]
            is_by_work = -code in self._kind.ended_by
            log.info("a process for %s ended", self._kind.work, extra={"code": code})
        now_ns = self._clock.now_ns()
        self._perform(self._crew.on_ended(child, now_ns, is_by_work=is_by_work))

    async def _listen(self, child: int, process: Process) -> None:
        """Take a child's answers until it ends."""
        stdout, crew = process.stdout, self._crew
        assert stdout is not None
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                kind, length = frames.HEAD.unpack(await stdout.readexactly(frames.HEAD.size))
                if length > frames.ANSWER_BYTES_MAX:
                    log.error("a text process's answer is too large", extra={"bytes": length})
                    return
                data = await stdout.readexactly(length)
                now_ns = self._clock.now_ns()
                if kind == frames.READY:
                    self._perform(crew.on_ready(child, now_ns))
                elif kind == frames.BEGUN:
                    crew.on_begun(child, now_ns)
                    self._set_timer()
                else:
                    self._answer(crew.work_of(child), kind, data)
                    self._perform(crew.on_done(child, now_ns))

    def _answer(self, number: int | None, kind: bytes, data: bytes) -> None:
        work = None if number is None else self._works.get(number)
        if work is not None and not work.answer.done():
            work.answer.set_result((kind, data))


def _error(why: Why, work_ns: int) -> Exception:
    """Of a text. The caller names what took too long."""
    if why == "too_long":
        return TimeoutError()
    if why == "full":
        return Overloaded("too many long texts at once")
    return NoCapacity("the process that prepares long texts ended")


TEXTS = ChildKind("services.frontend.rendering.child", "long texts", _error)


async def _start(module: str) -> Process:
    path = [_PACKAGES, *filter(None, [os.environ.get("PYTHONPATH")])]
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, str(os.getpid()),
        stdin=PIPE,
        stdout=PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        start_new_session=True,  # Ctrl-C is for us
    )  # fmt: skip
