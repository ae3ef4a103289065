"""What a spare tracker would have announced, in case no tracker leads at the moment."""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import replace

from services.tracker.core.agent_turns import MS_NS, Foreseen
from services.tracker.core.records import SessionKey
from services.tracker.core.tracker_limits import SECOND_NS

UNANNOUNCED_MAX = 1024
UNANNOUNCED_NS = 3 * SECOND_NS  # longer than a takeover: the last leader has announced older ones


class Unannounced:
    """The last foreseen turn of each session; above the limit the oldest are forgotten."""

    def __init__(self) -> None:
        self._last: OrderedDict[SessionKey, tuple[int, Foreseen]] = OrderedDict()

    def add(self, foreseen: Iterable[Foreseen], now_ns: int) -> None:
        """Add turns that a leader would announce now."""
        for each in foreseen:
            key = each.advisory.tenant, each.advisory.session_id
            self._last[key] = now_ns, each
            self._last.move_to_end(key)
            if len(self._last) > UNANNOUNCED_MAX:
                self._last.popitem(last=False)

    def came(self, key: SessionKey) -> None:
        """Remove a session whose turn arrived."""
        self._last.pop(key, None)

    def take(self, now_ns: int) -> list[Foreseen]:
        """The turns to announce when this tracker begins to lead, with times as of now."""
        last = [*self._last.values()]
        self._last.clear()
        return [
            _later(each, now_ns - at_ns) for at_ns, each in last if now_ns - at_ns <= UNANNOUNCED_NS
        ]


def _later(foreseen: Foreseen, by_ns: int) -> Foreseen:
    advisory = foreseen.advisory
    arrival, ttl_ms = advisory.expected_arrival, advisory.ttl_ms
    if arrival is not None:
        arrival = max(arrival - by_ns / SECOND_NS, 0)
    if ttl_ms is not None:
        ttl_ms = max(ttl_ms - by_ns // MS_NS, 1)
    return replace(foreseen, advisory=replace(advisory, expected_arrival=arrival, ttl_ms=ttl_ms))
