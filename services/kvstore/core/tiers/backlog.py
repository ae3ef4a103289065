"""When pages that come from below will be in the arena: what comes before them, over how fast the
tier was lately.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate

from shared.wire.urgency import NUM_KINDS

MEMORY = 0.95  # of one batch to the next
GUESS_BYTES_PER_S = 1e9  # until something was read
NS_PER_S = 1_000_000_000


@dataclass(slots=True)
class TierSpeed:
    """How fast a tier gave pages: bytes over the time that reading them took, old batches counting
    ever less.
    """

    _bytes: float = 0.0
    _ns: float = 0.0

    def on_read(self, num_bytes: int, duration_ns: int) -> None:
        """A batch of reads that gave so many bytes."""
        if num_bytes > 0 and duration_ns > 0:
            self._bytes = MEMORY * self._bytes + num_bytes
            self._ns = MEMORY * self._ns + duration_ns

    @property
    def is_measured(self) -> bool:
        """Whether anything was read yet."""
        return self._ns > 0

    @property
    def bytes_per_s(self) -> float:
        return self._bytes / self._ns * NS_PER_S if self._ns else GUESS_BYTES_PER_S

    def num_bytes(self, duration_ns: int) -> int:
        """What comes in so long a time."""
        return int(self.bytes_per_s * duration_ns / NS_PER_S)

    def ns(self, num_bytes: int) -> int:
        """What so many bytes take."""
        return int(num_bytes * NS_PER_S / self.bytes_per_s)


@dataclass(slots=True)
class Backlog:
    """Bytes that wait for the loader, by urgency (`shared.wire.urgency`) and by layer, and
    those that it is reading. A block's page counts once, as its most urgent user wants it."""

    num_bytes_read: int = 0  # by the loader, now
    _waiting: list[list[int]] = field(default_factory=lambda: [[] for _ in range(NUM_KINDS)])

    def add(self, kind: int, layer: int, num_bytes: int) -> None:
        """So many more wait; fewer, if negative."""
        of_kind = self._waiting[kind]
        if layer >= len(of_kind):
            of_kind += [0] * (layer + 1 - len(of_kind))
        of_kind[layer] += num_bytes

    def add_each(self, kind: int, layers: Iterable[int], num_bytes: int) -> None:
        """So many more wait in each of these layers; fewer, if negative."""
        layers = list(layers)
        self.add(kind, max(layers, default=0), 0)
        of_kind = self._waiting[kind]
        for layer in layers:
            of_kind[layer] += num_bytes

    def ahead(self, kind: int, num_layers: int) -> list[int]:
        """For each layer, the bytes that are read before the last one that waits now in that layer
        has come, it included.
        """
        before = self.num_bytes_read + sum(map(sum, self._waiting[:kind]))
        of_kind = self._waiting[kind][:num_layers]
        of_kind += [0] * (num_layers - len(of_kind))
        return list(accumulate(of_kind, initial=before))[1:]

    @property
    def num_bytes(self) -> int:
        """All that wait or are read."""
        return self.num_bytes_read + sum(map(sum, self._waiting))
