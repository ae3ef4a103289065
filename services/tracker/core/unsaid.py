"""What a spare tracker would have announced, had it led: while nobody leads, nobody else does."""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import replace

from services.tracker.core.agent_turns import MS_NS, Foreseen
from services.tracker.core.limits import SECOND_NS
from services.tracker.core.records import SessionKey

UNSAID_MAX = 1024
UNSAID_NS = 3 * SECOND_NS  # longer than a takeover lasts: what is older, the last leader has said


class Unsaid:
    """The last that was foreseen of each session; of too many, the newest."""

    def __init__(self) -> None:
        self._last: OrderedDict[SessionKey, tuple[int, Foreseen]] = OrderedDict()

    def add(self, foreseen: Iterable[Foreseen], now_ns: int) -> None:
        """These would have been announced now."""
        for each in foreseen:
            key = each.advisory.tenant, each.advisory.session_id
            self._last[key] = now_ns, each
            self._last.move_to_end(key)
            if len(self._last) > UNSAID_MAX:
                self._last.popitem(last=False)

    def came(self, key: SessionKey) -> None:
        """A turn came that is not expected any more."""
        self._last.pop(key, None)

    def take(self, now_ns: int) -> list[Foreseen]:
        """What is to be announced by who leads from now on, as of now."""
        last = [*self._last.values()]
        self._last.clear()
        return [_later(each, now_ns - at_ns) for at_ns, each in last if now_ns - at_ns <= UNSAID_NS]


def _later(foreseen: Foreseen, by_ns: int) -> Foreseen:
    advisory = foreseen.advisory
    arrival, ttl_ms = advisory.expected_arrival, advisory.ttl_ms
    if arrival is not None:
        arrival = max(arrival - by_ns / SECOND_NS, 0)
    if ttl_ms is not None:
        ttl_ms = max(ttl_ms - by_ns // MS_NS, 1)
    return replace(foreseen, advisory=replace(advisory, expected_arrival=arrival, ttl_ms=ttl_ms))
