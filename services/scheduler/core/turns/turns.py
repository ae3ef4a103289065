"""The life of a turn: submitted, placed, perhaps lost and placed again, over.

An attempt is dispatched once, to one worker, under a number above every number known for its turn;
the frontend takes tokens from the highest attempt that pulled the prompt. So placing a turn again
is always safe, and is what happens in any doubt.

Losses count while a turn makes no token: a turn that progresses may be lost any number of times.
One that was on several lost workers without making a token runs alone (`quarantine.py`).
"""

from collections.abc import Collection, Iterable

from services.scheduler.core.base.effects import (
    CancelTurn,
    CountTurn,
    Effect,
    FailTurn,
)
from services.scheduler.core.fleet.mix import Adapter, adapter_named
from services.scheduler.core.fleet.records import Ended, Turn, Worker
from services.scheduler.core.turns.context import TurnContext
from services.scheduler.core.turns.dispatch import Dispatch
from services.scheduler.core.turns.moves import Moves
from services.scheduler.core.turns.peer_turns import PeerTurns
from services.scheduler.core.turns.promises import Promises
from services.scheduler.core.turns.quarantine import Quarantine
from services.scheduler.core.turns.reservations import Reservations
from services.scheduler.core.turns.room_queue import RoomQueue
from services.scheduler.core.turns.scaling import Scaling
from services.scheduler.core.turns.turn_table import TurnTable
from shared.ids import ModelId, WorkerId
from shared.wire.messages import TurnCancel, TurnEnd, TurnFailed, TurnRef, TurnSubmit, WorkerReport
from shared.wire.shards import Share

REPORTS_TO_BE_MISSED = 2
AT_ONCE_NS = 0
RECHECK_NS = 1_000_000_000  # at least, before a turn that still waits is checked again


