"""A scheduler: a candidate for the lease; while it leads, the cores that place."""

from functools import partial
from typing import ClassVar

from loadtest.world.candidate import Candidate, Election
from loadtest.world.checks import check_batches, check_scheduler
from loadtest.world.desk import Desk
from loadtest.world.faults import SILENCING
from loadtest.world.house import House
from loadtest.world.jobs import SchedulerJobs
from loadtest.world.ledger import Ledger
from loadtest.world.scattering import Scattering
from loadtest.world.wires import Reply
from services.scheduler.core import (
    POLICIES,
    CancelTurn,
    CountTurn,
    DropPrefetch,
    Effect,
    FailTurn,
    Limits,
    NotifyArrival,
    ProbeWorker,
    SchedulerCore,
    SendPrefetch,
    StartTurns,
    TellPlace,
    starts_together,
)
from services.scheduler.core.turns.board import first_attempt
from services.scheduler.core.turns.placement.policy import PlacementPolicy
from shared.effects import WakeAt
from shared.errors import NoCapacity
from shared.messages import (
    AdvisoryKey,
    Empty,
    ExpectSession,
    SchedulerStatus,
    TurnsStart,
)
from shared.subjects import (
    SCHEDULER_STATUS,
    SESSION_DROP,
    SESSION_EXPECT,
    SESSION_PLACED,
    TURN_ARRIVED,
    TURN_CANCEL,
    TURN_FAILED,
    TURN_SUBMIT,
    TURNS_ENDED,
    WORKER_CANCEL,
    WORKER_PREFETCH,
    WORKER_PREFETCH_DROP,
    WORKER_REPORT,
    WORKER_START,
)


class Scheduler(Candidate):
    """Attributes:
    limits: few turns run at once here.
    core, jobs: place turns, batch jobs; None while this process is a spare.
    """

    limits: ClassVar = Limits(relief_gap=2)

    def __init__(self, house: House, election: Election, ledger: Ledger, number: int) -> None:
        super().__init__(house, f"scheduler-{number}", election)
        self._ledger = ledger
        self.core: SchedulerCore | None = None
        self.jobs: SchedulerJobs | None = None

    def check(self) -> None:
        if self.core is not None and self.jobs is not None:
            check_scheduler(self.core, is_lossy=bool(self.house.fault_kinds & SILENCING))
            check_batches(self.jobs.core)

    def on_start(self) -> None:
        self.core = self.jobs = None
        super().on_start()

    def on_crash(self) -> None:
        self.core = self.jobs = None

    def on_lead(self) -> None:
        if self.core is None or self.jobs is None:
            self._take_lead()
        else:
            self.core.set_fence(self.fence)
            self.jobs.set_fence(self.fence)

    def new_policy(self, limits: Limits) -> PlacementPolicy:
        """For a new leader."""
        if self.house.is_scattered:
            return Scattering(self.house.random)
        return POLICIES[self.house.placement](limits)

    def _take_lead(self) -> None:
        limits = self.limits
        self.core = core = SchedulerCore(
            self.new_policy(limits),
            limits,
            self.now_ns,
            attempt_floor=first_attempt(self.fence),
        )
        self._desk = Desk(self, core.on_wake, core.on_worker_gone, self._perform, starts_together)
        self._desk.put(core.on_wake)
        wires = self.house.wires
        self._be_present()
        for subject, handler in (
            (WORKER_REPORT, core.on_report),
            (TURNS_ENDED, core.on_turns_ended),
            (TURN_CANCEL, core.on_turn_cancel),
            (TURN_SUBMIT, core.on_turns_submit),
        ):
            wires.subscribe(self, subject, self._desk.feeding(handler))
        wires.subscribe(self, SESSION_EXPECT, self._on_expect)
        wires.subscribe(self, SESSION_DROP, self._on_drop)
        wires.subscribe(self, SCHEDULER_STATUS, lambda _, r: r(SchedulerStatus(workers=[])))
        self.jobs = SchedulerJobs(self, self._ledger)

    def _on_expect(self, message: ExpectSession, reply: Reply) -> None:
        def event(now_ns: int) -> list[Effect]:
            assert self.core is not None
            placement, effects = self.core.on_expect(message, now_ns)
            reply(placement)
            return effects

        if not self._desk.put(event):
            reply(NoCapacity("too many events wait here"))

    def _on_drop(self, message: AdvisoryKey, reply: Reply) -> None:
        assert self.core is not None
        has_room = self._desk.put(partial(self.core.on_drop, message))
        reply(Empty() if has_room else NoCapacity("the scheduler has too much to do"))

    def _perform(self, effect: Effect) -> None:
        wires = self.house.wires
        match effect:
            case StartTurns(worker_id, starts):
                turns = [each.start for each in starts if not each.is_sent]
                for start in turns:
                    self._ledger.on_start_turn(start, worker_id)
                wires.publish(self, WORKER_START, TurnsStart(turns=turns), worker_id)
            case CancelTurn(worker_id, cancel):
                wires.publish(self, WORKER_CANCEL, cancel, worker_id)
            case FailTurn(frontend_id, failed, _):
                wires.publish(self, TURN_FAILED, failed, frontend_id)
            case SendPrefetch(worker_id, prefetch):
                wires.publish(self, WORKER_PREFETCH, prefetch, worker_id)
            case DropPrefetch(worker_id, drop):
                wires.publish(self, WORKER_PREFETCH_DROP, drop, worker_id)
            case TellPlace(placed):
                wires.publish(self, SESSION_PLACED, placed)
            case NotifyArrival(arrived):
                wires.publish(self, TURN_ARRIVED, arrived)
            case ProbeWorker(worker_id):
                self._desk.probe(worker_id)
            case CountTurn():
                pass
            case WakeAt(at_ns):
                self._desk.alarm.set(at_ns)
