"""Whether a tier that evicts by prediction finds as much as it would by least recent use.

What the other order would find is known without its blocks: it keeps the chains used last that fit
together. Where it would have found clearly more lately, the tier evicts in that order for a while:
twice as long each time that prediction fails again soon.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

GUARDED_SHARE = 0.9  # of a tier: the rest is in use by what cannot be found yet
DEFICIT_SHARE = 0.03  # of what the other order would have found, and of the tier, that may lack
MEMORY_SIZES = 4.0  # of blocks asked for, in tiers, until half of what they showed is forgotten
REST_SIZES = 2.0  # in tiers, for which prediction rests the first time
RESTS_MAX = 5  # doublings of that


class Part(NamedTuple):
    """Of a sequence: a chain by its number, and how many blocks end with it."""

    chain: int
    end: int


class Guard:
    """Args:
    num_blocks_max: how many the tier holds.

    Attributes:
        is_trusted: evict by prediction.
    """

    def __init__(self, num_blocks_max: float) -> None:
        self.num_blocks_max = num_blocks_max
        self.is_trusted = True
        self._kept: OrderedDict[int, int] = OrderedDict()  # blocks, by chain, by last use
        self._num_kept = 0
        self._num_found = self._num_by_lru = 0.0  # lately
        self._rest_left = 0.0
        self._num_rests = 0

    def on_arrival(self, parts: Sequence[Part], first: int, num_asked: int, num_found: int) -> None:
        """A turn asked for blocks, the first `first` of its sequence not among them.

        Args:
            parts: what was used before of the sequence, from its beginning.
            num_found: of the blocks asked for, that were here.
        """
        by_lru = 0
        for part in parts:
            if part.chain not in self._kept:
                break
            by_lru = part.end
        kept = 0.5 ** (num_asked / (MEMORY_SIZES * self.num_blocks_max))
        self._num_found = self._num_found * kept + num_found
        self._num_by_lru = self._num_by_lru * kept + min(max(by_lru - first, 0), num_asked)
        if self.is_trusted:
            allowed = DEFICIT_SHARE * (self._num_by_lru + self.num_blocks_max)
            if self._num_by_lru - self._num_found > allowed:
                self.is_trusted = False
                self._rest_left = REST_SIZES * self.num_blocks_max * 2**self._num_rests
                self._num_rests = min(self._num_rests + 1, RESTS_MAX)
            return
        self._rest_left -= num_asked
        if self._rest_left <= 0:
            self.is_trusted = True
            self._num_found = self._num_by_lru = 0.0

    def use(self, parts: Sequence[Part]) -> None:
        """A turn uses a sequence of these."""
        begin = 0
        for part in parts:
            num_blocks = max(part.end - begin, 0)
            self._num_kept += num_blocks - self._kept.pop(part.chain, 0)
            self._kept[part.chain] = num_blocks
            begin = part.end
        while self._num_kept > self.num_blocks_max and self._kept:
            self._num_kept -= self._kept.popitem(last=False)[1]
