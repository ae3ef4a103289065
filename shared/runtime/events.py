"""The link between a service's handlers and its core: one bounded queue and one alarm."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from prometheus_client import Counter

from shared.errors import NoCapacity, SymphonyError
from shared.runtime.clock import Clock

E = TypeVar("E")
M = TypeVar("M")
R = TypeVar("R")

WAKE_RETRY_S = 0.05


class EventQueue(Generic[E]):
    """Events for one core, passed to it one by one with the time at which each is dequeued.

    An event is a function of the time that calls the core and returns its effects (of type `E`).

    Args:
        size_max: events that may wait; more are dropped and counted in `dropped`.
        on_wake: the core's own event for an alarm it set.
    """

    def __init__(
        self, size_max: int, clock: Clock, on_wake: Callable[[int], list[E]], dropped: Counter
    ) -> None:
        self._events: asyncio.Queue[Callable[[int], list[E]]] = asyncio.Queue(size_max)
        self._clock = clock
        self._on_wake = on_wake
        self._dropped = dropped
        self._alarm: asyncio.TimerHandle | None = None

    def put(self, event: Callable[[int], list[E]]) -> bool:
        """Queue an event; False, and counted, if there is no room."""
        try:
            self._events.put_nowait(event)
        except asyncio.QueueFull:
            self._dropped.inc()
            return False
        return True

    async def put_surely(self, event: Callable[[int], list[E]]) -> None:
        """Queue an event that must not be dropped: wait for room."""
        await self._events.put(event)

    async def ask(self, handler: Callable[[M, int], tuple[R, list[E]]], message: M) -> R:
        """Queue `message` for the core, and return the core's result.

        Raises:
            NoCapacity: too many events wait.
            SymphonyError: the core's own refusal.
        """
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()

        def event(now_ns: int) -> list[E]:
            try:
                result, effects = handler(message, now_ns)
            except SymphonyError as error:
                answer.set_exception(error)
                return []
            answer.set_result(result)
            return effects

        if not self.put(event):
            raise NoCapacity("too many events are waiting")
        return await answer

    async def next_effects(self) -> list[E]:
        """Wait for the next event, pass it to the core, and return the effects."""
        event = await self._events.get()
        return event(self._clock.now_ns())

    def set_alarm(self, at_ns: int) -> None:
        """Wake the core at this instant or up to a millisecond later; replaces an earlier
        alarm.
        """
        self.stop()
        # The loop rounds to whole milliseconds: rounding down would wake too early, repeatedly.
        delay_ms = -(-max(at_ns - self._clock.now_ns(), 0) // 1_000_000)
        self._alarm = asyncio.get_running_loop().call_later(delay_ms / 1e3, self._wake)

    def stop(self) -> None:
        """Cancel the alarm."""
        if self._alarm is not None:
            self._alarm.cancel()

    def _wake(self) -> None:
        if not self.put(self._on_wake):  # the core depends on this wake
            self._alarm = asyncio.get_running_loop().call_later(WAKE_RETRY_S, self._wake)
