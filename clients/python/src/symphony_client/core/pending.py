"""Hints that wait to be sent: one a session, the latest, and of too many the oldest is dropped.

A hint waits for a moment before it goes. What happens meanwhile goes in the same hint, or
in none: tools that start side by side, a turn that comes at once, a tool that fails as it starts.
"""

from collections import OrderedDict
from dataclasses import dataclass, replace

from symphony_client.messages import Advisory

STALE_S = 5.0  # after it was due: a hint so late says little that the turn itself does not


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be sent of a session: a hint, or, with none, that its turn will not come."""

    session_id: str
    advisory: Advisory | None


@dataclass(slots=True)
class Counts:
    """What became of hints so far.

    Attributes:
        taken: announced, and things taken back.
        merged: replaced by a later one of their session before they went.
        withdrawn: not needed any more before they went.
        dropped: the oldest of too many.
        stale: waited too long while the deployment was away.
        sent: and taken in by the deployment.
        refused: by the deployment, which would refuse them again: a fault of their sender's.
        failed: no answer, or the deployment could not take them now.
        late: came after `Announcer.close`.
    """

    taken: int = 0
    merged: int = 0
    withdrawn: int = 0
    dropped: int = 0
    stale: int = 0
    sent: int = 0
    refused: int = 0
    failed: int = 0
    late: int = 0

    def copy(self) -> "Counts":
        return replace(self)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Attributes:
    arrives_at_s: when the turn is expected, on the teller's clock; None: not said.
    due_at_s: when it goes.
    """

    advisory: Advisory | None
    due_at_s: float
    arrives_at_s: float | None

    def stale_at_s(self) -> float:
        return max(self.due_at_s, self.arrives_at_s or 0.0) + STALE_S

    def as_of(self, now_s: float) -> Advisory | None:
        """The same, whose arrival has come nearer while it waited."""
        if self.advisory is None or self.arrives_at_s is None:
            return self.advisory
        left_s = round(max(self.arrives_at_s - now_s, 0.0), 3)
        return replace(self.advisory, expected_arrival=left_s)


class Pending:
    """The queue. The time is an argument, of any monotonic clock.

    Args:
        linger_s: how long each waits for what may make it needless.
        waiting_max: beyond these the oldest is dropped.
    """

    def __init__(self, *, linger_s: float, waiting_max: int) -> None:
        assert linger_s >= 0 and waiting_max > 0
        self.counts = Counts()
        self._linger_s = linger_s
        self._waiting_max = waiting_max
        self._waiting: OrderedDict[str, _Waiting] = OrderedDict()
        self._going: set[str] = set()

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_going(self) -> int:
        return len(self._going)

    def is_waiting(self, session_id: str) -> bool:
        """A hint of it has not gone yet."""
        waiting = self._waiting.get(session_id)
        return waiting is not None and waiting.advisory is not None

    def announce(self, advisory: Advisory, now_s: float) -> str | None:
        """A turn is coming. The session whose hint was dropped for it, if one was."""
        lead_s = advisory.expected_arrival
        arrives_at_s = None if lead_s is None else now_s + lead_s
        return self._put(
            advisory.session_id, _Waiting(advisory, now_s + self._linger_s, arrives_at_s)
        )

    def take_back(self, session_id: str, now_s: float) -> str | None:
        """A turn is not coming. As `announce`. That is sent even if the hint was not: an
        earlier one may have, and to take back what is not there does no harm.
        """
        return self._put(session_id, _Waiting(None, now_s, None))

    def withdraw(self, session_id: str) -> bool:
        """The turn is here: what waits of its session is not needed. Whether something did."""
        found = self._waiting.pop(session_id, None) is not None
        self.counts.withdrawn += found
        return found

    def due(self, now_s: float, num_max: int, *, is_hurried: bool = False) -> list[Order]:
        """What goes now, the oldest first; each has to be passed to `done`. Of one session one goes
        at a time, so that what was said later arrives later.

        Args:
            is_hurried: do not linger.
        """
        for session_id in [k for k, w in self._waiting.items() if w.stale_at_s() <= now_s]:
            del self._waiting[session_id]
            self.counts.stale += 1
        orders: list[Order] = []
        for session_id, waiting in list(self._waiting.items()):
            if len(orders) >= num_max:
                break
            if session_id in self._going or (waiting.due_at_s > now_s and not is_hurried):
                continue
            del self._waiting[session_id]
            self._going.add(session_id)
            orders.append(Order(session_id, waiting.as_of(now_s)))
        return orders

    def next_at_s(self) -> float | None:
        """When there may be something to do, unless something happens before: the earliest that is
        due or stale; None: never.
        """
        times = [
            waiting.stale_at_s() if session_id in self._going else waiting.due_at_s
            for session_id, waiting in self._waiting.items()
        ]
        return min(times, default=None)

    def done(self, session_id: str) -> None:
        """What went of this session was answered, or never will be."""
        self._going.discard(session_id)

    def _put(self, session_id: str, waiting: _Waiting) -> str | None:
        self.counts.taken += 1
        before = self._waiting.pop(session_id, None)
        if before is not None:
            self.counts.merged += 1
            if before.advisory is not None:
                # Else a session of which there is always news would wait for ever.
                due_at_s = min(before.due_at_s, waiting.due_at_s)
                waiting = replace(waiting, due_at_s=due_at_s)
        dropped = None
        if len(self._waiting) >= self._waiting_max:
            dropped, _ = self._waiting.popitem(last=False)
            self.counts.dropped += 1
        self._waiting[session_id] = waiting
        return dropped
