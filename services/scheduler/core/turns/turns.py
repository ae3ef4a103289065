"""The life of a turn: submitted, placed, perhaps lost and placed again, over.

An attempt is dispatched once, to one worker, under a number above every number known for its turn;
the frontend takes tokens from the highest attempt that pulled the prompt. So it is always safe to
place a turn once more: when in doubt, do.

Losses count while a turn makes no token: one that goes on may be lost as often as workers are. One
that was there at several workers' losses and made no token is tried alone (`trials.py`).
"""

from collections.abc import Iterable
from dataclasses import replace

from services.scheduler.core.effects import CancelTurn, CountTurn, Effect, FailTurn, PlacementReason
from services.scheduler.core.timers import Timers
from services.scheduler.core.turns.board import SENT_ATTEMPT, Board
from services.scheduler.core.turns.fleet import Fleet
from services.scheduler.core.turns.limits import Limits
from services.scheduler.core.turns.others import Others
from services.scheduler.core.turns.placement import Demand
from services.scheduler.core.turns.placer import Placer
from services.scheduler.core.turns.records import Ended, SessionKey, Turn, Worker
from services.scheduler.core.turns.reservations import Reservations
from services.scheduler.core.turns.trials import Trials
from shared.ids import ModelId, WorkerId
from shared.messages import (
    TurnCancel,
    TurnEnd,
    TurnFailed,
    TurnRef,
    TurnSubmit,
    WorkerReport,
)
from shared.shards import Share

REPORTS_TO_BE_MISSED = 2
AT_ONCE_NS = 0
WAIT_ON_NS = 1_000_000_000  # at least, before a turn that may wait on is looked at again


