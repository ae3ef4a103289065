"""A deterministic event loop for one simulated process, whose clock jumps to the next timer.

Production shells run on it unchanged: `asyncio.sleep`, timeouts, tasks and threads of the loop's
executor all take simulated time. Many loops share one `Timeline`. A process that dies leaves its
loop where it stands, as ``kill -9`` does: nothing of it runs any more, no ``finally`` either.
"""

import asyncio
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context, copy_context
from inspect import CORO_CREATED, getcoroutinestate
from random import Random
from typing import Any, Protocol, TypeVar, cast

from loadtest.sim.threads import Pool, ThreadHost, Threads
from loadtest.sim.timeline import SECOND

R = TypeVar("R")

CALLBACKS_MAX = 100_000  # in one instant
TASKS_MIN = 100
CLOSINGS_MAX = 100  # of one coroutine: each `await` in its ``finally`` blocks takes one


class LoopHost(ThreadHost, Protocol):
    """The process that a loop runs in."""

    def on_idle(self) -> None:
        """Nothing is ready to run any more at this instant."""


class _Handle:
    """As much of `asyncio.Handle` and `asyncio.TimerHandle` as asyncio itself and shells use, in a
    third of their time.
    """

    __slots__ = ("_args", "_callback", "_context", "_loop", "_when")

    def __init__(
        self,
        loop: "SimLoop",
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Context | None,
        when: float = 0.0,
    ) -> None:
        self._loop = loop
        self._callback: Callable[..., object] | None = callback
        self._args = args
        self._context = copy_context() if context is None else context  # an empty one is falsy
        self._when = when

    def when(self) -> float:
        return self._when

    def cancel(self) -> None:
        self._callback, self._args = None, ()

    def cancelled(self) -> bool:
        return self._callback is None

    def ring(self) -> None:
        """The timer is due."""
        if self._callback is not None:
            self._loop.enter(self)

    def run(self) -> None:
        if (callback := self._callback) is None:
            return
        try:
            self._context.run(callback, *self._args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self._loop.call_exception_handler({"message": repr(callback), "exception": error})


class SimLoop:
    """As much of `asyncio.AbstractEventLoop` as shells without sockets need.

    Args:
    host: gives time and runs what is due.
    random: decides how long the executor's threads take.

    Attributes:
        threads: of this process.
        lag_max_ns: until the process has a CPU, when there is something to do.
    """

    def __init__(self, host: LoopHost, random: Random) -> None:
        self._host = host
        self._random = random
        self._ready: deque[_Handle] = deque()
        self._is_awake = False
        self._on_exception: Callable[[Any, dict[str, Any]], object] | None = None
        self._tasks: list[asyncio.Task[Any]] = []
        self._tasks_max = TASKS_MIN
        self.threads = Threads(host, random)
        self.lag_max_ns = 0
        self._pools: dict[Any, Pool] = {}  # by executor

    @property
    def as_loop(self) -> asyncio.AbstractEventLoop:
        """This loop, as asyncio's types have it."""
        return cast(asyncio.AbstractEventLoop, self)

    def run(self) -> None:
        """Run callbacks until none is ready."""
        ready, num_left = self._ready, CALLBACKS_MAX
        outer = events._get_running_loop()
        events._set_running_loop(cast(asyncio.AbstractEventLoop, self))
        try:
            while ready:
                ready.popleft().run()
                num_left -= 1
                assert num_left, "no end of callbacks in one instant: a livelock"
        finally:
            self._is_awake = False
            events._set_running_loop(outer)
        self._host.on_idle()

    def enter(self, handle: _Handle) -> None:
        """Run this now, or, where callbacks wait already, behind them. The host calls it, outside
        of callbacks.
        """
        self._ready.append(handle)
        if not self._is_awake:
            self._is_awake = True
            self.run()

    def call_now(self, callback: Callable[..., object], *args: Any) -> None:
        """`enter` a callback: something arrived from outside of the process."""
        self.enter(_Handle(self, callback, args, None))

    def dispose(self) -> None:
        """Close what still waits, so that the interpreter does not complain of it later."""
        self._is_awake = True  # what is called from now on is not run
        outer = events._get_running_loop()
        events._set_running_loop(self.as_loop)
        for task in self._tasks:
            if not task.done():
                _close(task.get_coro())
        self.threads.end()
        events._set_running_loop(outer)
        self._ready.clear()

    # What asyncio asks of a loop.

    def time(self) -> float:
        return self._host.now_ns / SECOND

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> _Handle:
        handle = _Handle(self, callback, args, context)
        self._ready.append(handle)
        if not self._is_awake:
            self._is_awake = True
            lag_ns = self._random.randrange(self.lag_max_ns) if self.lag_max_ns else 0
            self._host.later(lag_ns, self.run)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> _Handle:
        delay_ns = max(round(delay * SECOND), 0)
        when = (self._host.now_ns + delay_ns) / SECOND
        handle = _Handle(self, callback, args, context, when)
        self._host.later(delay_ns, handle.ring)
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> _Handle:
        handle = _Handle(self, callback, args, context, when)
        self._host.later(max(round(when * SECOND) - self._host.now_ns, 0), handle.ring)
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=cast(asyncio.AbstractEventLoop, self))

    def create_task(
        self,
        coro: Coroutine[Any, Any, R],
        *,
        name: str | None = None,
        context: Context | None = None,
        **_: Any,
    ) -> asyncio.Task[R]:
        loop = cast(asyncio.AbstractEventLoop, self)
        task = asyncio.Task(coro, loop=loop, name=name, context=context)
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        self._tasks.append(task)  # of a process that died nothing else may hold it
        if len(self._tasks) > self._tasks_max:
            self._tasks = [each for each in self._tasks if not each.done()]
            self._tasks_max = 2 * len(self._tasks) + TASKS_MIN
        return task

    def run_in_executor(
        self, executor: Any, func: Callable[..., R], *args: Any
    ) -> asyncio.Future[R]:
        """`func` runs in a thread, and its result arrives later."""
        future: asyncio.Future[R] = self.create_future()

        def work() -> None:
            try:
                result = func(*args)
            except Exception as error:
                self.call_soon(fail, future, error)
            else:
                self.call_soon(settle, future, result)

        if executor is None:
            self.threads.start(work)
        else:
            if executor not in self._pools:
                num_threads = getattr(executor, "_max_workers", 1)
                self._pools[executor] = Pool(self.threads, num_threads, _never)
            self._pools[executor].submit(work)
        return future

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def set_exception_handler(
        self, handler: Callable[[Any, dict[str, Any]], object] | None
    ) -> None:
        self._on_exception = handler

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        assert self._on_exception is not None, context
        self._on_exception(self, context)


def settle(future: asyncio.Future[R], result: R) -> None:
    """Answer who waits, if it still does."""
    if not future.done():
        future.set_result(result)


def fail(future: asyncio.Future[Any], error: BaseException | type[BaseException]) -> None:
    """Fail who waits, if it still does."""
    if not future.done():
        future.set_exception(error)


def _never(error: BaseException) -> None:
    raise AssertionError("its work catches what it raises") from error


class _Dead(BaseException):
    """Nothing that handles errors handles this one."""


def _close(coro: Any) -> None:
    """Unwind a coroutine. One that never began is begun first: closed before that, what it was
    given to await would be said to have been forgotten. (`close` would leave behind what a
    ``finally`` awaits, and does not reach into asynchronous generators.)
    """
    with suppress(BaseException):
        if getcoroutinestate(coro) == CORO_CREATED:
            coro.send(None)
        for _ in range(CLOSINGS_MAX):
            coro.throw(_Dead())
