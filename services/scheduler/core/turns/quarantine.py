"""Quarantine: turns that may crash their worker run alone until they succeed or fail.

A silent worker is lost to its turns, but may still live: only another process under its id proves
that it died. Quarantine needs no proof: a turn that was on several lost workers without making a
token runs next on a worker without other turns. Its first token ends the quarantine. If that worker
is lost as well, the turn waits for the proof.
"""

from services.scheduler.core.fleet.records import Loss, Turn, Worker
from services.scheduler.core.placement import Demand
from services.scheduler.core.turns.context import TurnContext
from services.scheduler.core.turns.peer_turns import PeerTurns
from services.scheduler.core.turns.turn_table import TurnTable
from shared.wire.messages import TurnSubmit


class Quarantine:
    """Counts each turn's lost workers, and isolates turns that lost too many."""

    def __init__(self, context: TurnContext, table: TurnTable, peer_turns: PeerTurns) -> None:
        self._table = table
        self._peer_turns = peer_turns
        self._placer = context.placer
        self._limits = context.limits

    def is_quarantined(self, turn: Turn) -> bool:
        return turn.num_proven + turn.num_unproven >= self._limits.deaths_shared_max

    def must_fail(self, turn: Turn) -> bool:
        """Whether the turn fails if it was alone on the last worker that died."""
        return turn.num_proven >= self._limits.deaths_proven_max

    def on_tokens(self, turn: Turn) -> None:
        """A turn that makes tokens leaves the quarantine and shares its worker again."""
        turn.num_proven = turn.num_unproven = 0
        if turn.worker is not None and turn.worker.isolation.turn is turn:
            self._table.end_isolation(turn.worker)

    def on_silence(self, worker: Worker) -> None:
        """The worker counts as dead, without proof: remember its turns."""
        isolated = _isolated_turn(worker)
        if isolated is not None:
            isolated.awaited = worker
        for turn in worker.turns.values():
            turn.num_unproven += 1
            if len(worker.losses) < self._limits.losses_kept_max:
                worker.losses.append(Loss(turn, turn.num_generated))

    def on_restart(self, worker: Worker) -> Turn | None:
        """The worker's process did die. Returns the turn that ran there alone, if any, which need
        not wait for a proof any more.
        """
        isolated = _isolated_turn(worker)
        for turn in worker.turns.values():  # lost, but not counted as lost yet
            turn.num_proven += 1
        for loss in worker.losses:
            turn = loss.turn
            if turn.num_generated == loss.num_generated:
                turn.num_unproven -= 1
                turn.num_proven += 1
        return isolated or self._forget_losses(worker)

    def on_return(self, worker: Worker) -> Turn | None:
        """The worker was only unreachable. Returns the turn that ran there alone, if any, which
        need not wait for a proof any more.
        """
        return self._forget_losses(worker)

    def on_adopted(self, turn: Turn, worker: Worker) -> None:
        """A quarantined turn was found alone on a worker: it stays isolated there."""
        if self.is_quarantined(turn) and worker.num_turns == 1 and worker.isolation.turn is None:
            self._isolate(worker, turn)

    def start_alone(self, turn: Turn, submit: TurnSubmit, now_ns: int) -> bool:
        """Start a quarantined turn on a worker that gets no other turn until it makes a token.
        False if there is no such worker yet, or the turn waits for a proof.
        """
        worker = None
        if turn.awaited is None:
            demand = Demand.of(submit)
            worker = self._placer.choose_empty(submit.model_id, demand, turn.missed_by)
        if worker is None or not self._peer_turns.agree(worker, now_ns):
            return False
        self._start(turn, submit, worker, now_ns)
        return True

    def make_room(self, quarantined: Turn, submit: TurnSubmit, now_ns: int) -> list[Turn]:
        """Empty a worker for a quarantined turn that has waited long enough. Peers' turns stay
        until they end. Returns the turns that were taken from there and have to be placed again.
        """
        worker = self._placer.choose_to_empty(submit.model_id, quarantined.missed_by)
        if worker is None:
            return []
        moved = list(worker.turns.values())
        for turn in moved:
            self._table.cancel_attempt(worker, turn.ref)
            turn.attempt += 1  # so that the end of the cancelled attempt does not end the turn
            self._table.unassign(turn)
        if worker.peer_turns:
            self._peer_turns.claim(worker, now_ns)
        else:
            self._start(quarantined, submit, worker, now_ns)
        return moved

    def on_report(self, worker: Worker) -> None:
        """Repeat the claim of a worker with an isolated turn, at each of its reports."""
        if worker.isolation.turn is not None:
            self._peer_turns.announce_claim(worker)

    def _start(self, turn: Turn, submit: TurnSubmit, worker: Worker, now_ns: int) -> None:
        assert not worker.num_turns and worker.isolation.turn is None
        self._isolate(worker, turn)
        self._table.start(turn, submit, worker, "replaced", now_ns)

    def _isolate(self, worker: Worker, turn: Turn) -> None:
        worker.isolation.turn, worker.isolation.claimed_by = turn, None
        worker.isolation.was_shared = bool(worker.peer_turns)
        self._peer_turns.announce_claim(worker)

    def _forget_losses(self, worker: Worker) -> Turn | None:
        """The worker's fate is known. Returns the turn that waited for that."""
        losses, worker.losses = worker.losses, []
        for loss in losses:
            if loss.turn.awaited is worker:
                loss.turn.awaited = None
                return loss.turn
        return None


def _isolated_turn(worker: Worker) -> Turn | None:
    """The turn that was alone on the worker; None if others were there, adopted ones included."""
    isolation = worker.isolation
    return isolation.turn if worker.num_turns == 1 and not isolation.was_shared else None
