"""Turns that their workers may die of: who is a suspect, where one is tried, what proves its guilt.

A worker that falls silent is lost to its turns, but may live: only another process under its id
proves that it died. Suspicion is cheap and needs no proof: a turn that was there at several losses
and made no token is tried on a worker that it has for itself. Its first token shows that it is
innocent. If that worker is lost as well, the turn waits for the proof.
"""

from services.scheduler.core.turns.board import Board
from services.scheduler.core.turns.limits import Limits
from services.scheduler.core.turns.others import Others
from services.scheduler.core.turns.placement import Demand
from services.scheduler.core.turns.placer import Placer
from services.scheduler.core.turns.records import Loss, Turn, Worker
from shared.messages import TurnSubmit


class Trials:
    """Counts what turns lose with their workers, and tries them alone."""

    def __init__(self, board: Board, placer: Placer, others: Others, limits: Limits) -> None:
        self._board = board
        self._others = others
        self._placer = placer
        self._limits = limits

    def is_suspect(self, turn: Turn) -> bool:
        return turn.num_proven + turn.num_unproven >= self._limits.deaths_shared_max

    def is_guilty(self, turn: Turn) -> bool:
        """Whether a death that it was alone with condemns it."""
        return turn.num_proven >= self._limits.deaths_proven_max

    def on_tokens(self, turn: Turn) -> None:
        """Whoever makes tokens is forgiven, and shares its worker again."""
        turn.num_proven = turn.num_unproven = 0
        if turn.worker is not None and turn.worker.trial is turn:
            self._board.end_trial(turn.worker)

    def on_silence(self, worker: Worker) -> None:
        """The worker counts as dead, which nothing proves: remember what it had."""
        tried = _tried_alone(worker)
        if tried is not None:
            tried.awaited = worker
        for turn in worker.turns.values():
            turn.num_unproven += 1
            if len(worker.losses) < self._limits.losses_kept_max:
                worker.losses.append(Loss(turn, turn.num_generated))

    def on_restart(self, worker: Worker) -> Turn | None:
        """The worker's process did die. Returns the turn that it was alone with, if any, which
        waits for no proof any more.
        """
        tried = _tried_alone(worker)
        for turn in worker.turns.values():  # nobody knew yet that they are lost
            turn.num_proven += 1
        for loss in worker.losses:
            turn = loss.turn
            if turn.num_generated == loss.num_generated:
                turn.num_unproven -= 1
                turn.num_proven += 1
        return tried or self._forget_losses(worker)

    def on_return(self, worker: Worker) -> Turn | None:
        """The worker was only out of reach. Returns the turn that it was alone with, if any, which
        waits for no proof any more.
        """
        return self._forget_losses(worker)

    def on_adopted(self, turn: Turn, worker: Worker) -> None:
        """A suspect was found where nobody else is: there its trial goes on."""
        if self.is_suspect(turn) and worker.num_turns == 1 and worker.trial is None:
            self._keep(worker, turn)

    def try_alone(self, turn: Turn, submit: TurnSubmit, now_ns: int) -> bool:
        """Start a suspect on a worker that nobody else is placed on until it makes a token. False
        if there is none yet, or it waits for a proof.
        """
        worker = None
        if turn.awaited is None:
            demand = Demand.of(submit)
            worker = self._placer.choose_empty(submit.model_id, demand, turn.missed_by)
        if worker is None or not self._others.agree(worker, now_ns):
            return False
        self._start(turn, submit, worker, now_ns)
        return True

    def make_room(self, suspect: Turn, submit: TurnSubmit, now_ns: int) -> list[Turn]:
        """Empty a worker for a suspect that has waited long enough; of turns that are other
        schedulers', by waiting until they are over. Returns what was taken from there and is to go
        on elsewhere.
        """
        worker = self._placer.choose_to_empty(submit.model_id, suspect.missed_by)
        if worker is None:
            return []
        moved = list(worker.turns.values())
        for turn in moved:
            self._board.cancel_attempt(worker, turn.ref)
            turn.attempt += 1  # so that the end of what was cancelled is not the turn's
            self._board.unassign(turn)
        if worker.others:
            self._others.keep(worker, now_ns)
        else:
            self._start(suspect, submit, worker, now_ns)
        return moved

    def go_on(self, worker: Worker) -> None:
        """A worker with a suspect on it has reported: the other schedulers are told again."""
        if worker.trial is not None:
            self._others.tell_kept(worker)

    def _start(self, turn: Turn, submit: TurnSubmit, worker: Worker, now_ns: int) -> None:
        assert not worker.num_turns and worker.trial is None
        self._keep(worker, turn)
        self._board.start(turn, submit, worker, "replaced", now_ns)

    def _keep(self, worker: Worker, turn: Turn) -> None:
        worker.trial, worker.kept_by = turn, None
        worker.is_shared = bool(worker.others)
        self._others.tell_kept(worker)

    def _forget_losses(self, worker: Worker) -> Turn | None:
        """It is known what became of the worker. Returns the turn that waited for that."""
        losses, worker.losses = worker.losses, []
        for loss in losses:
            if loss.turn.awaited is worker:
                loss.turn.awaited = None
                return loss.turn
        return None


def _tried_alone(worker: Worker) -> Turn | None:
    """The suspect that had the worker for itself; others may have been adopted there meanwhile."""
    return worker.trial if worker.num_turns == 1 and not worker.is_shared else None
