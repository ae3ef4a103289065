"""What one connection to a peer has asked for and has not got."""

from services.kvstore.core import LoadOutcome
from services.kvstore.peers.fetches import Fetches, Part
from services.kvstore.peers.wire import (
    KEYS_MAX,
    LEFT_MS_MAX,
    NUMBER_MAX,
    PRIORITY_MAX,
    REQUESTS_MAX,
    Request,
)

REQUEST_SHARE = 4  # a request takes at most this part of the window, so that several are on the way
REQUEST_BYTES_MIN = 128 * 1024  # less is not worth a request of its own, beside other connections


class Requests:
    """One connection's, and one thread's.

    Args:
        fetches: of the client: every connection takes the most urgent of what is wanted when it has
            room, so none holds back what another could bring.
        number: of the connection, from 0 on.
        window_bytes: asked for and not here on all connections, at most, unless it is one page on
            each.

    Attributes:
        asked: by the request's number.
    """

    def __init__(self, fetches: Fetches, number: int, window_bytes: int) -> None:
        self.asked: dict[int, Part] = {}
        self._fetches = fetches
        self._number = number
        self._window_bytes = window_bytes
        self._asked_bytes = 0
        self._last_number = 0
        self._num_ended_seen = 0
        self._is_connected = False

    @property
    def is_wanted(self) -> bool:
        """Whether there is something to ask for on this connection."""
        fetches = self._fetches
        return fetches.next_wanted is not None and self._number < fetches.connections.level

    def next_request(self, now_s: float) -> Request | None:
        """The most urgent pages that were not requested, if the window has room for them; they
        count as requested.
        """
        fetches = self._fetches
        with fetches.changed:
            if not self.is_wanted or len(self.asked) >= REQUESTS_MAX:
                return None
            wanted = fetches.next_wanted
            assert wanted is not None, "it is"
            count = self._room_for(wanted)
            if not count:
                return None
            part = fetches.take(count)
        self._last_number = self._last_number % NUMBER_MAX + 1
        self.asked[self._last_number] = part
        self._asked_bytes += part.num_left * part.each_bytes
        left_ms = int((part.fetch.until_s - now_s) * 1e3)
        return Request(
            self._last_number,
            part.reads.layer,
            part.reads.page_bytes,
            max(-PRIORITY_MAX, min(part.priority, PRIORITY_MAX)),
            max(0, min(left_ms, LEFT_MS_MAX)),
            [part.reads.keys[place] for place in part.places],
        )

    def memories(self, part: Part, count: int) -> list[memoryview]:
        """Of the part's next pages."""
        pages = self._fetches.arenas[part.reads.page_bytes].pages
        places = part.places[part.next : part.next + count]
        return [memoryview(pages[part.reads.pages[place]]) for place in places]

    def settle(self, number: int, outcome: LoadOutcome, raw_header: bytes | None = None) -> None:
        """The next page of request `number` has this outcome."""
        part = self.asked[number]
        self._asked_bytes -= part.each_bytes
        with self._fetches.changed:
            self._fetches.on_moved()
            place = part.places[part.next]
            part.next += 1
            if not part.is_over:
                self._fetches.publish(part, place, outcome, raw_header)
        if not part.num_left:
            del self.asked[number]

    def end_late(self, now_s: float) -> int:
        """What was asked for here fails, as far as its order's time is over; how many orders' time
        was not known to be over.
        """
        fetches = self._fetches
        if now_s < fetches.first_until_s and fetches.num_ended == self._num_ended_seen:
            return 0
        with fetches.changed:
            num_late = fetches.end_late(now_s)
            self._num_ended_seen = fetches.num_ended
            for part in self.asked.values():
                if part.fetch.is_ended and not part.is_over:
                    fetches.fail(part)
        return num_late

    def on_connected(self) -> None:
        """The peer has proven itself."""
        self._is_connected = True
        with self._fetches.changed:
            self._fetches.on_connected()

    def ask_again(self) -> int:
        """The connection is gone: what was asked for and has not come is to be asked for again, on
        any; how many pages that are.
        """
        left = [part for part in self.asked.values() if not part.is_over]
        num_pages = sum(part.num_left for part in left)
        with self._fetches.changed:
            if self._is_connected:
                self._fetches.on_disconnected()
            for part in left:
                self._fetches.want(part)
        self._is_connected = False
        self.asked.clear()
        self._asked_bytes = 0
        return num_pages

    def _room_for(self, part: Part) -> int:
        """For how many of the part's pages. Beside other connections no more than its share of all
        that is open: what one has asked for, no other brings sooner.
        """
        fetches, window_bytes = self._fetches, self._window_bytes
        request_bytes = window_bytes // REQUEST_SHARE
        if (num := fetches.connections.level) > 1:
            request_bytes //= num
            window_bytes = min(window_bytes, fetches.open_bytes) // num
            share_bytes = max(window_bytes // REQUEST_SHARE, REQUEST_BYTES_MIN)
            request_bytes = min(request_bytes, share_bytes)
        count = min(max(request_bytes // part.each_bytes, 1), KEYS_MAX, part.num_left)
        asked_bytes = self._asked_bytes + count * part.each_bytes
        return count if not self._asked_bytes or asked_bytes <= window_bytes else 0
