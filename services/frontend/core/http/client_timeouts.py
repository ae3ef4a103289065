"""Timeouts of one connection: a client that sends or reads nothing keeps nothing for ever.

What a client sends is reported as it happens; what it has read is polled. Seconds are
`ResponsiveClock`'s.
"""

from dataclasses import dataclass
from typing import Literal

from shared.errors import InvalidRequest

Phase = Literal["between", "head", "body"]
Reason = Literal["head", "body", "reader"]

BODY_BYTES_PER_S = 16 * 1024


class RequestTooSlow(InvalidRequest):
    """The request did not come in the time that there is for it."""

    code = "request_timeout"
    http_status = 408


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutLimits:
    """Attributes:
    request_s: for the first byte; for a head, from its first byte; for a body, extended by a
        second for every 16 KiB that come, to at most this.
    reader_s: without progress of an answer that waits to be read.
    """

    request_s: float = 30.0
    reader_s: float = 30.0


class ClientTimeouts:
    """What one connection is waited for, and since when. Events come in the order they happen."""

    __slots__ = (
        "_body_until_s",
        "_is_rest",
        "_limits",
        "_num_acked",
        "_num_open",
        "_phase",
        "_since_s",
        "_unread_since_s",
    )

    def __init__(self, limits: TimeoutLimits, now_s: float) -> None:
        self._limits = limits
        self._phase: Phase = "head"  # a connection is opened to be used
        self._since_s = self._body_until_s = now_s
        self._num_open = 0  # requests with a whole head and no whole answer
        self._is_rest = False  # the body is of a request that is answered already
        self._num_acked = 0
        self._unread_since_s: float | None = None

    def on_bytes(self, now_s: float) -> None:
        """Bytes came, of any kind."""
        if self._phase == "between":  # line breaks between requests too: they are no request
            self._phase, self._since_s = "head", now_s

    def on_begin(self, now_s: float) -> None:
        """The first byte of a head came."""
        self._phase, self._since_s = "head", now_s

    def on_head(self, now_s: float) -> None:
        """A head is complete."""
        self._num_open += 1
        self._phase, self._since_s = "body", now_s
        self._body_until_s, self._is_rest = now_s + self._limits.request_s, False

    def on_body(self, num_bytes: int, now_s: float) -> None:
        """A part of a body came. Bytes that came fast earlier do not allow a slow end: a
        body that is nearly whole costs most to wait for.
        """
        won_s = self._body_until_s + num_bytes / BODY_BYTES_PER_S
        self._body_until_s = min(won_s, now_s + self._limits.request_s)

    def on_request_end(self) -> None:
        """The body is complete, or there is none."""
        self._phase = "between"

    def on_answered(self, now_s: float) -> None:
        """The oldest open request has its whole answer."""
        self._num_open -= 1
        assert self._num_open >= 0, "more answers than requests"
        self._since_s = now_s  # what came after it was not waited for till now
        self._body_until_s = now_s + self._limits.request_s
        self._is_rest = self._phase == "body" and self._num_open == 0

    def awaits_too_long(self, now_s: float) -> Reason | None:
        """The part of a request that is overdue, if any."""
        if self._phase == "between":
            return None
        num_earlier = self._num_open
        if self._phase == "body" and not self._is_rest:
            num_earlier -= 1
        if num_earlier:
            return None  # those are answered first
        if self._phase == "body" and not self._is_rest:
            return "body" if now_s >= self._body_until_s else None
        return self._phase if now_s - self._since_s >= self._limits.request_s else None

    def on_all_sent(self) -> None:
        """The send buffer is empty."""
        self._unread_since_s = None

    def is_unread_too_long(self, num_acked: int, now_s: float) -> bool:
        """Data waits to be sent: whether the client has read nothing for too long.

        Args:
            num_acked: bytes that the other side has taken since the connection began.
        """
        if self._unread_since_s is None or num_acked != self._num_acked:
            self._num_acked, self._unread_since_s = num_acked, now_s
        return now_s - self._unread_since_s >= self._limits.reader_s


class ResponsiveClock:
    """Seconds in which this process could serve clients: time in which the process itself was
    blocked is left out.

    Args:
        interval_s: between two ticks, when nothing is in the way.
    """

    def __init__(self, interval_s: float, now_s: float) -> None:
        self._interval_s = interval_s
        self._ticked_at_s = now_s
        self._lost_s = 0.0

    def on_tick(self, now_s: float) -> None:
        """Called as regularly as possible."""
        late_s = now_s - self._ticked_at_s - self._interval_s
        if late_s > self._interval_s:
            self._lost_s += late_s
        self._ticked_at_s = now_s

    def responsive_s(self, now_s: float) -> float:
        """The time without what was lost."""
        return now_s - self._lost_s
