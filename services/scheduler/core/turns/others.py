"""Turns that other schedulers have on the workers, where turns are divided: load for this one, and
nothing that it decides about.

Two ways of hearing of them: the others tell what they place as they do it, and workers' reports
list all that they have. The first is early and may be lost, the second is sure.
"""

from collections.abc import Callable

from services.scheduler.core.effects import Effect, TellPlaced
from services.scheduler.core.timers import Timers
from services.scheduler.core.turns.believable import TOKENS_MAX
from services.scheduler.core.turns.fleet import Fleet
from services.scheduler.core.turns.records import OtherTurn, Worker
from shared.ids import TurnId
from shared.messages import PlacedTurn, TurnsPlaced, WorkerReport
from shared.shards import Share

REPORTS_TO_BE_LISTED = 2  # after it was told, before its being in none means that it is not there
KEPT_NS = 2_000_000_000  # after it was told last; four reports
AGREE_NS = 100_000_000  # for another that wants the same worker to say so
TOLD_MAX = 100_000  # turns of others known at once


class Others:
    """Keeps `Worker.others` and `Worker.kept_by`.

    Args:
        on_room: told of a worker on which turns that wait may find room now.
    """

    def __init__(
        self,
        share: Share,
        *,
        fleet: Fleet,
        timers: Timers,
        out: list[Effect],
        on_room: Callable[[Worker], None],
    ) -> None:
        self._share = share
        self._fleet = fleet
        self._timers = timers
        self._out = out
        self._on_room = on_room
        self._where: dict[TurnId, Worker] = {}

    def on_told(self, message: TurnsPlaced, now_ns: int) -> None:
        """Another scheduler tells what it has just placed, and which workers it keeps."""
        if message.shard == self._share.index or not 0 <= message.shard < self._share.num:
            return
        for placed in message.turns:
            worker = self._fleet.get(placed.worker_id)
            if worker is not None and worker.alive and not self._share.has_turn(placed.turn_id):
                self._add_told(worker, placed)
        for worker_id in message.kept:
            worker = self._fleet.get(worker_id)
            if worker is not None and worker.alive:
                self._keep(worker, message.shard, now_ns)

    def on_report(self, worker: Worker, report: WorkerReport) -> None:
        """What a worker has by its own word."""
        if self._share.is_all:
            return
        listed = set()
        for ref in report.turns:
            if not self._share.has_turn(ref.turn_id):
                listed.add(ref.turn_id)
                known = worker.others.get(ref.turn_id)
                if known is None:
                    self._add(worker, ref.turn_id, OtherTurn(report.seq, ref.adapter_hash))
                else:
                    known.seen_seq = report.seq
        for turn_id, turn in list(worker.others.items()):
            if turn_id not in listed and report.seq >= turn.seen_seq + REPORTS_TO_BE_LISTED:
                self.on_ended(turn_id)

    def on_ended(self, turn_id: TurnId) -> None:
        """It is over there."""
        worker = self._where.pop(turn_id, None)
        if worker is not None:
            turn = worker.others.pop(turn_id)
            worker.num_urgent -= turn.is_urgent
            if not worker.num_turns:
                self._on_room(worker)

    def on_lost(self, worker: Worker) -> None:
        """The worker is dead, or another process: what is there now its next report tells."""
        for turn_id in list(worker.others):
            self.on_ended(turn_id)
        worker.kept_by = None

    def keep(self, worker: Worker, now_ns: int) -> None:
        """See that nobody places anything there for a while, we neither: for a suspect."""
        self._keep(worker, self._share.index, now_ns)
        self.tell_kept(worker)

    def agree(self, worker: Worker, now_ns: int) -> bool:
        """Whether the others leave this worker to a suspect of ours by now. Where several may want
        the same one they are told first, and it is looked at again once they can have objected: all
        of them hear of a worker at the same time.
        """
        if self._share.has_worker(worker.worker_id):
            return True
        if worker.kept_by != self._share.index:
            worker.agreed_at_ns = now_ns + AGREE_NS
            self.keep(worker, now_ns)
            self._timers.at(worker.agreed_at_ns, lambda _: self._on_room(worker))
        return now_ns >= worker.agreed_at_ns

    def tell_kept(self, worker: Worker) -> None:
        """The others are to leave this worker alone for now."""
        if not self._share.is_all:
            self._out.append(TellPlaced(kept=worker.worker_id))

    def _keep(self, worker: Worker, shard: int, now_ns: int) -> None:
        if worker.kept_by is not None and shard > worker.kept_by:
            return  # two want it at once: the lower number has it
        worker.kept_by, worker.kept_until_ns = shard, now_ns + KEPT_NS
        self._timers.at(worker.kept_until_ns, lambda at_ns: self._look_at(worker, at_ns))

    def _look_at(self, worker: Worker, now_ns: int) -> None:
        if worker.kept_by is not None and worker.kept_until_ns <= now_ns:
            worker.kept_by = None
            self._on_room(worker)

    def _add_told(self, worker: Worker, placed: PlacedTurn) -> None:
        is_new = placed.turn_id not in worker.others
        turn = OtherTurn(worker.report.seq, placed.adapter_hash, placed.is_urgent)
        if self._add(worker, placed.turn_id, turn) and is_new:
            worker.num_tokens_dispatched += min(max(placed.num_tokens, 0), TOKENS_MAX)

    def _add(self, worker: Worker, turn_id: TurnId, turn: OtherTurn) -> bool:
        self.on_ended(turn_id)  # it was elsewhere, or less was known of it
        if len(self._where) >= TOLD_MAX:
            return False
        self._where[turn_id] = worker
        worker.is_shared = True
        worker.others[turn_id] = turn
        worker.num_urgent += turn.is_urgent
        return True
