"""What turns take of their workers, beyond what workers report."""

from dataclasses import replace
from math import ceil

from services.scheduler.core.fleet.lengths import ReplyLengths
from services.scheduler.core.fleet.records import Turn, Worker
from services.scheduler.core.fleet.room import Promise
from services.scheduler.core.fleet.speeds import DEFAULT_SPEEDS
from services.scheduler.core.placement import Demand
from shared.wire.messages import TurnEnd, TurnSubmit, WorkerReport


class Promises:
    """Learns how long replies are."""

    def __init__(self) -> None:
        self._lengths = ReplyLengths()

    def learn(self, turn: Turn, end: TurnEnd) -> None:
        """A turn has ended."""
        self._lengths.learn(turn.model_id, end.num_generated)

    def demand_of(self, turn: Turn, submit: TurnSubmit) -> Demand:
        """What a turn needs that is here, with the reply that it will probably have."""
        return replace(Demand.of(submit), num_reply_tokens=self._num_left(turn, submit))

    def take_again(self, worker: Worker, report: WorkerReport) -> None:
        """Take room for what a report does not count: turns that it does not list yet, and what is
        still to come of the replies of the others.
        """
        for turn in worker.turns.values():
            if turn.seen_seq < report.seq:
                worker.promise(turn, turn.promise)
                continue
            turn.room = worker.room(turn.counted_in)
            if (submit := turn.submit) is not None:
                speeds = worker.speeds.get(submit.model_id, DEFAULT_SPEEDS)
                num_left = self._num_left(turn, submit)
                num_used = submit.num_prompt_tokens + turn.num_generated
                num_blocks = ceil((num_used + num_left) / speeds.block_tokens)
                num_held = num_used // speeds.block_tokens + 1
                turn.room.grow(Promise(max(num_blocks - num_held, 0), num_left))
                turn.promise = Promise(num_blocks, num_left)

    def _num_left(self, turn: Turn, submit: TurnSubmit) -> float:
        return self._lengths.remaining(submit.model_id, turn.num_generated, submit.max_tokens)
