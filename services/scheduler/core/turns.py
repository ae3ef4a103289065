"""The life of a turn: submitted, placed, perhaps lost and placed again, over.

An attempt is dispatched once, to one worker, under a number above every number known for its turn;
the frontend takes tokens from the highest attempt that pulled the prompt. So it is always safe to
place a turn once more: when in doubt, do.

Losses count while a turn makes no token: one that goes on may be lost as often as workers are. One
that was there at several workers' deaths and made no token is a suspect. It is tried on a worker
that it has for itself: there its first token shows that it is innocent, or it takes nobody along.
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
AT_ONCE_NS = 0
WAIT_ON_NS = 1_000_000_000  # at least, before a turn that may wait on is looked at again


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
        self._lose([turn], old_worker, now_ns)
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
        sent there, is lost. What made tokens is forgiven its losses.
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
        self._lose(missed, worker, now_ns)

    def take_off(self, worker: Worker, now_ns: int) -> None:
        """The worker's process is dead: place its turns elsewhere. A suspect that had it for itself
        has shown what it is.
        """
        if worker.trial is not None and len(worker.turns) == 1:  # none was adopted meanwhile
            self._condemn(worker.trial)
        lost = list(worker.turns.values())
        for turn in lost:
            turn.num_deaths += 1
        self._lose(lost, worker, now_ns)

    def admit(self, models: Iterable[ModelId], now_ns: int) -> None:
        """Place what waits for these models: suspects first, then the most urgent."""
        if now_ns < self._learning_until_ns:
            return
        for model_id in sorted(models):
            waiting = list(self._waiting.get(model_id, {}).values())
            for turn in sorted(waiting, key=self._urgency):
                self._place(turn, now_ns)

    def admit_all(self, now_ns: int) -> None:
        """The time of learning is over."""
        self.admit(list(self._waiting), now_ns)

    def _open(self, message: TurnSubmit, now_ns: int) -> None:
        over = self._ended.get(message.turn_id)
        if over is not None and over.cancelled:
            return
        if over is not None and over.failed is not None:
            self._out.append(FailTurn(message.frontend_id, over.failed, message.request_id))
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
        if self._is_suspect(turn):
            empty = self._placer.choose_empty(submit.model_id)
            if empty is not None:
                self._try_alone(turn, submit, empty, now_ns)
            else:
                self._wait(turn, submit, now_ns)
            return
        key = (submit.tenant, submit.session_id) if submit.session_id is not None else None
        is_first = turn.num_placements == 0
        reserved = self._reservations.take(key, submit.model_id) if key and is_first else None
        chosen: tuple[Worker, PlacementReason] | None
        if reserved is not None and reserved.trial is None:
            chosen = reserved, "reserved"
        else:
            chosen = self._placer.choose(submit.model_id, key, now_ns, avoid)
        if chosen is None:
            self._wait(turn, submit, now_ns)
        else:
            worker, reason = chosen
            self._start(turn, submit, worker, reason if is_first else "replaced", now_ns)

    def _try_alone(self, turn: Turn, submit: TurnSubmit, worker: Worker, now_ns: int) -> None:
        """Start a suspect on a worker that nobody else is placed on until it makes a token."""
        assert not worker.turns and worker.trial is None
        worker.trial = turn
        self._start(turn, submit, worker, "replaced", now_ns)

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
        self._out.append(StartTurn(worker.worker_id, _start_message(submit, turn), reason))
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

    def _lose(self, turns: list[Turn], worker: Worker, now_ns: int) -> None:
        """Take turns off their worker and place them under higher attempts, elsewhere if possible:
        suspects first, who need a worker without turns.
        """
        for turn in turns:
            self._take_from_worker(turn)
        for turn in sorted(turns, key=self._urgency):
            turn.num_lost += 1
            if turn.submit is None:  # only its worker knew it: the frontend will submit again
                self._close(turn)
            elif turn.num_lost >= self._limits.losses_max:
                message = f"the turn was lost {turn.num_lost} times in a row"
                self._fail(turn, "worker_lost", message)
            else:
                self._place(turn, now_ns, avoid=worker)

    def _condemn(self, turn: Turn) -> None:
        """A worker died while it ran this suspect and nothing else."""
        self._take_from_worker(turn)
        message = f"{turn.num_deaths + 1} workers died of this turn, the last one alone with it"
        self._fail(turn, "poisoned", message, http_status=500)

    def _make_room(self, suspect: Turn, submit: TurnSubmit, now_ns: int) -> None:
        """Empty a worker for a suspect that has waited long enough: its turns go on elsewhere."""
        worker = self._placer.choose_to_empty(submit.model_id)
        if worker is None:
            return
        moved = list(worker.turns.values())
        for turn in moved:
            self._cancel_ref(worker, TurnRef(turn_id=turn.turn_id, attempt=turn.attempt), "moved")
            turn.attempt += 1  # so that the end of what was cancelled is not the turn's
            self._take_from_worker(turn)
        self._try_alone(suspect, submit, worker, now_ns)
        for turn in moved:
            self._place(turn, now_ns)

    def _is_suspect(self, turn: Turn) -> bool:
        return turn.num_deaths >= self._limits.deaths_shared_max

    def _urgency(self, turn: Turn) -> tuple[bool, int]:
        priority = turn.submit.priority if turn.submit is not None else 0
        return not self._is_suspect(turn), -priority

    def _take_from_worker(self, turn: Turn) -> None:
        worker = turn.worker
        assert worker is not None
        del worker.turns[turn.turn_id]
        turn.worker = None
        if worker.trial is turn:
            self._end_trial(worker)
        elif not worker.turns:
            self._admit_soon(worker)

    def _end_trial(self, worker: Worker) -> None:
        worker.trial = None
        self._admit_soon(worker)

    def _admit_soon(self, worker: Worker) -> None:
        """Suspects may wait for an empty worker, and others for the end of a trial."""
        if any(model_id in self._waiting for model_id in worker.models):
            self._timers.at(AT_ONCE_NS, lambda now_ns: self.admit(worker.models, now_ns))

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
        if ref.num_generated > turn.num_generated:
            turn.num_generated = ref.num_generated
            turn.num_lost = turn.num_deaths = 0
            if worker.trial is turn:
                self._end_trial(worker)

    def _adopt(self, turn: Turn, worker: Worker, now_ns: int) -> None:
        """A worker runs this turn under the highest attempt known: that is where it is placed."""
        if turn.worker is not None:
            void = TurnRef(turn_id=turn.turn_id, attempt=turn.attempt)
            self._cancel_ref(turn.worker, void, "superseded")
            self._take_from_worker(turn)
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
        self._wait_until(turn, now_ns + self._limits.placement_wait_ns)

    def _wait_until(self, turn: Turn, at_ns: int) -> None:
        turn.wait_until_ns = at_ns
        self._timers.at(at_ns, lambda now_ns: self._on_waited(turn, now_ns))

    def _on_waited(self, turn: Turn, now_ns: int) -> None:
        still_waits = self._turns.get(turn.turn_id) is turn and turn.worker is None
        if not still_waits or turn.wait_until_ns > now_ns:
            return
        submit = turn.submit
        assert submit is not None
        if not self._fleet.serving(submit.model_id):
            self._fail(turn, "no_worker", "no worker serves this model at the moment")
            return
        if self._is_suspect(turn):
            self._make_room(turn, submit, now_ns)
        if turn.worker is None:  # workers are there: they are kept for suspects, or full of others
            self._wait_until(turn, now_ns + max(self._limits.placement_wait_ns, WAIT_ON_NS))

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
        self._close(turn, failed=failed)

    def _close(
        self, turn: Turn, *, cancelled: bool = False, failed: TurnFailed | None = None
    ) -> None:
        self._turns.pop(turn.turn_id, None)
        self._stop_waiting(turn)
        if turn.worker is not None:
            self._take_from_worker(turn)
        self._bury(turn.turn_id, Ended(turn.attempt, cancelled, failed))

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


def _start_message(submit: TurnSubmit, turn: Turn) -> TurnStart:
    return TurnStart(
        turn_id=submit.turn_id,
        frontend_id=submit.frontend_id,
        model_id=submit.model_id,
        num_prompt_tokens=submit.num_prompt_tokens,
        attempt=turn.attempt,
        tenant=submit.tenant,
        session_id=submit.session_id,
        priority=submit.priority,
        request_id=submit.request_id,
        slo_ttft_ms=submit.slo_ttft_ms,
        was_lost=turn.num_placements > 1,
    )
