"""Live migration of running turns, as Llumnix does it (its section 4.2).

When a worker reports `GAP` turns more than the least loaded one has, its running turn of the lowest
priority with the fewest tokens moves: the scheduler is asked for a higher attempt, as a frontend
asks that gets no tokens, and the new worker learns from the old one where the KV is. Not
modelled: Llumnix copies most of the KV while the request still decodes, so that it stands still for
less (tens of ms); and it counts pages where this counts turns.
"""

from collections.abc import Mapping
from dataclasses import replace

from shared.ids import HostId, TurnId, WorkerId
from shared.locations import BLOCKS_MAX
from shared.wire.messages import TurnRef, TurnsEnded, TurnsSubmit, TurnSubmit, WorkerReport

GAP = 4  # turns
MOVES_MAX = 3  # of a turn, after which it stays


class Migration:
    """Chooses turns to move from what the scheduler is sent.

    Args:
        block_tokens: of a KV block.
    """

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._submits: dict[TurnId, TurnSubmit] = {}
        self._num_moves: dict[TurnId, int] = {}
        self._moving: set[TurnId] = set()
        self._kv_at: dict[TurnId, dict[HostId, int]] = {}  # of those that moved
        self._loads: dict[WorkerId, int] = {}

    def on_submit(self, message: TurnsSubmit) -> None:
        """Turns have come."""
        self._submits.update((submit.turn_id, submit) for submit in message.turns)

    def on_ended(self, message: TurnsEnded) -> None:
        """Attempts are over; a turn that moves ends later."""
        for end in message.turns:
            if end.turn_id not in self._moving:
                self._submits.pop(end.turn_id, None)
                self._num_moves.pop(end.turn_id, None)
                self._kv_at.pop(end.turn_id, None)

    def on_report(self, report: WorkerReport) -> TurnsSubmit | None:
        """A worker's turns; what to submit so that one of them moves."""
        self._loads[report.worker_id] = len(report.turns)
        if len(report.turns) - min(self._loads.values()) < GAP:
            return None
        movable = [ref for ref in report.turns if self._can_move(ref)]
        if not movable:
            return None
        ref = min(movable, key=self._cost)
        num_blocks = min(self._num_tokens(ref) // self._block_tokens + 1, BLOCKS_MAX)
        self._moving.add(ref.turn_id)
        self._kv_at[ref.turn_id] = {report.host_id: num_blocks}
        self._num_moves[ref.turn_id] = self._num_moves.get(ref.turn_id, 0) + 1
        submit = self._submits[ref.turn_id]
        return TurnsSubmit(turns=[replace(submit, prompt="", attempt=ref.attempt + 1)])

    def on_moved(self, turn_id: TurnId) -> Mapping[HostId, int] | None:
        """Where the KV is of a turn that a worker begins; None: it begins for the first time."""
        self._moving.discard(turn_id)
        return self._kv_at.get(turn_id)

    def _can_move(self, ref: TurnRef) -> bool:
        return (
            ref.num_generated > 0
            and ref.turn_id in self._submits
            and ref.turn_id not in self._moving
            and self._num_moves.get(ref.turn_id, 0) < MOVES_MAX
        )

    def _cost(self, ref: TurnRef) -> tuple[int, int, str]:
        return self._submits[ref.turn_id].priority, self._num_tokens(ref), ref.turn_id

    def _num_tokens(self, ref: TurnRef) -> int:
        return self._submits[ref.turn_id].num_prompt_tokens + ref.num_generated
