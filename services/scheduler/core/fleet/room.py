"""Whether a turn finds a seat and blocks on a worker."""

from dataclasses import dataclass
from typing import NamedTuple

from shared.wire.messages import ModelRoom

AHEAD_SHARE = 8  # one turn for so many seats may wait on a worker, so that its KV comes meanwhile
BLOCKS_MAX = 1 << 32


class Promise(NamedTuple):
    """What a turn takes of a worker: 0: not known.

    Attributes:
        num_blocks: of the pool, for its prompt, its reply and its adapter.
        num_tokens: of its reply, that are to come.
    """

    num_blocks: int = 0
    num_tokens: float = 0.0


NOTHING = Promise()


@dataclass(slots=True)
class Room:
    """What one model's turns find on one worker: as last reported, changed by what was sent there
    and ended since.

    Attributes:
        num_turns: held there, or sent.
        num_blocks: of its pool; 0: not known.
        num_blocks_free: less than 0: more were promised than there are.
        num_tokens: that its turns still have to make.
    """

    num_turns: int = 0
    num_blocks: int = 0
    num_blocks_free: int = 0
    num_tokens: float = 0.0

    @classmethod
    def of(cls, reported: ModelRoom) -> "Room":
        """As reported, within bounds."""
        return cls(
            min(max(reported.num_turns, 0), BLOCKS_MAX),
            min(max(reported.num_blocks, 0), BLOCKS_MAX),
            min(max(reported.num_blocks_free, -BLOCKS_MAX), BLOCKS_MAX),
        )

    @property
    def mean_tokens(self) -> float:
        """That each of its turns still has to make; 0: not known."""
        return self.num_tokens / self.num_turns if self.num_turns else 0.0

    def take(self, promise: Promise) -> None:
        """A turn was sent there."""
        self.num_turns += 1
        self.grow(promise)

    def grow(self, promise: Promise) -> None:
        """A turn that is counted will take so much more."""
        self.num_blocks_free -= promise.num_blocks
        self.num_tokens += promise.num_tokens

    def give(self, promise: Promise) -> None:
        """A turn that was counted is there no more."""
        self.num_turns = max(self.num_turns - 1, 0)
        self.num_blocks_free += promise.num_blocks
        self.num_tokens = max(self.num_tokens - promise.num_tokens, 0.0)

    def fits(self, num_blocks: int, num_seats: int) -> bool:
        """Whether a turn that needs so many blocks can begin soon. Where there is no other, it can:
        its reply may be shorter.

        Args:
            num_seats: turns in one step of the model; 0: not known.

        >>> Room(num_turns=1, num_blocks=100, num_blocks_free=10).fits(11, 64)
        False
        >>> Room(num_turns=0, num_blocks=100, num_blocks_free=10).fits(101, 64)
        True
        >>> Room(num_turns=72).fits(1, 64), Room(num_turns=71).fits(1, 64)
        (False, True)
        """
        if not self.num_turns:
            return True
        if num_seats and self.num_turns >= num_seats + num_seats // AHEAD_SHARE:
            return False
        return not self.num_blocks or num_blocks <= self.num_blocks_free
