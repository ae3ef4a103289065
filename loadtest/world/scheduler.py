"""A scheduler process: a candidate for the lease; while it leads, the cores that place."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from loadtest.world.checks import check_scheduler
from loadtest.world.desk import Alarm, Desk
from loadtest.world.jobs import SchedulerJobs
from loadtest.world.process import Process
from loadtest.world.timeline import MS, SECOND
from loadtest.world.wires import Reply
from services.scheduler.core import (
    POLICIES,
    CancelTurn,
    CountTurn,
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
from services.scheduler.core.lease import effects as le
from services.scheduler.core.lease.core import LeaseCore
from services.scheduler.core.lease.times import LeaseTimes
from services.scheduler.core.turns.board import first_attempt
from shared.effects import WakeAt
from shared.errors import NobodyListens, NoCapacity, SymphonyError
from shared.messages import (
    AdvisoryKey,
    Empty,
    ExpectSession,
    LeaseHolder,
    SchedulerStatus,
    TurnsStart,
)
from shared.subjects import (
    LEASE_HOLDER,
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
    WORKER_REPORT,
    WORKER_START,
)

if TYPE_CHECKING:
    from loadtest.world.world import World

TIMES = LeaseTimes(beat_ns=500 * MS, ttl_ns=2 * SECOND)
RESTART_NS = 300 * MS


class LeaseStore:
    """The key of the leader's lease in NATS, under compare and set."""

    def __init__(self) -> None:
        self.stored = le.Stored(None, 0)
        self._revision = 0

    def write(self, write: le.WriteLease) -> int | None:
        """The new revision; None when the expected one is not there."""
        if write.expected_revision != self.stored.revision:
            return None
        self._revision += 1
        self.stored = le.Stored(write.lease, self._revision)
        return self._revision


class Scheduler(Process):
    """Attributes:
    core, jobs: place turns, batch jobs; None while this process is a spare.
    fence: of the term it leads.
    """

    def __init__(self, world: "World", number: int) -> None:
        super().__init__(world, f"scheduler-{number}")
        self.core: SchedulerCore | None = None
        self.jobs: SchedulerJobs | None = None

    def check(self) -> None:
        check_scheduler(self)

    def on_start(self) -> None:
        self.core = self.jobs = None
        self.fence = 0
        self._lease_alarm = Alarm(self, self._look_at_lease)
        self._question = 0
        self.lease = LeaseCore(
            instance=f"{self.name}.{self.life}",
            times=TIMES,
            wall_offset_ms=(self.wall_ns - self.now_ns) // MS,
        )
        self._lead_on(self.lease.on_wake(self.now_ns))

    def on_crash(self) -> None:
        self.core = self.jobs = None

    def on_disconnected(self) -> None:
        self._lead_on(self.lease.on_cut(self.now_ns))

    @property
    def is_leading(self) -> bool:
        """Whether it would act, if it looked now."""
        has_connection = self.world.wires.has_connection(self)
        return self.is_ready and has_connection and self.lease.is_leading(self.now_ns)

    # The lease.

    def _lead_on(self, effects: list[le.LeaseEffect]) -> None:
        for effect in effects:
            match effect:
                case le.ReadLease() | le.WriteLease():
                    self._ask_store(effect)
                case le.AskHolder():
                    self._ask_holder()
                case le.Announce(stored):
                    for other in self.world.schedulers:
                        if other is not self and other.is_ready:
                            self.world.wires.tell(self, other, partial(other.hear_lease, stored))
                case WakeAt(at_ns):
                    self._lease_alarm.set(at_ns)
                case le.Lead(fence):
                    self.fence = fence
                    self.world.on_lead(self, fence)
                    if self.jobs is None:
                        self._take_lead()
                    else:
                        assert self.core is not None
                        self.core.set_fence(fence)
                        self.jobs.set_fence(fence)
                case le.Lost() | le.Released():
                    self.end(RESTART_NS)
                    return
                case le.Suspend():
                    pass
                case le.Resume():
                    self.world.check_leaders()

    def _look_at_lease(self) -> bool:
        self._lead_on(self.lease.on_wake(self.now_ns))
        return True

    def raise_fence(self, above: int) -> None:
        """Somebody has seen a higher fence."""
        self._lead_on(self.lease.raise_fence(above, self.now_ns))

    def hear_lease(self, stored: le.Stored) -> None:
        """Another candidate says what the store took."""
        self._lead_on(self.lease.on_announced(stored, self.now_ns))

    def _ask_store(self, question: le.ReadLease | le.WriteLease) -> None:
        self._question += 1
        number = self._question

        def answer(event: Callable[[int], list[le.LeaseEffect]]) -> None:
            if number == self._question:
                self._question += 1
                self._lead_on(event(self.now_ns))

        def at_store() -> Reply | None:
            store = self.world.lease_store
            event: Callable[[int], list[le.LeaseEffect]]
            if isinstance(question, le.ReadLease):
                event = partial(self.lease.on_read, store.stored)
            else:
                revision = store.write(question)
                event = self.lease.on_conflict
                if revision is not None:
                    event = partial(self.lease.on_written, revision)
            return lambda _: answer(event)

        self.world.wires.ask_server(self, at_store)
        self.later(TIMES.beat_ns, lambda: answer(self.lease.on_no_answer))

    def _ask_holder(self) -> None:
        def on_reply(holder: Any) -> None:
            self._lead_on(self.lease.on_holder(holder.instance, self.now_ns))

        def on_error(error: SymphonyError) -> None:
            if isinstance(error, NobodyListens):
                self._lead_on(self.lease.on_holder(None, self.now_ns))
            else:
                self._lead_on(self.lease.on_holder_silent(self.now_ns))

        self.world.wires.request(
            self, LEASE_HOLDER, Empty(), on_reply, on_error, ident="all", timeout_ns=TIMES.answer_ns
        )

    # The leadership.

    def _take_lead(self) -> None:
        limits = Limits()
        self.core = core = SchedulerCore(
            POLICIES["balance"](limits),
            limits,
            self.now_ns,
            attempt_floor=first_attempt(self.fence),
        )
        self._desk = Desk(self, core.on_wake, core.on_worker_gone, self._perform, starts_together)
        self._desk.put(core.on_wake)
        wires, instance = self.world.wires, f"{self.name}.{self.life}"
        wires.subscribe(
            self, LEASE_HOLDER, lambda _, r: r(LeaseHolder(instance=instance)), ident="all"
        )
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
        self.jobs = SchedulerJobs(self)

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
        wires = self.world.wires
        match effect:
            case StartTurns(worker_id, starts):
                turns = [each.start for each in starts if not each.is_sent]
                for start in turns:
                    self.world.on_start_turn(start, worker_id)
                wires.publish(self, WORKER_START, TurnsStart(turns=turns), worker_id)
            case CancelTurn(worker_id, cancel):
                wires.publish(self, WORKER_CANCEL, cancel, worker_id)
            case FailTurn(frontend_id, failed, _):
                wires.publish(self, TURN_FAILED, failed, frontend_id)
            case SendPrefetch(worker_id, prefetch):
                wires.publish(self, WORKER_PREFETCH, prefetch, worker_id)
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
