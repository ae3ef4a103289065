"""The scheduler's core: takes events and the time, returns effects."""

from services.scheduler.core.base.effects import Effect, ProbeWorker
from services.scheduler.core.base.timers import Timers
from services.scheduler.core.fleet.fleet import Fleet
from services.scheduler.core.fleet.fleet_limits import Limits
from services.scheduler.core.fleet.records import Worker
from services.scheduler.core.placement import PlacementPolicy
from services.scheduler.core.turns.bounds import bounded
from services.scheduler.core.turns.context import TurnContext
from services.scheduler.core.turns.placer import Placer
from services.scheduler.core.turns.reservations import Reservations
from services.scheduler.core.turns.turn_table import first_attempt
from services.scheduler.core.turns.turns import Turns
from shared.ids import WorkerId
from shared.wire.messages import (
    AdvisoryKey,
    ExpectSession,
    SchedulerStatus,
    SessionPlacement,
    TurnCancel,
    TurnPrefetched,
    TurnsEnded,
    TurnsPlaced,
    TurnsSubmit,
    WorkerReport,
    WorkerStatus,
)
from shared.wire.shards import Share

EVERYTHING = Share()


class SchedulerCore:
    """Places turns of generative models on workers and keeps them placed until they are over.

    Every ``on_...`` returns the effects to perform, in order. The state is soft: a new core learns
    running turns from the workers' reports and waiting turns from the frontends, which submit a
    turn again until it is acknowledged.

    Args:
        started_at_ns: now; the learning period starts here.
        attempt_floor: see `Turns`; must grow from one scheduler process to the next.
        share: the turns that belong to this scheduler; the others belong to its peers.
    """

    def __init__(
        self,
        policy: PlacementPolicy,
        limits: Limits,
        started_at_ns: int,
        attempt_floor: int = 1,
        share: Share = EVERYTHING,
    ) -> None:
        self._out: list[Effect] = []
        self._timers = Timers()
        self._fleet = Fleet(limits)
        placer = Placer(self._fleet, policy, limits, share)
        self._reservations = Reservations(placer, limits, self._out)
        learning_until_ns = started_at_ns + limits.learning_ns
        self._turns = Turns(
            TurnContext(self._fleet, placer, self._timers, limits, self._out, share),
            self._reservations,
            learning_until_ns=learning_until_ns,
            attempt_floor=attempt_floor,
        )
        self._timers.at(learning_until_ns, self._turns.admit_all)
        self._limits = limits

    def set_fence(self, fence: int) -> None:
        """This leader starts a new term, above a fencing token that a worker has seen."""
        self._turns.raise_attempts(first_attempt(fence))

    def on_turns_submit(self, message: TurnsSubmit, now_ns: int) -> list[Effect]:
        """A frontend submits turns, or repeats unacknowledged ones."""
        for submit in message.turns:
            self._turns.submit(bounded(submit), now_ns)
        return self._take_effects()

    def on_turn_cancel(self, message: TurnCancel, now_ns: int) -> list[Effect]:
        """A frontend cancels a turn."""
        self._turns.cancel(message)
        return self._take_effects()

    def on_turns_ended(self, message: TurnsEnded, now_ns: int) -> list[Effect]:
        """A worker has finished some attempts."""
        for end in message.turns:
            self._turns.ended(end)
        return self._take_effects()

    def on_turn_prefetched(self, message: TurnPrefetched, now_ns: int) -> list[Effect]:
        """A worker has what it can have of a turn that may move there."""
        self._turns.moves.on_prefetched(message, now_ns)
        return self._take_effects()

    def on_report(self, report: WorkerReport, now_ns: int) -> list[Effect]:
        """A worker reports its state."""
        report = bounded(report)
        change = self._fleet.take_report(report, now_ns)
        if change is not None:
            worker = change.worker
            if change.restarted:
                self._turns.worker_restarted(worker, now_ns)
            elif change.is_new:
                self._turns.worker_returned(worker)
            if change.closed:
                self._reservations.move_off(worker, now_ns)
            if change.restarted:
                self._reservations.prefetch_again(worker, now_ns)
            self._turns.reconcile(worker, report, now_ns)
            self._turns.admit(change.opened, now_ns)
            if change.is_new:
                self._watch(worker, now_ns)
        return self._take_effects()

    def on_turns_placed(self, message: TurnsPlaced, now_ns: int) -> list[Effect]:
        """A peer scheduler announces turns that it has just placed."""
        self._turns.peer_turns.on_placed(message, now_ns)
        return self._take_effects()

    def on_worker_gone(self, worker_id: WorkerId, now_ns: int) -> list[Effect]:
        """A probed worker does not respond."""
        worker = self._fleet.get(worker_id)
        if worker is not None and worker.alive and worker.is_probed:
            self._mark_dead(worker, now_ns)
        return self._take_effects()

    def on_expect(
        self, message: ExpectSession, now_ns: int
    ) -> tuple[SessionPlacement, list[Effect]]:
        """The tracker announces a session's turn: reserve a place for it."""
        placement = self._reservations.expect(bounded(message), now_ns)
        return placement, self._take_effects()

    def on_drop(self, message: AdvisoryKey, now_ns: int) -> list[Effect]:
        """The tracker withdraws an announced turn."""
        self._reservations.drop(message)
        return self._take_effects()

    def on_wake(self, now_ns: int) -> list[Effect]:
        """The instant of `WakeAt` has come. If it is long past, this process was paused or
        disconnected and could receive no reports.
        """
        if self._timers.is_standstill(now_ns):
            self._fleet.restart_silence(now_ns)
        self._timers.run_due(now_ns)
        self._reservations.look(now_ns)
        return self._take_effects()

    def status(self, now_ns: int) -> SchedulerStatus:
        """The scheduler's view of workers, turns and reservations."""
        return SchedulerStatus(
            workers=[_worker_status(worker, now_ns) for worker in self._fleet],
            num_turns_placed=self._turns.num_placed,
            num_turns_waiting=self._turns.num_waiting,
            num_reservations=len(self._reservations),
        )

    def _watch(self, worker: Worker, now_ns: int) -> None:
        """Set the next check of the worker's silence; replaces an earlier one."""
        if not worker.alive:
            look_at_ns = worker.reported_at_ns + self._limits.forget_after_ns
        elif worker.is_probed:
            look_at_ns = self._fleet.dead_at_ns(worker)
        else:
            look_at_ns = self._fleet.probe_at_ns(worker)
        worker.watch_at_ns = look_at_ns = max(look_at_ns, now_ns + 1)
        self._timers.at(look_at_ns, lambda at_ns: self._look_at(worker, look_at_ns, at_ns))

    def _look_at(self, worker: Worker, look_at_ns: int, now_ns: int) -> None:
        if worker.watch_at_ns != look_at_ns:
            return
        if not worker.alive and now_ns >= worker.reported_at_ns + self._limits.forget_after_ns:
            self._fleet.forget(worker)
            return
        if worker.alive and now_ns >= self._fleet.dead_at_ns(worker):
            self._mark_dead(worker, now_ns)
            return
        is_silent = worker.alive and now_ns >= self._fleet.probe_at_ns(worker)
        if is_silent and not worker.is_probed:
            worker.is_probed = True
            self._out.append(ProbeWorker(worker.worker_id))
        self._watch(worker, now_ns)

    def _mark_dead(self, worker: Worker, now_ns: int) -> None:
        self._fleet.mark_dead(worker, now_ns)
        self._turns.worker_silent(worker, now_ns)
        self._reservations.move_off(worker, now_ns)
        self._watch(worker, now_ns)

    def _take_effects(self) -> list[Effect]:
        effects = self._out + self._timers.ask(self._reservations.next_look_at_ns)
        self._out.clear()
        return effects


def _worker_status(worker: Worker, now_ns: int) -> WorkerStatus:
    report = worker.report
    return WorkerStatus(
        worker_id=report.worker_id,
        host_id=report.host_id,
        state=report.state if worker.alive else "dead",
        models=[
            *(card.model_id for card in report.models),
            *(card.model_id for card in report.oneshot if card.is_loaded),
        ],
        num_turns=worker.num_turns,
        num_reservations=len(worker.reservations),
        num_pages=report.num_pages,
        num_pages_free=report.num_pages_free,
        num_pages_clean=report.num_pages_clean,
        num_pages_dirty=report.num_pages_dirty,
        report_age_ms=(now_ns - worker.reported_at_ns) / 1e6,
    )
