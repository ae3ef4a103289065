"""Bandwidth in virtual time: a second transfer waits for the first."""

from dataclasses import dataclass

from loadtest.sim.timeline import SECOND


@dataclass(slots=True)
class Link:
    """Something that moves so many bytes a second, one transfer after the other.

    Attributes:
        free_at_ns: what is given to it now begins then.
    """

    bytes_per_s: float
    free_at_ns: int = 0

    def take(self, num_bytes: int, now_ns: int) -> int:
        """When so many bytes are through that come now."""
        return self._take(num_bytes, max(now_ns, self.free_at_ns))

    def _take(self, num_bytes: int, starts_at_ns: int) -> int:
        self.free_at_ns = starts_at_ns + round(num_bytes * SECOND / self.bytes_per_s)
        return self.free_at_ns

    def take_through(self, other: "Link", num_bytes: int, now_ns: int) -> int:
        """The same where they go through `other` as well, at the pace of the slower."""
        starts_at_ns = max(now_ns, self.free_at_ns, other.free_at_ns)
        return max(self._take(num_bytes, starts_at_ns), other._take(num_bytes, starts_at_ns))
