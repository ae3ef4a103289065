"""A scheduler: a candidate for the lease; while it leads, the cores that place."""

from functools import partial
from typing import ClassVar

from loadtest.world.candidate import Candidate, Election
from loadtest.world.deployment import SimDeployment
from loadtest.world.desk import Desk
from loadtest.world.jobs import SchedulerJobs
from loadtest.world.ledger import Ledger
from loadtest.world.wires import Reply
from services.scheduler.core import (
    CancelTurn,
    CountTurn,
    DropPrefetch,
    Effect,
    FailTurn,
    Limits,
    NotifyArrival,
    NotifyFrontends,
    NotifyPeers,
    ProbeWorker,
    SchedulerCore,
    SendPrefetch,
    StartTurns,
    merge_effects,
)
from services.scheduler.core.placement.policy import PlacementPolicy
from services.scheduler.core.turns.core import EVERYTHING
from services.scheduler.core.turns.turn_table import first_attempt
from shared.effects import WakeAt
from shared.errors import NoCapacity
from shared.wire.messages import (
    AdvisoryKey,
    Empty,
    ExpectSession,
    TurnsPlaced,
    TurnsStart,
)
from shared.wire.shards import Share
from shared.wire.subjects import (
    SCHEDULER_PING,
    SESSION_DROP,
    SESSION_EXPECT,
    SESSION_PLACED,
    TURN_CANCEL,
    TURN_FAILED,
    TURN_SUBMIT,
    TURNS_ENDED,
    TURNS_PLACED,
    WORKER_CANCEL,
    WORKER_PREFETCH,
    WORKER_PREFETCH_DROP,
    WORKER_REPORT,
    WORKER_START,
)
from shared.wire.tracker_shards import arrival_wires


class Scheduler(Candidate):
    """Attributes:
    limits: few turns run at once here.
    core, jobs: place turns, batch jobs; None while this process is a spare, and jobs are the first
        shard's.
    """

    limits: ClassVar = Limits()

    def __init__(
        self,
        deployment: SimDeployment,
        election: Election,
        ledger: Ledger,
        number: int,
        share: Share = EVERYTHING,
    ) -> None:
        of_shard = f"-shard-{share.index}" if share.index else ""
        leadership = f"shard-{share.index}" if share.index else "all"
        super().__init__(deployment, f"scheduler{of_shard}-{number}", election, leadership)
        self._ledger = ledger
        self._share = share
        self.core: SchedulerCore | None = None
        self.jobs: SchedulerJobs | None = None

    def on_start(self) -> None:
        self.core = self.jobs = None
        super().on_start()

    def on_crash(self) -> None:
        self.core = self.jobs = None

    def on_lead(self) -> None:
        if self.core is None:
            self._take_lead()
            return
        self.core.set_fence(self.fence)
        if self.jobs is not None:
            self.jobs.set_fence(self.fence)

    def new_policy(self, limits: Limits) -> PlacementPolicy:
        """For a new leader."""
        raise NotImplementedError

    def _take_lead(self) -> None:
        limits = self.limits
        self.core = core = SchedulerCore(
            self.new_policy(limits),
            limits,
            self.now_ns,
            attempt_floor=first_attempt(self.fence),
            share=self._share,
        )
        self._desk = Desk(self, core.on_wake, core.on_worker_gone, self._perform, merge_effects)
        self._desk.put(core.on_wake)
        wires, shard = self.deployment.wires, str(self._share.index)
        self._be_present()
        for subject, handler, ident in (
            (WORKER_REPORT, core.on_report, ""),
            (TURNS_ENDED, core.on_turns_ended, ""),
            (TURNS_PLACED, core.on_turns_placed, ""),
            (TURN_CANCEL, core.on_turn_cancel, shard),
            (TURN_SUBMIT, core.on_turns_submit, shard),
        ):
            wires.listen(self, subject, self._desk.feeding(handler), ident)
        wires.listen(self, SESSION_EXPECT, self._on_expect, shard)
        wires.listen(self, SESSION_DROP, self._on_drop, shard)
        wires.listen(self, SCHEDULER_PING, lambda _, reply: reply(Empty()), shard)
        if self._share.index == 0:
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
        wires = self.deployment.wires
        match effect:
            case StartTurns(worker_id, starts):
                turns = [each.start for each in starts if not each.is_sent]
                for start in turns:
                    self._ledger.on_start_turn(start, worker_id)
                wires.send(self, WORKER_START, TurnsStart(turns=turns), worker_id)
            case CancelTurn(worker_id, cancel):
                wires.send(self, WORKER_CANCEL, cancel, worker_id)
            case FailTurn(frontend_id, failed, _):
                wires.send(self, TURN_FAILED, failed, frontend_id)
            case SendPrefetch(worker_id, prefetch):
                wires.send(self, WORKER_PREFETCH, prefetch, worker_id)
            case DropPrefetch(worker_id, drop):
                wires.send(self, WORKER_PREFETCH_DROP, drop, worker_id)
            case NotifyPeers(turns, kept):
                placed_now = TurnsPlaced(shard=self._share.index, turns=turns, kept=kept)
                wires.send(self, TURNS_PLACED, placed_now)
            case NotifyFrontends(placed):
                wires.send(self, SESSION_PLACED, placed)
            case NotifyArrival(arrived):
                for wire, ids, message in arrival_wires(
                    arrived, self.deployment.num_tracker_shards
                ):
                    wires.send(self, wire, message, *ids)
            case ProbeWorker(worker_id):
                self._desk.probe(worker_id)
            case CountTurn():
                pass
            case WakeAt(at_ns):
                self._desk.alarm.set(at_ns)
