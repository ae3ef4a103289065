"""The lease's times, all derived from its beat and its ttl."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """How often a lease is renewed and when it expires.

    Attributes:
        beat_ns: between two renewals.
        ttl_ns: silence after which a spare takes over; at least three beats, so that one lost
            renewal costs nothing.
    """

    beat_ns: int
    ttl_ns: int

    def __post_init__(self) -> None:
        assert 0 < 3 * self.beat_ns <= self.ttl_ns, "the lease must outlive a lost renewal"

    @property
    def patience_ns(self) -> int:
        """How long the holder trusts its lease. The rest of `ttl_ns` allows for uneven clocks and
        for what the holder sends after it has read the clock.
        """
        return self.ttl_ns * 4 // 5

    @property
    def look_ns(self) -> int:
        """Silence after which a spare reads the store: an announcement may be lost."""
        return self.beat_ns * 3 // 2

    @property
    def probe_ns(self) -> int:
        """Time between two polls of the holder."""
        return self.beat_ns // 4

    @property
    def answer_ns(self) -> int:
        """How long to wait for the holder's answer, which a dead one never gives."""
        return self.beat_ns // 4

    @property
    def return_ns(self) -> int:
        """Time for a holder to reconnect, if it has not answered since the connection broke."""
        return self.ttl_ns // 2

    @property
    def lead_by_ns(self) -> int:
        """How long after asking for the lease a new holder may begin to lead, so that spares find
        it before `return_ns` is over.
        """
        return self.return_ns * 4 // 5

    @property
    def retry_ns(self) -> int:
        """Between two attempts at a store that does not answer."""
        return self.beat_ns // 2