class Turns:
    """Every turn placed or waiting, and which ones are over.

    Args:
        learning_until_ns: nothing is placed before this instant.
        attempt_floor: the first attempt this scheduler dispatches of any turn is at least this;
            higher than anything that an earlier scheduler, whose dispatches this one does not
            know, can have dispatched.
        share: of all turns; those of other schedulers are load, and else left alone.

    Attributes:
        others: what those have on the workers.
    """

    def __init__(
        self,
        *,
        fleet: Fleet,
        placer: Placer,
        reservations: Reservations,
        timers: Timers,
        limits: Limits,
        out: list[Effect],
        learning_until_ns: int,
        attempt_floor: int,
        share: Share,
    ) -> None:
        self._share = share
        self._fleet = fleet
        self._placer = placer
        self._reservations = reservations
        self._timers = timers
        self._limits = limits
        self._out = out
        self._learning_until_ns = learning_until_ns
        self._board = Board(
            placer=placer,
            limits=limits,
            out=out,
            attempt_floor=attempt_floor,
            share=share,
            on_room=self._on_room,
        )
        self.others = Others(share, fleet=fleet, timers=timers, out=out, on_room=self._on_room)
        self._trials = Trials(self._board, placer, self.others, limits)

    @property
    def num_waiting(self) -> int:
        return self._board.num_waiting

    @property
    def num_placed(self) -> int:
        return len(self._board) - self.num_waiting

    def raise_attempts(self, floor: int) -> None:
        """From now on every attempt is at least this."""
        self._board.raise_attempts(floor)

    def submit(self, message: TurnSubmit, now_ns: int) -> None:
        """Place a turn. A repeated submit changes nothing, unless it tells of a higher attempt than
        any known here: then the frontend listens to no lower one, and the turn is placed again.
        """
        if not self._share.has_turn(message.turn_id):
            self._refuse(message)
            return
        message = self._placer.located(message, now_ns)
        turn = self._board.get(message.turn_id)
        if turn is None:
            self._open(message, now_ns)
            return
        if turn.submit is None:
            turn.submit = replace(message, prompt="")  # an attempt is known: it is too old for more
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
        if turn.worker is not old_worker:  # there, the start itself supersedes
            self._board.cancel_attempt(old_worker, void)

    def _refuse(self, message: TurnSubmit) -> None:
        """Its frontend counts the schedulers otherwise: what is placed here, nobody would own."""
        share = self._share
        failed = TurnFailed(
            turn_id=message.turn_id,
            code="misrouted",
            message=f"the turn was sent to scheduler {share.index} of {share.num}, which is not "
            "the one that has it: SYMPHONY_SCHEDULER_SHARDS differs between services",
            http_status=503,
        )
        self._out.append(FailTurn(message.frontend_id, failed, message.request_id))
        self._out.append(CountTurn("failed"))

    def cancel(self, message: TurnCancel) -> None:
        """Stop a turn, and remember that it is not wanted should it still turn up."""
        turn = self._board.get(message.turn_id)
        if turn is None:
            self._board.remember(message.turn_id, Ended(0, cancelled=True))
            return
        if turn.worker is not None:
            self._out.append(CancelTurn(turn.worker.worker_id, message))
        self._board.close(turn, cancelled=True)
        self._out.append(CountTurn("cancelled"))

    def ended(self, end: TurnEnd) -> None:
        """A worker is done with an attempt: so is the turn, unless a higher attempt is out."""
        self.others.on_ended(end.turn_id)
        turn = self._board.get(end.turn_id)
        if turn is not None and end.attempt >= turn.attempt:
            turn.attempt = end.attempt
            self._board.close(turn)
            self._out.append(CountTurn(end.reason))

    def reconcile(self, worker: Worker, report: WorkerReport, now_ns: int) -> None:
        """Compare what a worker holds with what it should hold.

        What it holds and nobody knows of is taken as placed there (this scheduler is new). What is
        void is cancelled. What it lacks in the second report since it last had it, or since it was
        sent there, is lost. What made tokens is forgiven its losses.
        """
        self.others.on_report(worker, report)
        for ref in report.turns:
            if self._share.has_turn(ref.turn_id):
                self._account_for(worker, report, ref, now_ns)
        patience_ns = REPORTS_TO_BE_MISSED * report.interval_ns  # reports may come in a burst
        missed = [
            turn
            for turn in worker.turns.values()
            if report.seq >= turn.seen_seq + REPORTS_TO_BE_MISSED
            and now_ns - turn.placed_at_ns >= patience_ns
        ]
        for turn in missed:
            turn.missed_by = worker
        self._lose(missed, worker, now_ns)
        self._trials.go_on(worker)

    def worker_silent(self, worker: Worker, now_ns: int) -> None:
        """The worker counts as dead, but may only be out of reach: place its turns elsewhere."""
        self._trials.on_silence(worker)
        self.others.on_lost(worker)
        self._lose(list(worker.turns.values()), worker, now_ns)

    def worker_restarted(self, worker: Worker, now_ns: int) -> None:
        """Another process has the worker's id: the earlier one surely died, and what it had is
        lost. A suspect that had it for itself may have shown what it is.
        """
        tried = self._trials.on_restart(worker)
        self.others.on_lost(worker)
        self.others.on_report(worker, worker.report)  # what is placed next may have to be alone
        if tried is not None and self._trials.is_guilty(tried):
            message = f"{tried.num_proven} workers died of this turn, the last one alone with it"
            self._board.fail(tried, "poisoned", message, http_status=500)
        elif tried is not None:
            self._try_again_soon(tried)
        self._lose(list(worker.turns.values()), worker, now_ns)

    def worker_returned(self, worker: Worker) -> None:
        """The worker is heard of after a silence that it did not die of."""
        tried = self._trials.on_return(worker)
        if tried is not None:  # it may be there still, as the worker's report will tell
            self._try_again_soon(tried)

    def admit(self, models: Iterable[ModelId], now_ns: int) -> None:
        """Place what waits for these models: suspects first, then the most urgent."""
        if now_ns < self._learning_until_ns:
            return
        for model_id in sorted(models):
            for turn in sorted(self._board.waiting(model_id), key=self._urgency):
                self._place(turn, now_ns)

    def admit_all(self, now_ns: int) -> None:
        """The time of learning is over."""
        self.admit(self._board.models_waited_for(), now_ns)

    def _open(self, message: TurnSubmit, now_ns: int) -> None:
        over = self._board.ended(message.turn_id)
        if over is not None and over.cancelled:
            return
        if over is not None and over.failed is not None:
            self._out.append(FailTurn(message.frontend_id, over.failed, message.request_id))
            return
        turn = Turn(message.turn_id, message, _attempt_seen(message))
        if message.adapter is not None:
            turn.adapter_hash = message.adapter.adapter_hash
            turn.lora_rank = message.adapter.lora_rank
        if over is not None:  # its end did not reach the frontend
            turn.attempt = max(turn.attempt, over.attempt)
            turn.num_placements = 1
        if len(self._board) >= self._limits.turns_max:
            self._board.fail(turn, "overloaded", "too many turns are waiting")
            return
        self._board.add(turn)
        self._place(turn, now_ns)

    def _place(self, turn: Turn, now_ns: int, avoid: Worker | None = None) -> None:
        """Send a turn that is on no worker to one, or let it wait for one."""
        submit = turn.submit
        assert submit is not None and turn.worker is None
        if now_ns < self._learning_until_ns:
            self._wait(turn, submit, now_ns)
            return
        if self._trials.is_suspect(turn):
            if not self._trials.try_alone(turn, submit, now_ns):
                self._wait(turn, submit, now_ns)
            return
        key = (submit.tenant, submit.session_id) if submit.session_id is not None else None
        is_first = turn.num_placements == 0
        name = self._reservations.key_of(submit) if is_first else None
        demand = self._reservations.with_prefix(name, Demand.of(submit))
        reserved = self._reservations.take(name, submit.model_id) if name else None
        sent_to = submit.sent_to if is_first else None
        chosen: tuple[Worker, PlacementReason] | None
        if reserved is not None and name is not None:
            chosen = self._at_place(reserved, name, submit, demand, now_ns)
        else:
            chosen = self._placer.choose(submit.model_id, key, now_ns, demand, avoid)
        if chosen is None:
            self._wait(turn, submit, now_ns)
        else:
            worker, reason = chosen
            if sent_to is not None and sent_to != worker.worker_id:
                self._cancel_sent(turn, sent_to)
            self._board.start(
                turn,
                submit,
                worker,
                reason if is_first else "replaced",
                now_ns,
                expected_as=name[1] if reserved is worker and name and name != key else None,
            )

    def _at_place(
        self, kept: Worker, key: SessionKey, submit: TurnSubmit, demand: Demand, now_ns: int
    ) -> tuple[Worker, PlacementReason]:
        """The worker that kept the turn's place, or a better one, if that is overloaded by now."""
        is_sent = submit.sent_to == kept.worker_id
        better = self._placer.better_than(kept, key, now_ns, demand, is_sent=is_sent)
        if better is None:
            return kept, "reserved"
        self._reservations.gave_up(key, submit.model_id, kept)
        return better, "moved"

    def _note_sent(self, turn: Turn, submit: TurnSubmit, worker: Worker, now_ns: int) -> None:
        """The worker's report was faster than the submit of what its frontend sent there."""
        if submit.session_id is None:
            return
        key = (submit.tenant, submit.session_id)
        reserved = self._reservations.take(key, submit.model_id, at=worker)
        self._board.note_arrival(submit, turn, worker, now_ns, is_reserved=reserved is worker)

    def _cancel_sent(self, turn: Turn, sent_to: WorkerId) -> None:
        """A frontend sent a turn where it has no place any more."""
        if (worker := self._fleet.get(sent_to)) is not None:
            sent = TurnRef(turn_id=turn.turn_id, attempt=SENT_ATTEMPT)
            self._board.cancel_attempt(worker, sent)

    def _lose(self, turns: list[Turn], worker: Worker, now_ns: int) -> None:
        """Take turns off their worker and place them under higher attempts, elsewhere if possible:
        suspects first, who need a worker without turns.
        """
        for turn in turns:
            self._board.unassign(turn)
        for turn in sorted(turns, key=self._urgency):
            turn.num_lost += 1
            if turn.submit is None:  # only its worker knew it: the frontend will submit again
                self._board.close(turn)
            elif turn.num_lost >= self._limits.losses_max:
                message = f"the turn was lost {turn.num_lost} times in a row"
                self._board.fail(turn, "worker_lost", message)
            else:
                self._place(turn, now_ns, avoid=worker)

    def _try_again_soon(self, tried: Turn) -> None:
        assert tried.submit is not None
        self._admit_soon([tried.submit.model_id])

    def _urgency(self, turn: Turn) -> tuple[bool, int]:
        priority = turn.submit.priority if turn.submit is not None else 0
        return not self._trials.is_suspect(turn), -priority

    def _on_room(self, worker: Worker) -> None:
        self._admit_soon(worker.models)

    def _admit_soon(self, models: Iterable[ModelId]) -> None:
        """Suspects may wait for an empty worker, and others for the end of a trial."""
        if self._board.is_waited_for(models):
            self._timers.at(AT_ONCE_NS, lambda now_ns: self.admit(models, now_ns))

    def _account_for(self, worker: Worker, report: WorkerReport, ref: TurnRef, now_ns: int) -> None:
        turn = self._board.get(ref.turn_id)
        if turn is None:
            over = self._board.ended(ref.turn_id)
            if over is not None and (over.cancelled or ref.attempt <= over.attempt):
                self._board.cancel_attempt(worker, ref)
                return
            turn = Turn(ref.turn_id, None, adapter_hash=ref.adapter_hash, lora_rank=ref.lora_rank)
            self._board.add(turn)
        elif ref.attempt < turn.attempt or (
            ref.attempt == turn.attempt and turn.worker not in (worker, None)
        ):
            if turn.worker is not worker:  # else the newer attempt is on its way there
                self._board.cancel_attempt(worker, ref)
            return
        if turn.worker is not worker:
            self._board.adopt(turn, worker, now_ns)
            self._trials.on_adopted(turn, worker)
        turn.attempt = ref.attempt
        turn.seen_seq = report.seq
        if ref.num_generated > turn.num_generated:
            turn.num_generated = ref.num_generated
            turn.num_lost, turn.missed_by = 0, None
            self._trials.on_tokens(turn)

    def _wait(self, turn: Turn, submit: TurnSubmit, now_ns: int) -> None:
        if self._board.wait(turn, submit):
            turn.waits_from_ns = now_ns
            self._wait_until(turn, now_ns + self._patience_ns(turn))

    def _patience_ns(self, turn: Turn) -> int:
        if turn.awaited is not None:
            return self._limits.proof_wait_ns
        if self._trials.is_suspect(turn):
            return self._limits.trial_wait_ns
        return self._limits.placement_wait_ns

    def _wait_until(self, turn: Turn, at_ns: int) -> None:
        turn.wait_until_ns = at_ns
        self._timers.at(at_ns, lambda now_ns: self._on_waited(turn, now_ns))

    def _on_waited(self, turn: Turn, now_ns: int) -> None:
        if not self._board.still_waits(turn) or turn.wait_until_ns > now_ns:
            return
        submit = turn.submit
        assert submit is not None
        if not self._fleet.serving(submit.model_id):
            until_ns = turn.waits_from_ns + self._limits.placement_wait_ns
            if now_ns < until_ns:
                self._wait_until(turn, until_ns)
            else:
                self._board.fail(turn, "no_worker", "no worker serves this model at the moment")
            return
        if self._trials.is_suspect(turn):
            turn.awaited = None  # no proof came
            if not self._trials.try_alone(turn, submit, now_ns):
                for moved in self._trials.make_room(turn, submit, now_ns):
                    self._place(moved, now_ns)
        if turn.worker is not None:
            return
        # Workers are there: they are kept for suspects, or full of others. A suspect whose time has
        # come is next when the trial of another ends.
        wait_ns = 0 if self._trials.is_suspect(turn) else self._limits.placement_wait_ns
        self._wait_until(turn, now_ns + max(wait_ns, WAIT_ON_NS))


def _attempt_seen(message: TurnSubmit) -> int:
    """The attempt that surely existed; a first submit says 1 although none does, unless its
    frontend sent that one itself.
    """
    return message.attempt if message.attempt > 1 or message.sent_to is not None else 0
