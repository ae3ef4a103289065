"""Threads of a simulated process: blocking code, in which simulated time passes where it waits.

Each is a greenlet. It runs until it waits; the event loop and other threads go on meanwhile.
"""

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from random import Random
from typing import Protocol

from greenlet import GreenletExit, getcurrent, greenlet

from loadtest.sim.timeline import MS, Action

START_MAX_NS = 2 * MS  # until a thread takes up what waits for it, at most
STOP_POLL_NS = MS


class ThreadHost(Protocol):
    """The process that threads run in."""

    @property
    def now_ns(self) -> int:
        """Its monotonic clock."""

    def later(self, delay_ns: int, action: Action) -> None:
        """Run `action` in `delay_ns`, in this life, not before a freeze is over."""


def wait_ns(delay_ns: int) -> None:
    """In a thread: let so much time pass."""
    thread = getcurrent()
    thread.host.later(delay_ns, thread.switch)
    thread.parent.switch()


class Threads:
    """All threads of one life of a process."""

    def __init__(self, host: ThreadHost, random: Random) -> None:
        self.host = host
        self.random = random
        self._running: dict[greenlet, None] = {}
        self._are_over = False

    def start(self, work: Callable[[], None]) -> None:
        """Run `work` in a thread of its own, soon."""
        self.host.later(self.random.randrange(START_MAX_NS), partial(self._run, work))

    def end(self) -> None:
        """The process died: nothing of them runs any more."""
        self._are_over = True
        for thread in list(self._running):
            thread.throw(GreenletExit)

    def _run(self, work: Callable[[], None]) -> None:
        if self._are_over:
            return
        thread: greenlet = greenlet(lambda: self._work(thread, work))
        thread.host = self.host
        self._running[thread] = None
        thread.switch()

    def _work(self, thread: greenlet, work: Callable[[], None]) -> None:
        try:
            work()
        finally:
            del self._running[thread]


class Pool:
    """So many threads that share a queue of work, as the kvstore's `Executor` has them.

    Args:
        fail: called with what `work` raised; no more is done then.
    """

    def __init__(
        self, threads: Threads, num_threads: int, fail: Callable[[BaseException], None]
    ) -> None:
        self.num_threads = num_threads
        self.lock: AbstractContextManager[object] = nullcontext()
        self._threads = threads
        self._fail = fail
        self._works: deque[Callable[[], None]] = deque()
        self._num_running = 0

    def submit(self, work: Callable[[], None]) -> None:
        """Run `work` once a thread is free."""
        self._works.append(work)
        if self._num_running < self.num_threads:
            self._num_running += 1
            self._threads.start(self._drain)

    def stop(self, timeout_s: float | None = None) -> None:
        """In a thread: wait until all work is done, but no longer than that."""
        host = self._threads.host
        until_ns = None if timeout_s is None else host.now_ns + round(timeout_s * 1e9)
        while self._num_running and (until_ns is None or host.now_ns < until_ns):
            wait_ns(STOP_POLL_NS)

    def _drain(self) -> None:
        try:
            while self._works:
                self._works.popleft()()
        except Exception as error:
            self._works.clear()
            self._fail(error)
        finally:
            self._num_running -= 1
