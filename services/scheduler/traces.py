"""Traces of placements, from a turn's arrival until an attempt was sent to a worker, and of
reservations.
"""

from collections import OrderedDict

from shared.ids import TurnId, WorkerId
from shared.runtime.clock import Clock
from shared.tracing import Tracer, Value
from shared.wire.messages import ExpectSession, SessionPlacement, TurnsSubmit, TurnStart

WAITING_MAX = 4096  # turns that are not placed yet


class PlacementTraces:
    """Arrival times of traced turns."""

    def __init__(self, tracer: Tracer, clock: Clock) -> None:
        self._tracer = tracer
        self._clock = clock
        self._came_ns: OrderedDict[TurnId, int] = OrderedDict()

    def on_submits(self, message: TurnsSubmit) -> None:
        """Turns were submitted, perhaps again."""
        for turn in message.turns:
            if turn.trace:
                self._came_ns.setdefault(turn.turn_id, self._clock.now_ns())
        while len(self._came_ns) > WAITING_MAX:
            self._came_ns.popitem(last=False)

    def on_started(self, worker_id: WorkerId, start: TurnStart, reason: str) -> None:
        """An attempt was placed. After a lost one the span begins when the loss was noticed."""
        if not start.trace:
            return
        now_ns = self._clock.now_ns()
        came_ns = self._came_ns.pop(start.turn_id, now_ns)
        attributes: dict[str, Value] = {
            "symphony.worker_id": worker_id,
            "symphony.attempt": start.attempt,
            "symphony.placement": reason,
        }
        self._tracer.begin("place", start.trace, came_ns, attributes).end(now_ns)

    def on_expected(
        self, message: ExpectSession, placement: SessionPlacement, came_ns: int
    ) -> None:
        """A reservation was made for an announced turn, or could not be."""
        if not message.trace:
            return
        span = self._tracer.begin("reserve", message.trace, came_ns)
        if placement.worker_id is not None:
            span.note({"symphony.worker_id": placement.worker_id})
        span.end(self._clock.now_ns())
