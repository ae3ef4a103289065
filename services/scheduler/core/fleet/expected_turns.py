"""A histogram of expected arrival times, which gives the load at some instant without a scan of all
reservations.
"""

from collections import Counter
from dataclasses import dataclass, field

SLICE_NS = 5_000_000_000  # about as long as a turn runs
BESIDE = 0.5  # weight of turns expected in the slice before or after
UNTIMED = 0.2  # weight of turns without an arrival time: they come within some ten seconds
ELSEWHEN = 0.1  # weight of turns that are expected soon but at other times, or are late


@dataclass(slots=True)
class ExpectedTurns:
    """Turns expected at one worker, counted by slices of time.

    Attributes:
        num_untimed: turns without an arrival time.
    """

    num_untimed: int = 0
    _by_slice: Counter[int] = field(default_factory=Counter)

    def add(self, at_ns: int) -> None:
        """Count a turn expected at this instant; 0: at an unknown time."""
        if at_ns:
            self._by_slice[at_ns // SLICE_NS] += 1
        else:
            self.num_untimed += 1

    def remove(self, at_ns: int) -> None:
        """Uncount a turn that arrived or is not expected any more."""
        if not at_ns:
            self.num_untimed -= 1
            return
        number = at_ns // SLICE_NS
        self._by_slice[number] -= 1
        if not self._by_slice[number]:
            del self._by_slice[number]

    def about(self, at_ns: int, num_near: int) -> float:
        """Expected number of turns that run beside a turn that arrives at this instant.

        Args:
            num_near: turns that count as load now, timed or not.

        >>> expected = ExpectedTurns()
        >>> for at_s in (100, 101, 106, 120): expected.add(at_s * 1_000_000_000)
        >>> expected.about(102 * 1_000_000_000, num_near=4)
        2.6
        """
        if not num_near and not self._by_slice:
            return 0.0
        number, by_slice = at_ns // SLICE_NS, self._by_slice
        with_it = by_slice.get(number, 0)
        beside = by_slice.get(number - 1, 0) + by_slice.get(number + 1, 0)
        num_else = max(num_near - self.num_untimed - with_it - beside, 0)
        return with_it + BESIDE * beside + UNTIMED * self.num_untimed + ELSEWHEN * num_else
