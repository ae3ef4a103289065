"""What leaves the disk for age or room: some at a time, so that nobody waits for long."""

from services.kvstore.core.effects import DropMore, Effect
from services.kvstore.core.limits import Counts, Limits
from services.kvstore.core.tiers import Tiers
from shared.blocks import BlockKey


class Shrinking:
    """A step lets go of `Limits.drops_max` blocks at most; what is left after it is for the next
    one, which the shell is asked for, or which a tick brings.
    """

    def __init__(self, limits: Limits, tiers: Tiers, counts: Counts) -> None:
        self._num_max = limits.drops_max
        self._tiers = tiers
        self._counts = counts
        self._is_asked_for = False  # the next step

    def step(self, now_ns: int, effects: list[Effect]) -> None:
        """Some of what is expired or too much."""
        keys = self._tiers.surplus(now_ns, self._num_max)
        self._drop(keys, effects)
        if len(keys) >= self._num_max and not self._is_asked_for:
            self._is_asked_for = True
            effects.append(DropMore())

    def go_on(self, now_ns: int, effects: list[Effect]) -> None:
        """The step that was asked for."""
        self._is_asked_for = False
        self.step(now_ns, effects)

    def make_room(self, num_bytes: int, effects: list[Effect]) -> None:
        """For so much at once: it finds no room."""
        self._drop(self._tiers.oldest(num_bytes), effects)

    def _drop(self, keys: list[BlockKey], effects: list[Effect]) -> None:
        for key in keys:
            self._tiers.forget(key, effects)
        self._counts.num_blocks_dropped += len(keys)
