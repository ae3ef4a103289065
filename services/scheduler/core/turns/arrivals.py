"""When the turns that places are kept for will come, told by slices of time: so what is expected
about some instant is known without looking at each.
"""

from collections import Counter
from dataclasses import dataclass, field

SLICE_NS = 5_000_000_000  # about as long as a turn runs
BESIDE = 0.5  # weight of what is expected in the slice before or behind
UNTIMED = 0.2  # of what may come at any time soon: in some ten seconds
ELSEWHEN = 0.1  # of what is expected soon, at other times, or is late


@dataclass(slots=True)
class Arrivals:
    """Of the turns that are expected at one worker."""

    num_untimed: int = 0
    _by_slice: Counter[int] = field(default_factory=Counter)

    def add(self, at_ns: int) -> None:
        """A turn is expected then; 0: at any time."""
        if at_ns:
            self._by_slice[at_ns // SLICE_NS] += 1
        else:
            self.num_untimed += 1

    def remove(self, at_ns: int) -> None:
        """It is here, or expected no more."""
        if not at_ns:
            self.num_untimed -= 1
            return
        number = at_ns // SLICE_NS
        self._by_slice[number] -= 1
        if not self._by_slice[number]:
            del self._by_slice[number]

    def about(self, at_ns: int, num_near: int) -> float:
        """How many will probably run beside a turn that comes at that time.

        Args:
            num_near: that count as load now, timed or not.

        >>> arrivals = Arrivals()
        >>> for at_s in (100, 101, 106, 120): arrivals.add(at_s * 1_000_000_000)
        >>> arrivals.about(102 * 1_000_000_000, num_near=4)
        2.6
        """
        if not num_near and not self._by_slice:
            return 0.0
        number, by_slice = at_ns // SLICE_NS, self._by_slice
        with_it = by_slice.get(number, 0)
        beside = by_slice.get(number - 1, 0) + by_slice.get(number + 1, 0)
        num_else = max(num_near - self.num_untimed - with_it - beside, 0)
        return with_it + BESIDE * beside + UNTIMED * self.num_untimed + ELSEWHEN * num_else
