"""Turns that have been seen: a scheduler that takes over announces placed ones again."""

from collections import OrderedDict

from services.tracker.core.records import SessionKey
from shared.ids import TurnId
from shared.wire.messages import TurnArrived

SESSIONS_MAX = 16_384


class SeenTurns:
    """The last turn of each session; above the limit the least recently active are forgotten."""

    def __init__(self) -> None:
        self._last: OrderedDict[SessionKey, TurnId] = OrderedDict()

    def is_new(self, arrived: TurnArrived) -> bool:
        """Whether this is the first announcement of the turn."""
        key = (arrived.tenant, arrived.session_id)
        is_new = self._last.get(key) != arrived.turn_id
        self._last[key] = arrived.turn_id
        self._last.move_to_end(key)
        if len(self._last) > SESSIONS_MAX:
            self._last.popitem(last=False)
        return is_new
