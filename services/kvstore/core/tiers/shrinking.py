"""What leaves for age or room: some at a time, so that no caller waits for long."""

from services.kvstore.core.base.effects import Effect
from services.kvstore.core.base.steps import Steps
from services.kvstore.core.base.store_limits import Counts, Limits
from services.kvstore.core.tiers.tiers import Tiers
from shared.blocks import BlockKey


class Shrinking:
    """A step drops `Limits.drops_max` blocks of a tier at most; what is left after it is for the
    next one, which the shell is asked for, or which a tick brings.
    """

    def __init__(self, limits: Limits, tiers: Tiers, steps: Steps, counts: Counts) -> None:
        self._num_max = limits.drops_max
        self._tiers = tiers
        self._steps = steps
        self._counts = counts

    def step(self, now_ns: int, effects: list[Effect]) -> None:
        """Some of what is expired or too much."""
        evicted = self._tiers.surplus(now_ns, self._num_max)
        self._evict(evicted, now_ns, effects)
        expired = self._tiers.take_expired(now_ns, self._num_max)
        for key in expired:
            self._tiers.forget(key, effects)
        if max(len(evicted), len(expired)) >= self._num_max:
            self._steps.ask(effects)

    def make_room(self, num_bytes: int, now_ns: int, effects: list[Effect]) -> None:
        """For so much at once: it finds no room."""
        self._evict(self._tiers.to_make_room(num_bytes, now_ns), now_ns, effects)

    def _evict(self, keys: list[BlockKey], now_ns: int, effects: list[Effect]) -> None:
        for key in keys:
            self._tiers.evict(key, now_ns, effects)
        self._counts.num_blocks_dropped += len(keys)
