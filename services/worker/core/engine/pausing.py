"""Turns that wait so that urgent ones run at once.

Where an urgent turn finds no seat in the batch or no pages, turns of no more than the usual
priority give theirs up, the last admitted first: only as many as are needed, and none if that does
not do. Their KV stays where it is, as clean copies whose pages can be taken, and below; so when
there is room again they go on where they were, and compute nothing again but what no copy was made
of.

Source: SYMPHONY, section 3.6 (low-priority requests are paused only when their execution would
impact latency). What a turn that runs beside an urgent one takes of its steps is no reason here.
"""

from dataclasses import dataclass

from services.worker.core.adapters.adapters import Adapters
from services.worker.core.effects import Effect
from services.worker.core.turns.history import History
from services.worker.core.turns.queue import TurnQueue
from services.worker.core.turns.turn import Turn
from shared.wire.urgency import is_urgent


@dataclass(slots=True)
class Pausing:
    """Who waits for whom."""

    queue: TurnQueue
    history: History
    adapters: Adapters
    num_pauses: int = 0

    def victims(self, turn: Turn, num_pages: int) -> list[Turn]:
        """Running turns that make way for an urgent one with a seat and, all together, so many
        pages; none if they cannot, or if nothing is copied below. Of who only gives up a
        seat, what has no copy yet is computed again.
        """
        if not (is_urgent(turn.request.priority) and self.history.write_behind.is_connected):
            return []
        num_short = num_pages - self.history.residency.num_available
        latest_first = reversed(self.queue.running)
        others = [
            each for each in latest_first if each.can_run and not is_urgent(each.request.priority)
        ]
        chosen: list[Turn] = []
        for each in sorted(others, key=lambda other: other.request.priority):
            if chosen and num_short <= 0:
                break
            chosen.append(each)
            num_short -= self._num_pages_of(each)
        return chosen if num_short <= 0 else []

    def pause(self, turn: Turn) -> list[Effect]:
        """A running turn waits, before others of its priority, and holds nothing meanwhile."""
        assert not turn.num_flights, "a step in flight reads its pages"
        self.num_pauses += 1
        num_blocks = len(turn.cache.prefix.blocks)
        self.history.keep_tail(turn, len(turn.tokens) - 1)
        if len(turn.cache.prefix.blocks) > num_blocks:
            turn.cache.num_history = len(turn.tokens) - 1  # as its session's next turn would say
        effects = self.history.release(turn)
        turn.prompt_logprobs = []
        turn.is_paused = True
        turn.cache.prefix.may_ask = True  # what came too late before will be there when it goes on
        self.adapters.stop(turn.adapter)
        self.queue.put_back(turn)
        return effects

    def resume(self, turn: Turn, num_reserved: int, now_ns: int) -> list[Effect] | None:
        """Look for a paused turn's KV, if there is room for all of it beside the pages that are
        kept for others; None: there is not.
        """
        num_wanted = self.history.num_pages_wanted(turn) + num_reserved
        if self.queue.running and self.history.residency.num_available < num_wanted:
            return None
        turn.is_paused = False
        return self.history.look_up(turn, now_ns)

    def _num_pages_of(self, turn: Turn) -> int:
        """Pages that can be taken once it has let go of them."""
        alone = [block for block in turn.cache.prefix.blocks if block.refs == 1 and block.is_safe]
        return (len(turn.cache.own) + len(alone)) * self.history.residency.pool.num_layers
