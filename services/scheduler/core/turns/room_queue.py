"""The order in which turns wait for a worker with room, and which of them are refused."""

from services.scheduler.core.fleet.records import Turn
from services.scheduler.core.turns.context import TurnContext
from services.scheduler.core.turns.queue_rates import QueueRates
from services.scheduler.core.turns.turn_table import TurnTable
from services.scheduler.core.turns.waiting import Rank
from shared.ids import ModelId
from shared.wire.messages import TurnSubmit


class RoomQueue:
    """First come, first served, but by priority and by when a turn's target ends; no turn overtakes
    the first, which may need more room than others. One that was placed before goes before all of
    its priority and is never refused.
    """

    def __init__(self, context: TurnContext, table: TurnTable) -> None:
        self._fleet = context.fleet
        self._limits = context.limits
        self._table = table
        self._rates = QueueRates()

    def rank(self, turn: Turn, submit: TurnSubmit, now_ns: int) -> Rank:
        """Of a turn that begins to wait now."""
        until_ns = 0 if turn.num_placements else now_ns + self.wait_ns_max(submit)
        return -submit.priority, until_ns

    def wait_ns_max(self, submit: TurnSubmit) -> int:
        """How long a turn may wait."""
        most_ns, target_ms = self._limits.queue_wait_ns, submit.slo_ttft_ms
        if target_ms is None or not target_ms < most_ns / 1e6:
            return most_ns
        return int(max(target_ms, 0.0) * 1e6)

    def unserved_until_ns(self, turn: Turn, submit: TurnSubmit) -> int:
        """How long a turn waits whose model no worker serves now: as if it had begun when the last
        one left, but in all no longer than for room, unless it was placed before.
        """
        wait_ns, from_ns = self._limits.placement_wait_ns, turn.waits_from_ns
        until_ns = max(from_ns, self._fleet.left_at_ns.get(submit.model_id, from_ns)) + wait_ns
        if turn.num_placements:
            return until_ns
        return min(until_ns, from_ns + max(wait_ns, self.wait_ns_max(submit)))

    def is_behind(self, turn: Turn, submit: TurnSubmit, now_ns: int) -> bool:
        """Whether another one comes first. One that its frontend sent to a worker does not wait."""
        first = self._table.waiting.first(submit.model_id)
        if first is None or first is turn or submit.sent_to is not None:
            return False
        return self._table.waiting.rank_of(first) <= self.rank(turn, submit, now_ns)

    def refuses(self, turn: Turn, submit: TurnSubmit, rank: Rank, now_ns: int) -> bool:
        """Refuse a turn with a target that those before it will make it miss."""
        if submit.slo_ttft_ms is None or turn.num_placements:
            return False
        wait_ns = self._wait_ns(submit.model_id)
        if now_ns + wait_ns <= rank[1]:
            return False
        self.refuse(turn, submit, f"its turn would come in {wait_ns / 1e9:.1f} s")
        return True

    def refuse(self, turn: Turn, submit: TurnSubmit, why: str) -> None:
        """Tell its client when to come again."""
        wait_s = max(self._wait_ns(submit.model_id) / 1e9, 1.0)
        message = f"all workers of this model are busy: {why}"
        self._table.fail(turn, "overloaded", message, retry_after_s=wait_s)

    def on_admitted(self, model_id: ModelId, now_ns: int) -> None:
        """A turn that waited got a worker."""
        self._rates.on_admitted(model_id, now_ns)

    def _wait_ns(self, model_id: ModelId) -> int:
        """How long the next turn of a model will wait, as far as can be said."""
        return self._table.waiting.num_queued(model_id) * self._rates.interval_ns(model_id)
