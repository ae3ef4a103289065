"""What stands between a scheduler and a core of it: a bounded queue.

As `shared.runtime.events.EventQueue` and the scheduler's `consume` and `probe` do.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from loadtest.sim.timeline import MS, SECOND
from loadtest.world.alarm import Alarm
from loadtest.world.candidate import Candidate
from shared.errors import SymphonyError
from shared.ids import WorkerId
from shared.wire.messages import Empty
from shared.wire.subjects import WORKER_PING

E = TypeVar("E")

LOOK_AGAIN_NS = 50 * MS
PROBE_NS = 2 * SECOND
RETURN_NS = SECOND


class Desk(Generic[E]):
    """Passes events to one core of a scheduler, and performs its effects while it leads.

    Args:
        on_wake, on_gone: the core's own, for an alarm and for a worker that does not answer.
        perform: does an effect.
        gather: puts together what one event led to.
    """

    def __init__(
        self,
        candidate: Candidate,
        on_wake: Callable[[int], Sequence[E]],
        on_gone: Callable[[WorkerId, int], Sequence[E]],
        perform: Callable[[E], None],
        gather: Callable[[list[E]], Sequence[E]] = list,
    ) -> None:
        self._candidate = candidate
        self._gather = gather
        self._on_gone = on_gone
        self._perform = perform
        self._events: deque[Callable[[int], Sequence[E]]] = deque()
        self._held: Sequence[E] = ()
        self._is_looking = False
        self.alarm = Alarm(candidate, lambda: self.put(on_wake))

    def feeding(self, handler: Callable[[Any, int], Sequence[E]]) -> Callable[[Any, Any], None]:
        """A subscription's handler that queues its messages for the core."""

        def on_message(message: Any, _: object) -> None:
            self.put(partial(handler, message))

        return on_message

    def put(self, event: Callable[[int], Sequence[E]]) -> bool:
        """Queue an event; False, and counted, if there is no room."""
        if len(self._events) >= self._candidate.queue_max:
            self._candidate.num_dropped += 1
            return False
        self._events.append(event)
        self._consume()
        return True

    def probe(self, worker_id: WorkerId) -> None:
        """Ask whether a worker is there; tell the core if it is not."""
        candidate, wires = self._candidate, self._candidate.deployment.wires
        was_steady_ns = wires.steady_for_ns(candidate)

        def on_error(_: SymphonyError) -> None:
            if RETURN_NS <= was_steady_ns <= wires.steady_for_ns(candidate):
                self.put(partial(self._on_gone, worker_id))

        wires.request(
            candidate, WORKER_PING, Empty(), lambda _: None, on_error, ident=worker_id,
            timeout_ns=PROBE_NS,
        )  # fmt: skip

    def _consume(self) -> None:
        if self._is_looking:
            return
        while self._events or self._held:
            if not self._held:
                self._candidate.is_touched = True
                self._held = self._events.popleft()(self._candidate.now_ns)
            if self._held and not self._candidate.is_leading:
                self._is_looking = True
                self._candidate.later(LOOK_AGAIN_NS, self._look_again)
                return
            effects, self._held = self._held, ()
            for effect in self._gather(list(effects)):
                self._perform(effect)

    def _look_again(self) -> None:
        self._is_looking = False
        self._consume()
