"""What this process knows of turns to come: how long things take, and what it announced already.

One for all workflows of a client, since they share tools. Decides by the cores, calls the
`Announcer`, and may be used from any thread.
"""

import threading
import time
from collections.abc import Callable

from symphony_client.announcer import Announcer
from symphony_client.core.announced import Announced
from symphony_client.core.durations import Durations
from symphony_client.core.running_tools import RunningTools
from symphony_client.messages import Advisory

TOO_SOON_S = 0.05  # a turn so near needs no hint: its KV is still where it was computed


class Foresight:
    """Args:
    clock: seconds that do not go back.
    """

    def __init__(self, announcer: Announcer, clock: Callable[[], float] = time.monotonic) -> None:
        self.announcer = announcer
        self.clock = clock
        self._lock = threading.Lock()
        self._announced = Announced()
        self._durations = Durations()

    def expect(self, advisory: Advisory) -> None:
        """A turn is coming: announce it, unless it is announced already."""
        session_id, arrival = advisory.session_id, advisory.expected_arrival
        is_waiting = self.announcer.is_waiting(session_id)
        with self._lock:
            is_news = self._announced.say(session_id, arrival, self.clock(), is_waiting=is_waiting)
        if is_news:
            self.announcer.announce(advisory)

    def turn_begins(self, session_id: str) -> None:
        """It is asked now."""
        with self._lock:
            self._announced.forget(session_id)
        self.announcer.withdraw(session_id)

    def give_up(self, session_id: str) -> None:
        """It will not come: what was announced of it is taken back."""
        with self._lock:
            was_awaited = self._announced.forget(session_id)
        if was_awaited:
            self.announcer.take_back(session_id)

    def is_awaited(self, session_id: str) -> bool:
        """It was announced, and neither came nor was withdrawn."""
        with self._lock:
            return self._announced.is_said(session_id, self.clock())

    def lasted(self, name: str, seconds: float) -> None:
        """Something of this name took so long."""
        with self._lock:
            self._durations.learn(name, seconds, self.clock())

    def expected_s(self, name: str) -> float | None:
        """How long something of this name takes; None: it is not known yet."""
        with self._lock:
            return self._durations.expected(name, self.clock())

    def tools(self) -> "Tools":
        """Those of one agent."""
        return Tools(RunningTools(self._durations), self._lock, self.clock)


class Tools:
    """`RunningTools` for threads."""

    def __init__(
        self, running: RunningTools, lock: threading.Lock, clock: Callable[[], float]
    ) -> None:
        self._running = running
        self._lock = lock
        self._clock = clock

    def start(self, name: str, call_id: str) -> float | None:
        """See `RunningTools.start`; how long until all are done, if that is known."""
        with self._lock:
            now_s = self._clock()
            self._running.start(name, call_id, now_s)
            return self._running.left_s(now_s)

    def end(self, call_id: str, *, is_learned: bool) -> tuple[int, float | None]:
        """See `RunningTools.end`; how many still run, and for how long."""
        with self._lock:
            now_s = self._clock()
            self._running.end(call_id, now_s, is_learned=is_learned)
            return len(self._running), self._running.left_s(now_s)

    def clear(self) -> None:
        """See `RunningTools.clear`."""
        with self._lock:
            self._running.clear()
