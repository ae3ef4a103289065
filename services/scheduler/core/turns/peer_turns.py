"""Turns that peer schedulers have placed on the workers, where turns are sharded. They count as
load; their own scheduler decides about them.

They are known from two sources: peers announce each placement, early but unreliably, and workers'
reports list all turns.
"""

from collections.abc import Callable

from services.scheduler.core.base.effects import Effect, NotifyPeer
from services.scheduler.core.fleet.mix import adapter_named
from services.scheduler.core.fleet.records import NO_MODEL, PeerTurn, Worker
from services.scheduler.core.fleet.room import BLOCKS_MAX, Promise
from services.scheduler.core.turns.bounds import TOKENS_MAX
from services.scheduler.core.turns.context import TurnContext
from shared.ids import TurnId
from shared.wire.messages import PlacedTurn, TurnsPlaced, WorkerReport

REPORTS_TO_BE_LISTED = 2  # without an announced turn, after which it counts as gone
CLAIM_NS = 2_000_000_000  # how long a claim holds after its last announcement: four reports
AGREE_NS = 100_000_000  # for a peer that claims the same worker to object
PEER_TURNS_MAX = 100_000  # known at once


class PeerTurns:
    """Maintains `Worker.peer_turns` and the claims of `Worker.isolation`.

    Args:
        on_room: called with a worker on which waiting turns may find room now.
    """

    def __init__(self, context: TurnContext, on_room: Callable[[Worker], None]) -> None:
        self._share = context.share
        self._fleet = context.fleet
        self._timers = context.timers
        self._out: list[Effect] = context.out
        self._on_room = on_room
        self._where: dict[TurnId, Worker] = {}

    def on_placed(self, message: TurnsPlaced, now_ns: int) -> None:
        """A peer scheduler announces turns that it has just placed, and workers that it claims."""
        if message.shard == self._share.index or not 0 <= message.shard < self._share.num:
            return
        for placed in message.turns:
            worker = self._fleet.get(placed.worker_id)
            if worker is not None and worker.alive and not self._share.has_turn(placed.turn_id):
                self._add_placed(worker, placed)
        for worker_id in message.kept:
            worker = self._fleet.get(worker_id)
            if worker is not None and worker.alive:
                self._claim(worker, message.shard, now_ns)

    def on_report(self, worker: Worker, report: WorkerReport) -> None:
        """Apply the list of turns in a worker's report."""
        if self._share.is_all:
            return
        listed = set()
        for ref in report.turns:
            if not self._share.has_turn(ref.turn_id):
                listed.add(ref.turn_id)
                known = worker.peer_turns.get(ref.turn_id)
                if known is None:
                    self._add(worker, ref.turn_id, PeerTurn(report.seq, adapter_named(ref)))
                else:
                    known.seen_seq = report.seq
        for turn_id, turn in list(worker.peer_turns.items()):
            if turn_id not in listed and report.seq >= turn.seen_seq + REPORTS_TO_BE_LISTED:
                self.on_ended(turn_id)

    def promise_again(self, worker: Worker, report: WorkerReport) -> None:
        """What is not listed yet takes its room beside what the report counts."""
        for turn in worker.peer_turns.values():
            if turn.seen_seq < report.seq:
                worker.promise(turn, turn.promise)
            else:
                turn.room = worker.room(turn.counted_in)

    def on_ended(self, turn_id: TurnId) -> None:
        """Remove a peer's turn that has ended."""
        worker = self._where.pop(turn_id, None)
        if worker is not None:
            turn = worker.peer_turns.pop(turn_id)
            worker.num_urgent -= turn.is_urgent
            worker.leave(turn)
            self._on_room(worker)

    def on_lost(self, worker: Worker) -> None:
        """Remove all peers' turns of a worker that died or restarted."""
        for turn_id in list(worker.peer_turns):
            self.on_ended(turn_id)
        worker.isolation.claimed_by = None

    def claim(self, worker: Worker, now_ns: int) -> None:
        """Keep every scheduler from placing turns there for a while: for a quarantined turn."""
        self._claim(worker, self._share.index, now_ns)
        self.announce_claim(worker)

    def agree(self, worker: Worker, now_ns: int) -> bool:
        """Whether this scheduler may use the worker for a quarantined turn. Where peers may want
        the same worker it is claimed first, and tried again after `AGREE_NS`: all schedulers see an
        empty worker at the same time.
        """
        if self._share.has_worker(worker.worker_id):
            return True
        if worker.isolation.claimed_by != self._share.index:
            worker.isolation.agreed_at_ns = now_ns + AGREE_NS
            self.claim(worker, now_ns)
            self._timers.at(worker.isolation.agreed_at_ns, lambda _: self._on_room(worker))
        return now_ns >= worker.isolation.agreed_at_ns

    def announce_claim(self, worker: Worker) -> None:
        """Make peers place nothing on this worker for now."""
        if not self._share.is_all:
            self._out.append(NotifyPeer(kept=worker.worker_id))

    def _claim(self, worker: Worker, shard: int, now_ns: int) -> None:
        isolation = worker.isolation
        if isolation.claimed_by is not None and shard > isolation.claimed_by:
            return  # of two concurrent claims the lower shard's counts
        isolation.claimed_by, isolation.claimed_until_ns = shard, now_ns + CLAIM_NS
        self._timers.at(isolation.claimed_until_ns, lambda at_ns: self._end_claim(worker, at_ns))

    def _end_claim(self, worker: Worker, now_ns: int) -> None:
        isolation = worker.isolation
        if isolation.claimed_by is not None and isolation.claimed_until_ns <= now_ns:
            isolation.claimed_by = None
            self._on_room(worker)

    def _add_placed(self, worker: Worker, placed: PlacedTurn) -> None:
        is_new = placed.turn_id not in worker.peer_turns
        model_id = placed.model_id or NO_MODEL
        promise = Promise(min(max(placed.num_blocks, 0), BLOCKS_MAX))
        turn = PeerTurn(
            worker.report.seq, adapter_named(placed), placed.is_urgent, model_id, promise,
            placed.slo_tpot_ms,
        )  # fmt: skip
        if not self._add(worker, placed.turn_id, turn):
            return
        worker.promise(turn, promise)
        if is_new:
            worker.num_tokens_dispatched += min(max(placed.num_tokens, 0), TOKENS_MAX)

    def _add(self, worker: Worker, turn_id: TurnId, turn: PeerTurn) -> bool:
        self.on_ended(turn_id)  # it was elsewhere, or less was known about it
        if len(self._where) >= PEER_TURNS_MAX:
            return False
        self._where[turn_id] = worker
        worker.isolation.was_shared = True
        worker.peer_turns[turn_id] = turn
        worker.enter(turn)
        worker.num_urgent += turn.is_urgent
        return True
