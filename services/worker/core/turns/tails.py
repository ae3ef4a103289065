"""The last block of a session's history, which mostly is not full.

When a turn ends, what it computed of its last block is kept under a key of its own, that of just
these tokens (`shared.blocks.child_key`), in the pool and below. The session's next turn asks for it
by the same key, and goes on in the same block: that must be its own alone. So a turn that begins to
run hides its tail from other turns, or leaves it if another one holds it. Bytes behind
the tokens of a tail's key may be anything: a turn that runs on it writes there before it reads.
"""

from dataclasses import dataclass

from services.worker.core.kv.residency import Residency
from services.worker.core.kv.write_behind import WriteBehind
from services.worker.core.turns.turn import Turn
from shared.blocks import BlockKey


@dataclass(slots=True)
class Tails:
    """What becomes of the tails of turns."""

    residency: Residency
    write_behind: WriteBehind

    def want(self, turn: Turn) -> None:
        """Hold what is here of the turn's prefix. What it lacks ends with its tail, unless a full
        block is here in the tail's place: it may have been here before, with all of its prompt."""
        if turn.cache.tail is not None:
            return
        prefix = turn.cache.prefix
        prefix.keys = turn.reusable_keys()
        self.residency.want(prefix)
        if turn.has_tail and len(prefix.blocks) <= turn.cache.tail_index:
            prefix.keys = [*prefix.keys[: turn.cache.tail_index], turn.cache.tail_key()]
            self.residency.want(prefix)

    def is_all_but(self, turn: Turn, staged: list[BlockKey]) -> bool:
        """Whether these blocks are all that were asked for but the tail, while the turn has full
        ones from there on, which the kvstore was not asked for."""
        prefix = turn.cache.prefix
        if not turn.has_tail or turn.num_reusable_blocks <= turn.cache.tail_index:
            return False
        asked = prefix.keys[prefix.staged_from :]
        return [*staged, turn.cache.tail_key()] == asked

    def leave_shared(self, turn: Turn) -> None:
        """Others hold the tail as well: the turn computes it."""
        prefix, tail = turn.cache.prefix, turn.cache.tail
        if tail is None or tail.refs == 1:
            return
        prefix.blocks.pop()
        prefix.coming = [block for block in prefix.coming if block is not tail]
        self.residency.pool.release([tail])
        turn.on_prefix()

    def claim(self, turn: Turn) -> None:
        """The turn runs: from now on no other turn finds its tail, nor is it copied below. What a
        copy that has begun gives is not used: it may have some of the turn's tokens."""
        self.leave_shared(turn)
        if turn.cache.tail is not None:
            self.write_behind.forget([turn.cache.tail])
            self.residency.forget([turn.cache.tail])

    def own(self, turn: Turn) -> bool:
        """The tail, once it is here, is the turn's own block like those behind it; whether it is,
        or there is none."""
        tail, prefix = turn.cache.tail, turn.cache.prefix
        if tail is None:
            return True
        if tail.loading or tail.lost:
            return False
        prefix.blocks.pop()
        prefix.coming = [block for block in prefix.coming if block is not tail]
        self.residency.pool.take_back(tail)
        turn.cache.own.insert(0, tail)
        turn.cache.tail = None
        return True
