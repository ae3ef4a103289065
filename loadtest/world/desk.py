"""What stands between a process and a core of it: an alarm, and in a scheduler a bounded queue.

As `shared.events.EventQueue` and the scheduler's `consume` and `probe` do.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from loadtest.world.process import Process
from loadtest.world.timeline import MS, SECOND
from shared.errors import SymphonyError
from shared.ids import WorkerId
from shared.messages import Empty
from shared.subjects import WORKER_PING

if TYPE_CHECKING:
    from loadtest.world.scheduler import Scheduler

E = TypeVar("E")

LOOK_AGAIN_NS = 50 * MS
WAKE_RETRY_NS = 50 * MS
PROBE_NS = 2 * SECOND
RETURN_NS = SECOND
NEVER_NS = 1 << 61


class Alarm:
    """Rings at the instant it was set to last, in this life of its process.

    Args:
        ring: whether it was heard; if not, it rings again soon.
    """

    def __init__(self, process: Process, ring: Callable[[], bool]) -> None:
        self._process = process
        self._ring = ring
        self._num_set = 0

    def set(self, at_ns: int) -> None:
        """Replaces an earlier setting."""
        self._num_set += 1
        if at_ns < NEVER_NS:
            delay_ns = max(at_ns - self._process.now_ns, 0) + 1
            self._process.later(delay_ns, partial(self._due, self._num_set))

    def _due(self, number: int) -> None:
        if number == self._num_set and not self._ring():
            self._process.later(WAKE_RETRY_NS, partial(self._due, number))


class Desk(Generic[E]):
    """Tells one core of a scheduler its events, and has done what follows while it leads.

    Args:
        on_wake, on_gone: the core's own, for an alarm and for a worker that does not answer.
        perform: does an effect.
        gather: puts together what one event led to.
    """

    def __init__(
        self,
        scheduler: "Scheduler",
        on_wake: Callable[[int], Sequence[E]],
        on_gone: Callable[[WorkerId, int], Sequence[E]],
        perform: Callable[[E], None],
        gather: Callable[[list[E]], Sequence[E]] = list,
    ) -> None:
        self._scheduler = scheduler
        self._gather = gather
        self._on_gone = on_gone
        self._perform = perform
        self._events: deque[Callable[[int], Sequence[E]]] = deque()
        self._held: Sequence[E] = ()
        self._is_looking = False
        self.alarm = Alarm(scheduler, lambda: self.put(on_wake))

    def feeding(self, handler: Callable[[Any, int], Sequence[E]]) -> Callable[[Any, Any], None]:
        """A subscription's handler that queues its messages for the core."""

        def on_message(message: Any, _: object) -> None:
            self.put(partial(handler, message))

        return on_message

    def put(self, event: Callable[[int], Sequence[E]]) -> bool:
        """Queue an event; False, and counted, if there is no room."""
        world = self._scheduler.world
        if len(self._events) >= world.faults.queue_max:
            world.num_dropped += 1
            return False
        self._events.append(event)
        self._consume()
        return True

    def probe(self, worker_id: WorkerId) -> None:
        """Ask whether a worker is there; tell the core if it is not."""
        scheduler, wires = self._scheduler, self._scheduler.world.wires
        was_steady_ns = wires.steady_for_ns(scheduler)

        def on_error(_: SymphonyError) -> None:
            if RETURN_NS <= was_steady_ns <= wires.steady_for_ns(scheduler):
                self.put(partial(self._on_gone, worker_id))

        wires.request(
            scheduler, WORKER_PING, Empty(), lambda _: None, on_error, ident=worker_id,
            timeout_ns=PROBE_NS,
        )  # fmt: skip

    def _consume(self) -> None:
        if self._is_looking:
            return
        while self._events or self._held:
            if not self._held:
                self._scheduler.is_touched = True
                self._held = self._events.popleft()(self._scheduler.now_ns)
            if self._held and not self._scheduler.is_leading:
                self._is_looking = True
                self._scheduler.later(LOOK_AGAIN_NS, self._look_again)
                return
            effects, self._held = self._held, ()
            for effect in self._gather(list(effects)):
                self._perform(effect)

    def _look_again(self) -> None:
        self._is_looking = False
        self._consume()
