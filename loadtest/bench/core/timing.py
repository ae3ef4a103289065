"""What an event costs a core: CPU time, and of the fastest of some rounds, since others may share
the machine. The collector runs as it does in a service: a round is long enough that what its events
leave for it counts, but for the rare passes through everything.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
M = TypeVar("M")


class Took:
    """Microseconds of one event, by kind, of each round."""

    def __init__(self) -> None:
        self._rounds: dict[str, list[float]] = defaultdict(list)

    def each(self, name: str, handle: Callable[[M], T], messages: Iterable[M]) -> list[T]:
        """One round: hand all these over, and return what was answered."""
        events = list(messages)
        began_ns = time.process_time_ns()
        answers = [handle(event) for event in events]
        self.add(name, time.process_time_ns() - began_ns, len(events))
        return answers

    def add(self, name: str, took_ns: int, num: int) -> None:
        """One round of so many events."""
        if num:
            self._rounds[name].append(took_ns / 1e3 / num)

    def us(self) -> dict[str, float]:
        """The fastest round of each kind."""
        return {name: round(min(took), 2) for name, took in self._rounds.items()}
