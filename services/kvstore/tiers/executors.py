"""Where blocking work of the tiers runs: in threads beside the event loop."""

import queue
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias


class Executor(Protocol):
    """Runs what is submitted, in this order, `num_threads` pieces at a time.

    Work that raises has failed for good: the process ends, and no more work is done.

    Attributes:
        lock: to be held briefly while state changes that several pieces of work share.
    """

    num_threads: int

    @property
    def lock(self) -> AbstractContextManager[object]: ...

    def submit(self, work: Callable[[], None]) -> None:
        """Run `work` later. Returns at once; may be called in any thread."""
        ...

    def stop(self, timeout_s: float | None = None) -> None:
        """Wait until all that was submitted is done, but no longer than `timeout_s`. Nothing may
        be submitted any more.
        """
        ...


Executors: TypeAlias = Callable[[str, int], Executor]  # by a name for logs, and how many threads


class ThreadExecutor:
    """An `Executor` with threads of its own, which end with the process.

    Args:
        name: of the threads, in logs and profiles.
        fail: called in a thread with what `work` raised; the thread ends.
    """

    def __init__(self, name: str, num_threads: int, fail: Callable[[BaseException], None]) -> None:
        self.num_threads = num_threads
        self.lock = threading.Lock()
        self._fail = fail
        self._works: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True)
            for number in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, work: Callable[[], None]) -> None:
        self._works.put(work)

    def stop(self, timeout_s: float | None = None) -> None:
        for _ in self._threads:
            self._works.put(None)
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(None if until_s is None else max(until_s - time.monotonic(), 0.0))

    def _run(self) -> None:
        try:
            while (work := self._works.get()) is not None:
                work()
        except BaseException as error:
            self._fail(error)
