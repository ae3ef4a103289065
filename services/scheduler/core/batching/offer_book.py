"""Offers that wait for a GPU, by urgency."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """A batch whose window is open.

    Attributes:
        latest_at_ns: the last instant at which it can start.
        delay_ns: how long before its start it must be dispatched.
    """

    model: Hashable
    latest_at_ns: int
    delay_ns: int


class OfferBook:
    """The offers that the GPUs of one pool could take. Every operation costs O(log M).

    Args:
        standing: each model's latest offer, while it is neither granted nor withdrawn.
    """

    def __init__(self, standing: Mapping[Hashable, Offer]) -> None:
        self._standing = standing
        self._by_latest: list[tuple[int, int, Offer]] = []
        self._by_delay: list[tuple[int, int, Offer]] = []
        self._passed: dict[Hashable, Offer] = {}  # too late for every GPU here, as things stand
        self._num_pushed = 0

    def put(self, offer: Offer) -> None:
        """An offer that no GPU took at once."""
        self._num_pushed += 1
        heappush(self._by_latest, (offer.latest_at_ns, self._num_pushed, offer))
        heappush(self._by_delay, (-offer.delay_ns, self._num_pushed, offer))
        if len(self._by_delay) > 2 * len(self._standing) + 64:  # mostly withdrawn ones
            self._by_delay = [entry for entry in self._by_delay if self._counts(entry[2])]
            heapify(self._by_delay)

    def longest_delay_ns(self) -> int | None:
        """The longest delay of an offer here; None if there is none."""
        heap = self._by_delay
        while heap and not self._counts(heap[0][2]):
            heappop(heap)
        return -heap[0][0] if heap else None

    def most_urgent(self, start_at_ns: int) -> Offer | None:
        """The offer whose latest moment is the closest that is not before `start_at_ns`. What is
        too late is passed over: its model will offer less, or a GPU is free sooner.
        """
        heap = self._by_latest
        while heap:
            latest_at_ns, _, offer = heap[0]
            if self._counts(offer):
                if latest_at_ns >= start_at_ns:
                    return offer
                self._passed[offer.model] = offer
            heappop(heap)
        return None

    def look_again(self, free_at_ns: int) -> None:
        """A GPU is free at this instant: what was passed over before may not be too late for it."""
        for offer in list(self._passed.values()):
            if self._standing.get(offer.model) is not offer:
                del self._passed[offer.model]
            elif offer.latest_at_ns >= free_at_ns:
                del self._passed[offer.model]
                self.put(offer)

    def _counts(self, offer: Offer) -> bool:
        is_current = self._standing.get(offer.model) is offer
        return is_current and self._passed.get(offer.model) is not offer
