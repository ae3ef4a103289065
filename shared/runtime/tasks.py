"""Background tasks of one component, whose failures are never silent."""

import asyncio
from collections.abc import Coroutine

CANCELS_MAX, CANCEL_S = 50, 0.1  # of work that goes on although it was cancelled; and a rest


class Tasks:
    """Tasks without a waiter. Their exceptions go to the loop's exception handler, which ends the
    process: a component must not run partially.

    Args:
        failure: log message of a failed task.
    """

    def __init__(self, failure: str) -> None:
        self._failure = failure
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        """Start a task."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    async def wait(self, timeout_s: float) -> bool:
        """Wait for all tasks, at most this long; whether all ended."""
        if not self._tasks:
            return True
        return not (await asyncio.wait(list(self._tasks), timeout=timeout_s))[1]

    def cancel(self) -> None:
        """Cancel all tasks."""
        for task in self._tasks:
            task.cancel()

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            asyncio.get_running_loop().call_exception_handler(
                {"message": self._failure, "exception": error, "task": task}
            )


def end_if_cancelled() -> None:
    """End the calling task if it was cancelled and a library swallowed that, as `asyncio.wait_for`
    of Python 3.11 does when the awaited task ends at the same instant.

    Raises:
        CancelledError: it was cancelled.
    """
    task = asyncio.current_task()
    assert task is not None
    if task.cancelling():
        raise asyncio.CancelledError


async def end_within(work: Coroutine[None, None, None], timeout_s: float | None) -> None:
    """Await a library's work, which may swallow a cancellation and go on: nats-py's `connect` does
    while it closes a connection that was refused. It is cancelled until it ends, or is left.

    Raises:
        TimeoutError: it has not ended in time; None: any time will do.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task], timeout=timeout_s)
        if not task.done():
            raise TimeoutError
        await task  # for what it raises
    finally:
        for _ in range(CANCELS_MAX):
            if task.done():
                break
            task.cancel()
            await asyncio.wait([task], timeout=CANCEL_S)


async def wait_set(event: asyncio.Event, timeout_s: float) -> bool:
    """Wait for an event, at most this long; whether it is set. Unlike `asyncio.wait_for` it never
    swallows a cancellation, which matters in loops.
    """
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True
