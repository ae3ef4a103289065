"""Which of a host's connections may send: several would share the link between what turns wait for
and what is only hinted.
"""

import threading
from collections import Counter

from shared.wire.urgency import NUM_KINDS

WAIT_S = 0.1  # then a run is sent: far less than a client's patience


class Precedence:
    """Of the connections of one host, which share it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._num_of: Counter[int] = Counter()  # connections, by the most urgent kind they have

    def change(self, before: int | None, kind: int | None) -> None:
        """The most urgent that a connection has to send; None: nothing."""
        if before == kind:
            return
        with self._changed:
            if before is not None:
                self._num_of[before] -= 1
            if kind is not None:
                self._num_of[kind] += 1
            self._changed.notify_all()

    def is_first(self, kind: int) -> bool:
        """Whether no connection has anything more urgent."""
        return not any(self._num_of[each] for each in range(min(kind, NUM_KINDS)))

    def wait(self, kind: int) -> None:
        """Until that is so, but not for long."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_first(kind), WAIT_S)
