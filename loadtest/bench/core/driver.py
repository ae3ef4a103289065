"""A core as its shell drives it: given messages and the time, and woken by its own alarms."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Generic, TypeVar

from loadtest.bench.core.timing import Took
from shared.effects import WakeAt

E = TypeVar("E")
M = TypeVar("M")

NEVER_NS = 1 << 62


class CoreBench(ABC, Generic[E]):
    """Args:
    event_ns: between two messages.
    """

    def __init__(self, took: Took, event_ns: int) -> None:
        self._took = took
        self._event_ns = event_ns
        self._now_ns = 1
        self._wake_at_ns = NEVER_NS

    @abstractmethod
    def _wake(self, at_ns: int) -> list[E]:
        """The alarm that the core set rings."""

    def _gathered(self, effects: list[E]) -> list[E]:
        """What goes out of one event's effects."""
        return effects

    def _each(
        self, name: str, handle: Callable[[M], list[E]], messages: Iterable[M]
    ) -> list[list[E]]:
        """A round of the kind of this name; without one it is no measurement."""
        if name:
            return self._took.each(name, handle, messages)
        return [handle(message) for message in messages]

    def _handled(
        self, handler: Callable[[M, int], list[E]], apart_ns: int | None = None
    ) -> Callable[[M], list[E]]:
        """What the shell does with a message: the core, and its alarms in time."""
        return partial(self._tell, handler, self._event_ns if apart_ns is None else apart_ns)

    def _tell(self, handler: Callable[[M, int], list[E]], apart_ns: int, message: M) -> list[E]:
        self._now_ns += apart_ns
        while self._wake_at_ns <= self._now_ns:
            at_ns, self._wake_at_ns = self._wake_at_ns, NEVER_NS
            self._see_alarms(self._wake(at_ns))
        effects = self._gathered(handler(message, self._now_ns))
        self._see_alarms(effects)
        return effects

    def _see_alarms(self, effects: Sequence[E]) -> None:
        for effect in effects:
            if isinstance(effect, WakeAt):
                self._wake_at_ns = min(self._wake_at_ns, effect.at_ns)
