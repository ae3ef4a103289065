"""The life of a turn: submitted, placed, perhaps lost and placed again, over.

An attempt is dispatched once, to one worker, under a number above every number known for its turn;
the frontend takes tokens from the highest attempt that pulled the prompt. So it is always safe to
place a turn once more: when in doubt, do.
"""

from collections import OrderedDict
from collections.abc import Iterable

from services.scheduler.core.effects import (
    CancelTurn,
    CountTurn,
    Effect,
    FailTurn,
    NotifyArrival,
    PlacementReason,
    StartTurn,
)
from services.scheduler.core.fleet import Fleet
from services.scheduler.core.limits import Limits
from services.scheduler.core.placer import Placer
from services.scheduler.core.records import Ended, Turn, Worker
from services.scheduler.core.reservations import Reservations
from services.scheduler.core.timers import Timers
from shared.ids import ModelId, TurnId
from shared.messages import (
    TurnArrived,
    TurnCancel,
    TurnEnd,
    TurnFailed,
    TurnRef,
    TurnStart,
    TurnSubmit,
    WorkerReport,
)

REPORTS_TO_BE_MISSED = 2


class Turns:
    """Every turn placed or waiting, and which ones are over.

    Args:
        learning_until_ns: nothing is placed before this instant.
        attempt_floor: the first attempt this scheduler dispatches of any turn is at least this;
            higher than anything that an earlier scheduler, whose dispatches this one does not
            know, can have dispatched.
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
    ) -> None:
        self._fleet = fleet
        self._placer = placer
        self._reservations = reservations
        self._timers = timers
        self._limits = limits
        self._out = out
        self._learning_until_ns = learning_until_ns
        self._attempt_floor = attempt_floor
        self._turns: dict[TurnId, Turn] = {}
        self._waiting: dict[ModelId, dict[TurnId, Turn]] = {}
        self._ended: OrderedDict[TurnId, Ended] = OrderedDict()

    @property
    def num_waiting(self) -> int:
        return sum(len(turns) for turns in self._waiting.values())

    @property
    def num_placed(self) -> int:
        return len(self._turns) - self.num_waiting

    def submit(self, message: TurnSubmit, now_ns: int) -> None:
        """Place a turn. A repeated submit changes nothing, unless it tells of a higher attempt than
        any known here: then the frontend listens to no lower one, and the turn is placed again.
        """
        turn = self._turns.get(message.turn_id)
        if turn is None:
            self._open(message, now_ns)
            return
        if turn.submit is None:
            turn.submit = message
        if message.attempt <= turn.attempt:
            return
        old_worker, void = turn.worker, TurnRef(turn_id=turn.turn_id, attempt=turn.attempt)
        if old_worker is None:
            turn.attempt = _attempt_seen(message)
            return
        turn.attempt = message.attempt
        self._place_again(turn, now_ns)
        if turn.worker is not old_worker:  # there, the start itself supersedes
            self._cancel_ref(old_worker, void, "superseded")

    def cancel(self, message: TurnCancel) -> None:
        """Stop a turn, and remember that it is not wanted should it still turn up."""
        turn = self._turns.get(message.turn_id)
        if turn is None:
            self._bury(message.turn_id, Ended(0, cancelled=True))
            return
        if turn.worker is not None:
            self._out.append(CancelTurn(turn.worker.worker_id, message))
        self._close(turn, cancelled=True)
        self._out.append(CountTurn("cancelled"))

    def ended(self, end: TurnEnd) -> None:
        """A worker is done with an attempt: so is the turn, unless a higher attempt is out."""
        turn = self._turns.get(end.turn_id)
        if turn is not None and end.attempt >= turn.attempt:
            turn.attempt = end.attempt
            self._close(turn)
            self._out.append(CountTurn(end.reason))

    def reconcile(self, worker: Worker, report: WorkerReport, now_ns: int) -> None:
        """Compare what a worker holds with what it should hold.

        What it holds and nobody knows of is taken as placed there (this scheduler is new). What is
        void is cancelled. What it lacks in the second report since it last had it, or since it was
        sent there, is lost.
        """
        for ref in report.turns:
            self._account_for(worker, report, ref, now_ns)
        patience_ns = REPORTS_TO_BE_MISSED * report.interval_ns  # reports may come in a burst
        missed = [
            turn
            for turn in worker.turns.values()
            if report.seq >= turn.seen_seq + REPORTS_TO_BE_MISSED
            and now_ns - turn.placed_at_ns >= patience_ns
        ]
        for turn in missed:
            self._place_again(turn, now_ns)

    def take_off(self, worker: Worker, now_ns: int) -> None:
        """The worker's process is dead: place its turns elsewhere."""
        for turn in list(worker.turns.values()):
            self._place_again(turn, now_ns)

    def admit(self, models: Iterable[ModelId], now_ns: int) -> None:
        """Place what waits for these models, the most urgent first."""
        if now_ns < self._learning_until_ns:
            return
        for model_id in sorted(models):
            waiting = list(self._waiting.get(model_id, {}).values())
            for turn in sorted(waiting, key=_urgency):
                self._place(turn, now_ns)

    def admit_all(self, now_ns: int) -> None:
        """The time of learning is over."""
        self.admit(list(self._waiting), now_ns)

    def _open(self, message: TurnSubmit, now_ns: int) -> None:
        over = self._ended.get(message.turn_id)
        if over is not None and over.cancelled:
            return
        turn = Turn(message.turn_id, message, _attempt_seen(message))
        if over is not None:  # its end did not reach the frontend
            turn.attempt = max(turn.attempt, over.attempt)
            turn.num_placements = 1
        if len(self._turns) >= self._limits.turns_max:
            self._fail(turn, "overloaded", "too many turns are waiting")
            return
        self._turns[turn.turn_id] = turn
        self._place(turn, now_ns)

    def _place(self, turn: Turn, now_ns: int, avoid: Worker | None = None) -> None:
        """Send a turn that is on no worker to one, or let it wait for one."""
        submit = turn.submit
        assert submit is not None and turn.worker is None
        if now_ns < self._learning_until_ns:
            self._wait(turn, submit, now_ns)
            return
        key = (submit.tenant, submit.session_id) if submit.session_id is not None else None
        is_first = turn.num_placements == 0
        reserved = self._reservations.take(key, submit.model_id) if key and is_first else None
        chosen: tuple[Worker, PlacementReason] | None
        if reserved is not None:
            chosen = reserved, "reserved"
        else:
            chosen = self._placer.choose(submit.model_id, key, now_ns, avoid)
        if chosen is not None:
            worker, reason = chosen
            self._start(turn, submit, worker, reason if is_first else "replaced", now_ns)
        elif self._fleet.knows(submit.model_id):
            self._wait(turn, submit, now_ns)
        else:
            self._fail(turn, "model_not_found", f"no model {submit.model_id!r}", http_status=404)

    def _start(
        self, turn: Turn, submit: TurnSubmit, worker: Worker, reason: PlacementReason, now_ns: int
    ) -> None:
        self._stop_waiting(turn)
        turn.attempt = max(turn.attempt + 1, self._attempt_floor)
        turn.worker = worker
        turn.seen_seq = worker.report.seq
        turn.placed_at_ns = now_ns
        turn.num_placements += 1
        worker.turns[turn.turn_id] = turn
        worker.num_tokens_dispatched += submit.num_prompt_tokens
        self._out.append(StartTurn(worker.worker_id, _start_message(submit, turn.attempt), reason))
        if submit.session_id is None:
            return
        key = (submit.tenant, submit.session_id)
        self._placer.remember(key, worker.worker_id, submit.model_id, now_ns)
        if turn.num_placements == 1:
            arrived = TurnArrived(
                session_id=submit.session_id,
                turn_id=turn.turn_id,
                tenant=submit.tenant,
                worker_id=worker.worker_id,
                reserved=reason == "reserved",
                request_id=submit.request_id,
            )
            self._out.append(NotifyArrival(arrived))

    def _place_again(self, turn: Turn, now_ns: int) -> None:
        """Take a turn off its worker and place it under a higher attempt, elsewhere if possible."""
        worker = turn.worker
        assert worker is not None
        del worker.turns[turn.turn_id]
        turn.worker = None
        if turn.submit is None:  # only its worker knew what it was: the frontend will submit again
            self._close(turn)
        elif turn.num_placements >= self._limits.placements_max:
            self._fail(turn, "worker_lost", "the turn was lost on every worker it was placed on")
        else:
            self._place(turn, now_ns, avoid=worker)

    def _account_for(self, worker: Worker, report: WorkerReport, ref: TurnRef, now_ns: int) -> None:
        turn = self._turns.get(ref.turn_id)
        if turn is None:
            over = self._ended.get(ref.turn_id)
            if over is not None and (over.cancelled or ref.attempt <= over.attempt):
                self._cancel_ref(worker, ref, "over")
                return
            turn = self._turns[ref.turn_id] = Turn(ref.turn_id, None)
        elif ref.attempt < turn.attempt or (
            ref.attempt == turn.attempt and turn.worker not in (worker, None)
        ):
            if turn.worker is not worker:  # else the newer attempt is on its way there
                self._cancel_ref(worker, ref, "superseded")
            return
        if turn.worker is not worker:
            self._adopt(turn, worker, now_ns)
        turn.attempt = ref.attempt
        turn.seen_seq = report.seq

    def _adopt(self, turn: Turn, worker: Worker, now_ns: int) -> None:
        """A worker runs this turn under the highest attempt known: that is where it is placed."""
        if turn.worker is not None:
            void = TurnRef(turn_id=turn.turn_id, attempt=turn.attempt)
            self._cancel_ref(turn.worker, void, "superseded")
            del turn.worker.turns[turn.turn_id]
        self._stop_waiting(turn)
        turn.worker = worker
        turn.placed_at_ns = now_ns
        turn.num_placements += 1
        worker.turns[turn.turn_id] = turn

    def _wait(self, turn: Turn, submit: TurnSubmit, now_ns: int) -> None:
        waiting = self._waiting.setdefault(submit.model_id, {})
        if turn.turn_id in waiting:
            return
        waiting[turn.turn_id] = turn
        turn.wait_until_ns = now_ns + self._limits.placement_wait_ns
        self._timers.at(turn.wait_until_ns, lambda at_ns: self._on_waited(turn, at_ns))

    def _on_waited(self, turn: Turn, now_ns: int) -> None:
        still_waits = self._turns.get(turn.turn_id) is turn and turn.worker is None
        if still_waits and turn.wait_until_ns <= now_ns:
            self._fail(turn, "no_worker", "no worker serves this model at the moment")

    def _stop_waiting(self, turn: Turn) -> None:
        if turn.submit is None:
            return
        waiting = self._waiting.get(turn.submit.model_id, {})
        if turn.turn_id in waiting:
            del waiting[turn.turn_id]
            if not waiting:
                del self._waiting[turn.submit.model_id]

    def _fail(self, turn: Turn, code: str, message: str, http_status: int = 503) -> None:
        assert turn.submit is not None and turn.worker is None
        failed = TurnFailed(
            turn_id=turn.turn_id, code=code, message=message, http_status=http_status
        )
        self._out.append(FailTurn(turn.submit.frontend_id, failed, turn.submit.request_id))
        self._out.append(CountTurn("failed"))
        self._close(turn)

    def _close(self, turn: Turn, *, cancelled: bool = False) -> None:
        self._turns.pop(turn.turn_id, None)
        self._stop_waiting(turn)
        if turn.worker is not None:
            del turn.worker.turns[turn.turn_id]
            turn.worker = None
        self._bury(turn.turn_id, Ended(turn.attempt, cancelled))

    def _bury(self, turn_id: TurnId, ended: Ended) -> None:
        self._ended[turn_id] = ended
        self._ended.move_to_end(turn_id)
        if len(self._ended) > self._limits.ended_max:
            self._ended.popitem(last=False)

    def _cancel_ref(self, worker: Worker, ref: TurnRef, reason: str) -> None:
        cancel = TurnCancel(turn_id=ref.turn_id, reason=reason, attempt=ref.attempt)
        self._out.append(CancelTurn(worker.worker_id, cancel))


def _attempt_seen(message: TurnSubmit) -> int:
    """The attempt that surely existed; a first submit says 1 although none does."""
    return message.attempt if message.attempt > 1 else 0


def _urgency(turn: Turn) -> int:
    return -turn.submit.priority if turn.submit is not None else 0


def _start_message(submit: TurnSubmit, attempt: int) -> TurnStart:
    return TurnStart(
        turn_id=submit.turn_id,
        frontend_id=submit.frontend_id,
        model_id=submit.model_id,
        num_prompt_tokens=submit.num_prompt_tokens,
        attempt=attempt,
        tenant=submit.tenant,
        session_id=submit.session_id,
        priority=submit.priority,
        request_id=submit.request_id,
        slo_ttft_ms=submit.slo_ttft_ms,
    )
