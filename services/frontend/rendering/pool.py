"""The shell around `core.crew`: child processes, and what is said to them."""

import asyncio
import logging
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import services
from services.frontend.core.crew import Crew, CrewLimits, Effect, Fail, Give, Kill, Start, Why
from services.frontend.rendering import frames
from services.frontend.rendering.frames import TEMPLATE_OPERATIONS
from shared.clock import Clock
from shared.errors import InvalidRequest, NoCapacity
from shared.tasks import Tasks

log = logging.getLogger(__name__)

TOO_LONG = "prompt_takes_too_long"
_CHILD = "services.frontend.rendering.child"
_PACKAGES = str(Path(services.__path__[0]).parent)


class Overloaded(NoCapacity):
    """As many long texts wait as may."""

    code = "overloaded"


@dataclass(slots=True)
class _Work:
    task: frames.Task
    answer: asyncio.Future[tuple[bytes, bytes]]


class Pool:
    """Processes that are begun when there is work for them and do one piece at a time."""

    def __init__(self, clock: Clock, limits: CrewLimits) -> None:
        self._clock = clock
        self._limits = limits
        self._crew = Crew(limits)
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

    async def run(self, task: frames.Task) -> tuple[bytes, bytes]:
        """A child's answer: its kind and its data.

        Raises:
            InvalidRequest: it took too long.
            NoCapacity: no child could do it.
        """
        self._num_works += 1
        number, answer = self._num_works, asyncio.get_running_loop().create_future()
        self._works[number] = _Work(task, answer)
        self._perform(self._crew.on_work(number, self._clock.now_ns()))
        try:
            kind, data = await answer
        finally:
            self._works.pop(number, None)
            self._crew.on_abandoned(number)
        if kind == frames.UNLOADED:
            raise NoCapacity(f"the model's tokenizer cannot be loaded: {data.decode()}")
        return kind, data

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
        work = self._works[effect.work]  # what nobody waits for any more is not given
        stdin = self._processes[effect.child].stdin
        assert stdin is not None
        stdin.write(frames.pack_task(work.task))

    def _kill(self, child: int) -> None:
        process = self._processes.get(child)
        if process is not None and process.returncode is None:
            with suppress(ProcessLookupError):  # its own `kill` may wait for it before asyncio does
                os.kill(process.pid, signal.SIGKILL)

    def _fail(self, effect: Fail) -> None:
        log.warning("a long text failed", extra={"why": effect.why})
        work = self._works.get(effect.work)
        if work is not None and not work.answer.done():
            work.answer.set_exception(_error(effect.why, work.task.operation, self.limit_s))

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
        try:
            process = await _start()
        except OSError as error:
            log.error("no process for long texts", extra={"error": str(error)})
        else:
            self._processes[child] = process
            try:
                await self._listen(child, process)
            finally:
                self._kill(child)
                await process.wait()
                del self._processes[child]
            log.info("a process for long texts ended", extra={"code": process.returncode})
        self._perform(self._crew.on_ended(child, self._clock.now_ns()))

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


def too_long(operation: frames.Operation, limit_s: float) -> InvalidRequest:
    """The error of what takes longer than it may."""
    what = "the model's chat template" if operation in TEMPLATE_OPERATIONS else "the prompt"
    why = "runs longer" if operation in TEMPLATE_OPERATIONS else "takes longer to prepare"
    return InvalidRequest(f"{what} {why} than {limit_s:g} s", code=TOO_LONG)


def _error(why: Why, operation: frames.Operation, limit_s: float) -> Exception:
    if why == "too_long":
        return too_long(operation, limit_s)
    if why == "full":
        return Overloaded("too many long texts at once")
    return NoCapacity("the process that prepares long texts ended")


async def _start() -> Process:
    path = [_PACKAGES, *filter(None, [os.environ.get("PYTHONPATH")])]
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", _CHILD, str(os.getpid()),
        stdin=PIPE,
        stdout=PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        start_new_session=True,  # Ctrl-C is for us
    )  # fmt: skip
