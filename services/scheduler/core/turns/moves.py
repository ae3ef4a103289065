"""Running turns that go on elsewhere: off workers that end, that have no more blocks, whose steps
take too long for a target, or that a policy empties.

What a turn runs on is prefetched at the other worker while it runs on where it is. Then it starts
there under a higher attempt, and the one before is cancelled. Until then nothing has changed for
it: a move that takes too long, or for which there is no room any more, is given up.

Sources: Punica, section 5.3, where the newest turn of a worker without pages moves, and section
5.1, where light workers are emptied. There a turn that moves is computed again; prefetching first
is ours.
"""

from collections.abc import Iterator
from dataclasses import replace

from services.scheduler.core.base.effects import SendPrefetch
from services.scheduler.core.fleet.records import Move, MoveReason, Turn, Worker
from services.scheduler.core.fleet.speeds import DEFAULT_SPEEDS
from services.scheduler.core.placement import Demand
from services.scheduler.core.turns.context import TurnContext
from services.scheduler.core.turns.promises import Promises
from services.scheduler.core.turns.turn_table import TurnTable, moving_name
from shared.ids import ModelId
from shared.wire.messages import Prefetch, RunningTurn, TurnPrefetched, TurnSubmit

PREPARE_NS = 5_000_000_000  # until what it runs on has to be there
STAY_NS = 10_000_000_000  # from one move of a turn, or one that was given up, to its next
MOVES_MAX = 256  # at a time
LEAVING_MAX = 2  # at a time, of one worker; of one that ends:
LEAVING_LAST_MAX = 8
COMING_MAX = 4  # at a time, to one worker
LACKING_MAX = 2  # blocks to compute again: more than one, since it runs on meanwhile
SLACK = 0.9  # of its target, that its steps elsewhere may take


