"""How adapters came, for metrics: told in the core's time, and taken by whoever exports it."""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Source: TypeAlias = Literal["kvstore", "files"]
Start: TypeAlias = Literal["resident", "streamed", "assisted", "waited"]
NOTES_MAX = 4096  # between two takings; of more, the first


@dataclass(slots=True)
class AdapterStats:
    """Attributes:
    loads: from which tier an image came, and how long that took, ns.
    first_tokens: whether a turn's image was there when it came, came beside its first pass, was
        computed from the arena meanwhile or waited for; and its time to the first token.
    num_failures: images that did not come, whatever became of another try.
    """

    loads: list[tuple[Source, int]] = field(default_factory=list)
    first_tokens: list[tuple[Start, int]] = field(default_factory=list)
    num_failures: int = 0

    def on_loaded(self, source: Source, duration_ns: int) -> None:
        """An image is here as a whole."""
        if len(self.loads) < NOTES_MAX:
            self.loads.append((source, duration_ns))

    def on_first_token(self, start: Start, duration_ns: int) -> None:
        """A turn on an adapter has its first token."""
        if len(self.first_tokens) < NOTES_MAX:
            self.first_tokens.append((start, duration_ns))

    def take(self) -> tuple[list[tuple[Source, int]], list[tuple[Start, int]]]:
        """Loads and first tokens since this was asked last."""
        taken = self.loads, self.first_tokens
        self.loads, self.first_tokens = [], []
        return taken
