"""Execution candidates that wait for a GPU, by urgency."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush


@dataclass(frozen=True, slots=True, eq=False)
class ExecutionCandidate:
    """A batch whose window is open, which a model offers to the rank table.

    Attributes:
        latest_at_ns: the last instant at which it can start.
        delay_ns: how long before its start it must be dispatched.
    """

    model: Hashable
    latest_at_ns: int
    delay_ns: int


class CandidateBook:
    """The candidates that the GPUs of one pool could take. Every operation costs O(log M).

    Args:
        standing: each model's latest candidate, while it is neither granted nor withdrawn.
    """

    def __init__(self, standing: Mapping[Hashable, ExecutionCandidate]) -> None:
        self._standing = standing
        self._by_latest: list[tuple[int, int, ExecutionCandidate]] = []
        self._by_delay: list[tuple[int, int, ExecutionCandidate]] = []
        self._passed: dict[
            Hashable, ExecutionCandidate
        ] = {}  # too late for every GPU here, as things stand
        self._num_pushed = 0

    def put(self, candidate: ExecutionCandidate) -> None:
        """Add a candidate that no GPU took at once."""
        self._num_pushed += 1
        heappush(self._by_latest, (candidate.latest_at_ns, self._num_pushed, candidate))
        heappush(self._by_delay, (-candidate.delay_ns, self._num_pushed, candidate))
        if len(self._by_delay) > 2 * len(self._standing) + 64:  # mostly withdrawn ones
            self._by_delay = [entry for entry in self._by_delay if self._counts(entry[2])]
            heapify(self._by_delay)

    def longest_delay_ns(self) -> int | None:
        """The longest delay of a candidate here; None if there is none."""
        heap = self._by_delay
        while heap and not self._counts(heap[0][2]):
            heappop(heap)
        return -heap[0][0] if heap else None

    def most_urgent(self, start_at_ns: int) -> ExecutionCandidate | None:
        """The candidate with the earliest latest start that is not before `start_at_ns`. Late ones
        are passed over: their models will offer smaller batches, or a GPU becomes free sooner.
        """
        heap = self._by_latest
        while heap:
            latest_at_ns, _, candidate = heap[0]
            if self._counts(candidate):
                if latest_at_ns >= start_at_ns:
                    return candidate
                self._passed[candidate.model] = candidate
            heappop(heap)
        return None

    def look_again(self, free_at_ns: int) -> None:
        """A GPU is free at this instant: candidates that were passed over may be in time for it."""
        for candidate in list(self._passed.values()):
            if self._standing.get(candidate.model) is not candidate:
                del self._passed[candidate.model]
            elif candidate.latest_at_ns >= free_at_ns:
                del self._passed[candidate.model]
                self.put(candidate)

    def _counts(self, candidate: ExecutionCandidate) -> bool:
        is_current = self._standing.get(candidate.model) is candidate
        return is_current and self._passed.get(candidate.model) is not candidate