class Moves:
    """Decides which turns move, when a worker reports, and carries it out."""

    def __init__(self, context: TurnContext, table: TurnTable, promises: Promises) -> None:
        self._placer = context.placer
        self._timers = context.timers
        self._out = context.out
        self._table = table
        self._promises = promises
        self._num_left_min = context.limits.moved_tokens_min
        self._moving: list[Turn] = []  # some have arrived, or stayed

    def on_report(self, worker: Worker, now_ns: int) -> None:
        """Begin what a worker's state asks for, and end what waited for it."""
        self._moving = [turn for turn in self._moving if turn.move is not None]
        for turn in self._moving:
            if turn.move is not None and turn.move.target is worker:
                self._arrive_if_ready(turn, turn.move, now_ns)
        self._begin_more(worker, now_ns)

    def _begin_more(self, worker: Worker, now_ns: int) -> None:
        most = LEAVING_LAST_MAX if worker.is_ending else LEAVING_MAX
        for turn, reason in self._leavers(worker, now_ns):
            if worker.num_leaving >= most or len(self._moving) >= MOVES_MAX:
                break
            self._begin(turn, worker, reason, now_ns)

    def on_prefetched(self, message: TurnPrefetched, now_ns: int) -> None:
        """A worker has of a turn what it can have."""
        turn = self._table.get(message.turn_id)
        if turn is None or turn.move is None:
            return
        worker = turn.worker
        if worker is not None and turn.move.target.worker_id == message.worker_id:
            turn.move.num_blocks = max(message.num_blocks, 0)
            self._arrive_if_ready(turn, turn.move, now_ns)
            if worker.is_ending:
                self._begin_more(worker, now_ns)  # it does not wait for long

    def _leavers(self, worker: Worker, now_ns: int) -> Iterator[tuple[Turn, MoveReason]]:
        """Turns that would better run elsewhere, the newest first."""
        newest_first = reversed(worker.turns.values())
        if worker.is_ending:
            yield from ((turn, "ending") for turn in newest_first if _can_move(turn, now_ns))
            return
        policy = self._placer.policy
        if not (policy.moves_turns and worker.alive and worker.is_open):
            return
        short = _models_short_of_blocks(worker)
        with_targets = [each for each, mix in worker.mixes.items() if mix.targets_ms]
        steps_ms = {model_id: policy.step_ms(worker, model_id) for model_id in with_targets}
        if not (short or steps_ms or policy.gathers_turns):
            return
        for turn in newest_first:
            model_id, target_ms = turn.model_id, turn.target_ms
            if not _can_move(turn, now_ns):
                continue
            if model_id in short:
                short.discard(model_id)  # one at a time: it may be enough
                yield turn, "blocks"
            elif target_ms is not None and steps_ms.get(model_id, 0.0) > target_ms:
                yield turn, "target"
            elif policy.gathers_turns:
                yield turn, "gathered"

    def _begin(self, turn: Turn, worker: Worker, reason: MoveReason, now_ns: int) -> None:
        """Have what a turn runs on prefetched where it would run, if there is such a place."""
        submit = turn.submit
        assert submit is not None
        demand = self._demand(turn, submit, worker)
        if reason != "ending" and demand.num_reply_tokens < self._num_left_min:
            return
        chosen = self._placer.choose(submit.model_id, None, now_ns, demand, avoid=worker)
        if chosen is None or not self._gains(turn, worker, chosen[0], demand, reason):
            return
        target = chosen[0]
        turn.move = move = Move(target, reason)
        worker.num_leaving += 1
        target.num_coming += 1
        self._moving.append(turn)
        prefetch = Prefetch(
            session_id=moving_name(turn.turn_id),
            model_id=submit.model_id,
            tenant=submit.tenant,
            priority=submit.priority,
            expires_in_ns=PREPARE_NS,
            adapter=submit.adapter,
            kv_at=dict(demand.kv_at),
            running=RunningTurn(
                turn_id=turn.turn_id,
                frontend_id=submit.frontend_id,
                session_id=submit.session_id,
            ),
        )
        self._out.append(SendPrefetch(target.worker_id, prefetch))
        self._timers.at(now_ns + PREPARE_NS, lambda at_ns: self._on_late(turn, move, at_ns))

    def _gains(
        self, turn: Turn, worker: Worker, target: Worker, demand: Demand, reason: MoveReason
    ) -> bool:
        """Whether a turn would be better off there, and would not soon come back."""
        if target is worker or target.num_coming >= COMING_MAX:
            return False
        match reason:
            case "blocks":
                room = target.room(demand.model_id)
                num_left = room.num_blocks_free - demand.promise(target).num_blocks
                return not room.num_blocks or num_left > 2 * room.num_turns
            case "target":
                assert turn.target_ms is not None
                without_ms, with_ms = self._placer.policy.steps_ms(target, demand)
                mix = target.mixes.get(demand.model_id)
                num_broken = 0 if mix is None else mix.num_broken(without_ms, with_ms)
                return not num_broken and with_ms <= SLACK * turn.target_ms
            case "gathered":
                return self._placer.policy.gathers(worker, target)
            case _:
                return True

    def _arrive_if_ready(self, turn: Turn, move: Move, now_ns: int) -> None:
        """Start a turn where it moves, once it would go on there at once."""
        submit, worker, target = turn.submit, turn.worker, move.target
        assert submit is not None and worker is not None
        if move.num_blocks is None:
            return
        if turn.adapter is not None and not target.has_loaded(turn.adapter.adapter_hash):
            return  # its next reports say
        demand = self._demand(turn, submit, worker)
        block_tokens = target.speeds.get(submit.model_id, DEFAULT_SPEEDS).block_tokens
        num_lacking = demand.num_prompt_tokens // block_tokens - move.num_blocks
        is_there = num_lacking <= LACKING_MAX or move.reason == "ending"
        if not (is_there and self._arrive(turn, submit, move, demand, now_ns)):
            self._stay(turn, now_ns)

    def _arrive(
        self, turn: Turn, submit: TurnSubmit, move: Move, demand: Demand, now_ns: int
    ) -> bool:
        """Start a turn where it moves and stop it where it was; False: it cannot run there."""
        worker, target, void = turn.worker, move.target, turn.ref
        assert worker is not None
        is_open = target.alive and target.is_open and submit.model_id in target.models
        if not (is_open and self._placer.policy.has_room(target, demand)):
            return False
        self._table.end_move(turn, is_over=False)
        self._table.unassign(turn)
        turn.moved_at_ns = now_ns
        self._table.start(
            turn, submit, target, "migrated", now_ns, demand.promise(target),
            expected_as=moving_name(turn.turn_id),
        )  # fmt: skip
        # In this order: if this process ends between the two, the turn runs on.
        self._table.cancel_attempt(worker, void)
        return True

    def _on_late(self, turn: Turn, move: Move, now_ns: int) -> None:
        if turn.move is not move:
            return
        submit, worker = turn.submit, turn.worker
        assert submit is not None and worker is not None
        demand = self._demand(turn, submit, worker)
        if move.reason != "ending" or not self._arrive(turn, submit, move, demand, now_ns):
            self._stay(turn, now_ns)

    def _stay(self, turn: Turn, now_ns: int) -> None:
        self._table.end_move(turn)
        turn.moved_at_ns = now_ns

    def _demand(self, turn: Turn, submit: TurnSubmit, worker: Worker) -> Demand:
        """What a turn needs that has run on this worker."""
        demand = self._promises.demand_of(turn, submit)
        num_tokens = submit.num_prompt_tokens + turn.num_generated
        block_tokens = worker.speeds.get(submit.model_id, DEFAULT_SPEEDS).block_tokens
        kv_at = {worker.report.host_id: num_tokens // block_tokens}
        return replace(demand, num_prompt_tokens=num_tokens, kv_at=kv_at)


def _can_move(turn: Turn, now_ns: int) -> bool:
    """Whether a turn runs, is known, and has not moved lately."""
    if turn.submit is None or turn.move is not None or not turn.num_generated:
        return False
    return not turn.moved_at_ns or now_ns - turn.moved_at_ns >= STAY_NS


def _models_short_of_blocks(worker: Worker) -> set[ModelId]:
    """Models of which the next blocks of the turns there do not fit, as it reports."""
    return {
        room.model_id
        for room in worker.report.rooms
        if room.num_blocks and room.num_blocks_free < room.num_turns
    }
