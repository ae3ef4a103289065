"""How adapters were loaded, counted for metrics."""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Source: TypeAlias = Literal["kvstore", "files"]
Start: TypeAlias = Literal["resident", "streamed", "assisted", "waited"]
LATEST_WEIGHT = 1 / 8  # of one load in the mean
NOTES_MAX = 4096  # between two calls of `take`; of more, the first


@dataclass(frozen=True, slots=True)
class AdapterTimes:
    """See `AdapterStats`, of some time."""

    loads: list[tuple[Source, int]]
    first_tokens: list[tuple[Start, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterStatus:
    """The adapters of one engine, now.

    Attributes:
        lines_max: adapters that can be in one step.
        running, waiting: names of those that turns run on, and of those that turns wait for.
        resident: hashes of those that are here as a whole, the latest used first.
        num_pages: pool pages of those that turns want.
        num_failures: images that could not be loaded or built, since the start.
    """

    lines_max: int
    running: list[str]
    waiting: list[str]
    resident: list[str]
    num_pages: int
    num_failures: int


@dataclass(slots=True)
class AdapterStats:
    """Attributes:
    loads: from which tier an image came, and how long that took, ns.
    first_tokens: whether a turn's image was there when it came, came beside its first pass, was
        computed from the arena meanwhile or waited for; and its time to the first token.
    num_failures: images that did not come, whatever became of another try.
    mean_load_ns: of the latest loads, whatever they came from; 0: none yet.
    """

    loads: list[tuple[Source, int]] = field(default_factory=list)
    first_tokens: list[tuple[Start, int]] = field(default_factory=list)
    num_failures: int = 0
    mean_load_ns: float = 0.0

    def on_loaded(self, source: Source, duration_ns: int) -> None:
        """An image is here as a whole."""
        weight = LATEST_WEIGHT if self.mean_load_ns else 1.0
        self.mean_load_ns += weight * (duration_ns - self.mean_load_ns)
        if len(self.loads) < NOTES_MAX:
            self.loads.append((source, duration_ns))

    def on_first_token(self, start: Start, duration_ns: int) -> None:
        """A turn on an adapter has its first token."""
        if len(self.first_tokens) < NOTES_MAX:
            self.first_tokens.append((start, duration_ns))

    def take(self) -> AdapterTimes:
        """Loads and first tokens since the last call."""
        taken = AdapterTimes(self.loads, self.first_tokens)
        self.loads, self.first_tokens = [], []
        return taken
