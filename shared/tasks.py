"""Background work of one component: kept until it is over, and never failing in silence."""

import asyncio
from collections.abc import Coroutine


class Tasks:
    """Work that is not awaited. What breaks in it goes to the loop's exception handler, which
    ends the process: a component must not be half alive.

    Args:
        failure: says in the log what broke.
    """

    def __init__(self, failure: str) -> None:
        self._failure = failure
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        """Begin, and go on without waiting."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    async def wait(self, timeout_s: float) -> bool:
        """Let what is under way end, for so long at most; whether it all did."""
        if not self._tasks:
            return True
        return not (await asyncio.wait(list(self._tasks), timeout=timeout_s))[1]

    def cancel(self) -> None:
        """End all of it where it waits."""
        for task in self._tasks:
            task.cancel()

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            asyncio.get_running_loop().call_exception_handler(
                {"message": self._failure, "exception": error, "task": task}
            )


def end_if_cancelled() -> None:
    """End the task that calls this if it was cancelled and a library kept that for itself, as
    Python 3.11's `asyncio.wait_for` does when what it waits for ends in the same instant.

    Raises:
        CancelledError: it was cancelled.
    """
    task = asyncio.current_task()
    assert task is not None
    if task.cancelling():
        raise asyncio.CancelledError


async def wait_set(event: asyncio.Event, timeout_s: float) -> bool:
    """Wait for an event, at most so long; whether it came. For loops: unlike `asyncio.wait_for` it
    never keeps a cancellation for itself.
    """
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True