class Turns:
    """Every turn that is placed or waits, and a bounded memory of ended ones.

    Args:
        learning_until_ns: nothing is placed before this instant.
        attempt_floor: lowest attempt number that this scheduler dispatches; above every number that
            an earlier scheduler, whose dispatches this one does not know, can have used.

    Attributes:
        peer_turns: turns of peer schedulers on the workers.
        moves: turns that run, on their way to other workers.
    """

    def __init__(
        self,
        context: TurnContext,
        reservations: Reservations,
        *,
        learning_until_ns: int,
        attempt_floor: int,
    ) -> None:
        self._share = context.share
        self._fleet = context.fleet
        self._placer = context.placer
        self._reservations = reservations
        self._timers = context.timers
        self._limits = context.limits
        self._out: list[Effect] = context.out
        self._learning_until_ns = learning_until_ns
        self._table = TurnTable(context, attempt_floor=attempt_floor, on_room=self._on_room)
        self.peer_turns = PeerTurns(context, self._on_room)
        self._quarantine = Quarantine(context, self._table, self.peer_turns)
        self._queue = RoomQueue(context, self._table)
        self._promises = Promises()
        self._dispatch = Dispatch(context, self._table, reservations, self._promises)
        self.moves = Moves(context, self._table, self._promises)
        self._scaling = Scaling(context, self._table.waiting, learning_until_ns)
        self._with_room: dict[WorkerId, Worker] = {}  # workers on which waiting turns may fit

    @property
    def num_waiting(self) -> int:
        return len(self._table.waiting)

    @property
    def num_placed(self) -> int:
        return len(self._table) - self.num_waiting

    def raise_attempts(self, floor: int) -> None:
        """Raise the lowest attempt number."""
        self._table.raise_attempts(floor)

    def submit(self, message: TurnSubmit, now_ns: int) -> None:
        """Place a turn. A repeated submit changes nothing, unless it names a higher attempt than
        any known here: the frontend accepts no lower one, so the turn is placed again.
        """
        if not self._share.has_turn(message.turn_id):
            self._refuse(message)
            return
        message = self._placer.located(message, now_ns)
        turn = self._table.get(message.turn_id)
        if turn is None:
            self._open(message, now_ns)
            return
        if turn.submit is None:
            self._table.note_submit(turn, message)
            if message.sent_to is not None and turn.worker is not None:
                self._note_sent(turn, message, turn.worker, now_ns)
        if message.attempt <= turn.attempt:
            return
        old_worker, void = turn.worker, turn.ref
        if old_worker is None:
            turn.attempt = _attempt_seen(message)
            return
        turn.attempt = message.attempt
        self._lose([turn], old_worker, now_ns)
        if turn.worker is not old_worker:  # on the same worker the new start supersedes it
            self._table.cancel_attempt(old_worker, void)

    def _refuse(self, message: TurnSubmit) -> None:
        """Fail a turn of another shard: its frontend has another number of schedulers."""
        failed = _misrouted(message, self._share)
        self._out.append(FailTurn(message.frontend_id, failed, message.request_id))
        self._out.append(CountTurn("failed"))

    def cancel(self, message: TurnCancel) -> None:
        """Stop a turn, and remember that it is cancelled in case it arrives later."""
        turn = self._table.get(message.turn_id)
        if turn is None:
            self._table.remember(message.turn_id, Ended(0, cancelled=True))
            return
        if turn.worker is not None:
            self._out.append(CancelTurn(turn.worker.worker_id, message))
        self._table.close(turn, cancelled=True)
        self._out.append(CountTurn("cancelled"))

    def ended(self, end: TurnEnd) -> None:
        """A worker has finished an attempt, which ends the turn unless a higher attempt exists."""
        self.peer_turns.on_ended(end.turn_id)
        turn = self._table.get(end.turn_id)
        if turn is not None and end.attempt >= turn.attempt:
            turn.attempt = end.attempt
            self._promises.learn(turn, end)
            self._table.close(turn)
            self._out.append(CountTurn(end.reason))

    def reconcile(self, worker: Worker, report: WorkerReport, now_ns: int) -> None:
        """Compare the turns that a worker reports with those that were placed there.

        Unknown turns are adopted: an earlier scheduler placed them. Void ones are cancelled. Turns
        that two reports lack since they were last listed or dispatched are lost. Turns that made
        tokens have their losses reset.
        """
        self.peer_turns.on_report(worker, report)
        for ref in report.turns:
            if self._share.has_turn(ref.turn_id):
                self._account_for(worker, report, ref, now_ns)
        patience_ns = REPORTS_TO_BE_MISSED * report.interval_ns  # reports may arrive in a burst
        missed = [
            turn
            for turn in worker.turns.values()
            if report.seq >= turn.seen_seq + REPORTS_TO_BE_MISSED
            and now_ns - turn.placed_at_ns >= patience_ns
        ]
        for turn in missed:
            turn.missed_by = worker
        self._promises.take_again(worker, report)
        self.peer_turns.promise_again(worker, report)
        self._lose(missed, worker, now_ns)
        self._quarantine.on_report(worker)
        self.moves.on_report(worker, now_ns)
        self._on_room(worker)

    def worker_silent(self, worker: Worker, now_ns: int) -> None:
        """The worker counts as dead, but may only be unreachable: place its turns elsewhere."""
        self._quarantine.on_silence(worker)
        self.peer_turns.on_lost(worker)
        self._lose(list(worker.turns.values()), worker, now_ns)

    def worker_restarted(self, worker: Worker, now_ns: int) -> None:
        """Another process has the worker's id: the earlier one surely died, and its turns are lost.
        A quarantined turn that was alone there may have to fail.
        """
        isolated = self._quarantine.on_restart(worker)
        self.peer_turns.on_lost(worker)
        self.peer_turns.on_report(worker, worker.report)  # the next turn there may have to be alone
        if isolated is not None and self._quarantine.must_fail(isolated):
            message = f"{isolated.num_proven} workers died of this turn, the last one alone with it"
            self._table.fail(isolated, "poisoned", message, http_status=500)
        elif isolated is not None:
            self._admit_soon(isolated.model_id)
        self._lose(list(worker.turns.values()), worker, now_ns)

    def worker_returned(self, worker: Worker) -> None:
        """The worker reports again after a silence in which it did not die."""
        isolated = self._quarantine.on_return(worker)
        if isolated is not None:  # it may still be there: then the report lists it
            self._admit_soon(isolated.model_id)

    def admit(
        self, models: Iterable[ModelId], now_ns: int, among: Collection[Worker] | None = None
    ) -> None:
        """Place turns that wait for these models: quarantined ones first, then those of the queue,
        until the first of it finds no room.

        Args:
            among: where there may be room now; None: anywhere.
        """
        if now_ns < self._learning_until_ns:
            return
        waiting = self._table.waiting
        for model_id in sorted(models):
            for turn in sorted(waiting.alone(model_id), key=_urgency):
                self._place(turn, now_ns)
            while (first := waiting.first(model_id)) is not None:
                self._place(first, now_ns, among=among)
                if first.worker is None:
                    break

    def admit_all(self, now_ns: int) -> None:
        """The learning period is over: place all waiting turns."""
        self.admit(self._table.waiting.models, now_ns)

    def _open(self, message: TurnSubmit, now_ns: int) -> None:
        over = self._table.ended(message.turn_id)
        if over is not None and over.cancelled:
            return
        if over is not None and over.failed is not None:
            self._out.append(FailTurn(message.frontend_id, over.failed, message.request_id))
            return
        turn = Turn(message.turn_id, message, _attempt_seen(message))
        if message.adapter is not None:
            turn.adapter = Adapter.of(message.adapter)
        if over is not None:  # its end did not reach the frontend
            turn.attempt = max(turn.attempt, over.attempt)
            turn.num_placements = 1
        if len(self._table) >= self._limits.turns_max:
            self._table.fail(turn, "overloaded", "too many turns are waiting")
            return
        self._table.add(turn)
        self._place(turn, now_ns)

    def _place(
        self,
        turn: Turn,
        now_ns: int,
        avoid: Worker | None = None,
        among: Collection[Worker] | None = None,
    ) -> None:
        """Dispatch an unplaced turn, or let it wait for a worker. Args: as `Placer.choose`."""
        submit = turn.submit
        assert submit is not None and turn.worker is None
        if now_ns < self._learning_until_ns:
            self._wait(turn, submit, now_ns)
        elif self._quarantine.is_quarantined(turn):
            if not self._quarantine.start_alone(turn, submit, now_ns):
                self._wait(turn, submit, now_ns)
        elif self._queue.is_behind(turn, submit, now_ns):
            self._wait(turn, submit, now_ns)
        else:
            did_wait = turn in self._table.waiting
            if not self._dispatch.place(turn, submit, now_ns, avoid or turn.missed_by, among):
                self._wait(turn, submit, now_ns)
            elif did_wait:
                self._queue.on_admitted(submit.model_id, now_ns)

    def _note_sent(self, turn: Turn, submit: TurnSubmit, worker: Worker, now_ns: int) -> None:
        """The report of a turn that its frontend sent to the worker overtook the submit."""
        if submit.session_id is None:
            return
        key = (submit.tenant, submit.session_id)
        reserved = self._reservations.take(key, submit.model_id, at=worker)
        self._table.note_arrival(submit, turn, worker, now_ns, is_reserved=reserved is worker)

    def _lose(self, turns: list[Turn], worker: Worker, now_ns: int) -> None:
        """Take lost turns from their worker and place them under higher attempts, elsewhere if
        possible: quarantined ones first, which need a worker without turns.
        """
        for turn in turns:
            self._table.unassign(turn)
        for turn in sorted(turns, key=self._urgency):
            turn.num_lost += 1
            if turn.submit is None:  # known from its worker only: the frontend will submit it again
                self._table.close(turn)
            elif turn.num_lost >= self._limits.losses_max:
                message = f"the turn was lost {turn.num_lost} times in a row"
                self._table.fail(turn, "worker_lost", message)
            else:
                self._place(turn, now_ns, avoid=worker)

    def _urgency(self, turn: Turn) -> tuple[bool, int]:
        return not self._quarantine.is_quarantined(turn), _urgency(turn)

    def _on_room(self, worker: Worker) -> None:
        """Turns that wait may find room there now."""
        if self._table.waiting.is_awaited(worker.models):
            if not self._with_room:
                self._timers.at(AT_ONCE_NS, self._admit_where_room)
            self._with_room[worker.worker_id] = worker

    def _admit_where_room(self, now_ns: int) -> None:
        workers = list(self._with_room.values())
        self._with_room.clear()
        models = frozenset[ModelId]().union(*(worker.models for worker in workers))
        self.admit(models, now_ns, among=workers)

    def _admit_soon(self, model_id: ModelId) -> None:
        """Another turn is the first that waits."""
        if self._table.waiting.is_awaited([model_id]):
            self._timers.at(AT_ONCE_NS, lambda now_ns: self.admit([model_id], now_ns))

    def _account_for(self, worker: Worker, report: WorkerReport, ref: TurnRef, now_ns: int) -> None:
        turn = self._table.get(ref.turn_id)
        if turn is None:
            over = self._table.ended(ref.turn_id)
            if over is not None and (over.cancelled or ref.attempt <= over.attempt):
                self._table.cancel_attempt(worker, ref)
                return
            turn = Turn(ref.turn_id, None, adapter=adapter_named(ref))
            self._table.add(turn)
        elif ref.attempt < turn.attempt or (
            ref.attempt == turn.attempt and turn.worker not in (worker, None)
        ):
            if turn.worker is not worker:  # else the newer attempt is in flight to it
                self._table.cancel_attempt(worker, ref)
            return
        if turn.worker is not worker:
            self._table.adopt(turn, worker, now_ns)
            self._quarantine.on_adopted(turn, worker)
        turn.attempt = ref.attempt
        turn.seen_seq = report.seq
        if ref.num_generated > turn.num_generated:
            turn.num_generated = ref.num_generated
            turn.num_lost, turn.missed_by = 0, None
            self._quarantine.on_tokens(turn)

    def _wait(self, turn: Turn, submit: TurnSubmit, now_ns: int) -> None:
        if turn in self._table.waiting:
            return
        turn.waits_from_ns = now_ns
        is_alone = self._quarantine.is_quarantined(turn)
        rank = None if is_alone else self._queue.rank(turn, submit, now_ns)
        if rank is not None and self._queue.refuses(turn, submit, rank, now_ns):
            return
        self._table.wait(turn, submit, rank)
        self._wait_until(turn, now_ns + self._patience_ns(turn, submit))

    def _patience_ns(self, turn: Turn, submit: TurnSubmit) -> int:
        if turn.awaited is not None:
            return self._limits.proof_wait_ns
        if self._quarantine.is_quarantined(turn):
            return self._limits.quarantine_wait_ns
        if not self._fleet.serving(submit.model_id):
            return self._limits.placement_wait_ns
        return self._queue.wait_ns_max(submit)

    def _wait_until(self, turn: Turn, at_ns: int) -> None:
        turn.wait_until_ns = at_ns
        self._timers.at(at_ns, lambda now_ns: self._on_waited(turn, now_ns))

    def _on_waited(self, turn: Turn, now_ns: int) -> None:
        if not self._table.still_waits(turn) or turn.wait_until_ns > now_ns:
            return
        submit = turn.submit
        assert submit is not None
        if not self._fleet.serving(submit.model_id):
            if now_ns < (until_ns := self._queue.unserved_until_ns(turn, submit)):
                self._wait_until(turn, until_ns)
            else:
                self._table.fail(turn, "no_worker", "no worker serves this model at the moment")
            return
        if self._quarantine.is_quarantined(turn):
            self._end_quarantine_wait(turn, submit, now_ns)
        elif turn.num_placements or now_ns < self._learning_until_ns:
            self._wait_until(turn, now_ns + RECHECK_NS)
        elif now_ns < (until_ns := turn.waits_from_ns + self._queue.wait_ns_max(submit)):
            self._wait_until(turn, until_ns)
        else:
            waited_s = (now_ns - turn.waits_from_ns) / 1e9
            self._queue.refuse(turn, submit, f"it has waited for {waited_s:.1f} s")
            self._admit_soon(submit.model_id)

    def _end_quarantine_wait(self, turn: Turn, submit: TurnSubmit, now_ns: int) -> None:
        turn.awaited = None  # no proof came
        if not self._quarantine.start_alone(turn, submit, now_ns):
            for moved in self._quarantine.make_room(turn, submit, now_ns):
                self._place(moved, now_ns)
        if turn.worker is None:  # it is next when another one's isolation ends
            self._wait_until(turn, now_ns + RECHECK_NS)


def _urgency(turn: Turn) -> int:
    return -turn.submit.priority if turn.submit is not None else 0


def _misrouted(message: TurnSubmit, share: Share) -> TurnFailed:
    return TurnFailed(
        turn_id=message.turn_id,
        code="misrouted",
        message=f"the turn was sent to scheduler {share.index} of {share.num}, which is not "
        "the one that has it: SYMPHONY_SCHEDULER_SHARDS differs between services",
        http_status=503,
    )


def _attempt_seen(message: TurnSubmit) -> int:
    """The highest attempt that surely existed: a first submit says 1, which exists only if its
    frontend sent that attempt itself.
    """
    return message.attempt if message.attempt > 1 or message.sent_to is not None else 0
