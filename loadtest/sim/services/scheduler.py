"""Schedulers and trackers: the production services, candidates for a lease."""

from dataclasses import replace
from functools import partial
from typing import Literal

from loadtest.sim.client import Store
from loadtest.sim.network import Message, Network, Peer
from loadtest.sim.process import Ground
from loadtest.sim.services.checks import check_batches, check_scheduler, check_tracker
from loadtest.sim.services.deployment import SimDeployment
from loadtest.sim.services.faults import LOSING
from loadtest.sim.services.ledger import Ledger
from loadtest.sim.services.service import Service
from loadtest.sim.timeline import MS, SECOND
from services.scheduler.config import SchedulerConfig
from services.scheduler.core import Limits
from services.scheduler.core.fleet.records import Worker
from services.scheduler.core.turns.turn_table import first_attempt
from services.scheduler.job_service import EVENTS_DROPPED
from services.scheduler.service import DROPPED
from services.scheduler.service import main as scheduler_main
from services.tracker.config import TrackerConfig
from services.tracker.core import TrackerCore
from services.tracker.core.agents import AgentLimits
from services.tracker.service import main as tracker_main
from shared.ids import WorkerId
from shared.wire.messages import (
    BatchStart,
    JobsDropped,
    LeaderChanged,
    TurnsStart,
    TurnsSubmit,
    decode,
)
from shared.wire.subjects import (
    BATCH_START,
    JOBS_DROPPED,
    LEADER_CHANGED,
    TURN_SUBMIT,
    WORKER_START,
)

QUEUE_MAX = 65_536
Role = Literal["all", "shard", "rank"]
SLACK_NS = 3 * SECOND
AGENT_LIMITS = AgentLimits(  # so small that they are reached
    workflows_max=4, arrival_max_ns=2 * SECOND, slack_ns=SLACK_NS
)
TTL_S = 5.0  # of advisories
BEAT_MS, TTL_MS = 650, 2000  # of leases
QUARANTINE_WAITS_NS = (5 * SECOND, SECOND // 4)
DISTURBED_WITHIN_NS = 10 * SECOND
# A worker is asked whether it is there when two of its reports are missed. One that has no
# connection is known at once not to be. Another has two seconds for the answer, and less if its
# silence is to be longer than it may be.
REPORTS_MISSED = 2
ANSWER_NS, SILENT_NS = 2 * SECOND, 5 * SECOND // 2
DRIFT_NS = 10 * MS  # of clocks, meanwhile


class Leadership:
    """What several instances want, and one has at a time."""

    def __init__(self) -> None:
        self.candidates: list[Candidate] = []
        self._holder_of: dict[int, tuple[str, int]] = {}

    @property
    def leaders(self) -> "list[Candidate]":
        """Those that would act now."""
        return [candidate for candidate in self.candidates if candidate.is_leading]

    def check(self) -> None:
        """One leads at a time, and no fence is ever given to two.

        Raises:
            AssertionError: it is otherwise.
        """
        leaders = self.leaders
        assert len(leaders) <= 1, f"{[each.name for each in leaders]} lead at once"
        for leader in leaders:
            name = (leader.name, leader.life)
            holder = self._holder_of.setdefault(leader.fence, name)
            assert holder == name, f"{holder} and {name} both lead under {leader.fence}"


class Candidate(Service):
    """A service of which one instance leads.

    Attributes:
        queue_max: events that wait in a queue of it, from its next start on.
    announced: fence of the last term that it announced to workers and frontends.
    """

    queue_max = QUEUE_MAX
    announced = 0

    def __init__(self, deployment: Ground, name: str, store: Store, leadership: Leadership) -> None:
        super().__init__(deployment, name, store)
        self._leadership = leadership
        leadership.candidates.append(self)

    def on_start(self) -> None:
        self._was_leading = False
        super().on_start()

    def check(self) -> None:
        is_leading = self.is_leading
        if is_leading and not self._was_leading:
            self._leadership.check()
        self._was_leading = is_leading

    @property
    def is_leading(self) -> bool:
        """Whether it would act now."""
        lease = self.part("lease")
        return self.is_ready and lease is not None and lease.is_leading

    @property
    def fence(self) -> int:
        """Of the term it leads; 0: it does not."""
        lease = self.part("lease")
        return 0 if lease is None else int(lease.fence)


class SimSchedulerConfig(SchedulerConfig):
    """Attributes:
    quarantine_wait_ns: see `services.scheduler.core.Limits`.
    """

    quarantine_wait_ns: int

    def limits(self) -> Limits:
        return replace(
            super().limits(), quarantine_wait_ns=self.quarantine_wait_ns, moved_tokens_min=1
        )


class Scheduler(Candidate):
    """Args:
    role: "all", "shard" or "rank", as in its settings.
    """

    deployment: SimDeployment
    kind = "scheduler"
    main = staticmethod(scheduler_main)

    def __init__(
        self,
        deployment: SimDeployment,
        store: Store,
        leadership: Leadership,
        number: int,
        role: Role = "all",
        shard: int = 0,
    ) -> None:
        which = str(shard) if role == "shard" else role
        super().__init__(deployment, f"scheduler-{which}-{number}", store, leadership)
        self._role, self.shard = role, shard
        self._quarantine_wait_ns = self._random.choice(QUARANTINE_WAITS_NS)

    def config(self) -> SchedulerConfig:
        deployment = self.deployment
        placement = (
            "loadtest.world.scattering:Scattering"
            if deployment.is_scattered
            else deployment.placement
        )
        return SimSchedulerConfig(
            quarantine_wait_ns=self._quarantine_wait_ns,
            instance=self.name,
            scheduler_policy=placement,
            scheduler_role=self._role,
            scheduler_shard=self.shard,
            scheduler_shards=deployment.num_shards,
            scheduler_queue_max=self.queue_max,
            tracker_shards=deployment.num_tracker_shards,
            scheduler_lease_beat_ms=BEAT_MS,
            scheduler_lease_ttl_ms=TTL_MS,
        )

    def check(self) -> None:
        super().check()
        if (core := self.part("turns")) is not None:
            check_scheduler(core, self._may_be_dead)
            floor = first_attempt(self.fence)
            assert core._turns._table._attempt_floor >= floor, "its term's attempts are not higher"
        if (jobs := self.part("jobs")) is not None:
            check_batches(jobs)

    def _may_be_dead(self, worker: Worker) -> bool:
        """Whether a worker may have been silent for long, or seemed so here."""
        deployment, wires = self.deployment, self.deployment.wires
        if deployment.fault_kinds & LOSING:
            return True
        process = wires.listener(WORKER_START.name(worker.worker_id))
        if process is None or wires.disturbed_ns(self, DISTURBED_WITHIN_NS) >= SECOND:
            return True
        interval_ns = worker.report.interval_ns
        silent_ns = REPORTS_MISSED * interval_ns
        if wires.has_connection(process):
            silent_ns = min(silent_ns + ANSWER_NS, SILENT_NS)
        silent_ns -= interval_ns + DRIFT_NS  # it may have been about to report
        return wires.disturbed_ns(process, DISTURBED_WITHIN_NS) >= silent_ns


class Tracker(Candidate):
    """Args:
    shard: which part of the sessions it has.
    """

    deployment: SimDeployment
    kind = "tracker"
    main = staticmethod(partial(tracker_main, agent_limits=AGENT_LIMITS))

    def __init__(
        self,
        deployment: SimDeployment,
        store: Store,
        leadership: Leadership,
        number: int,
        shard: int = 0,
    ) -> None:
        super().__init__(deployment, f"tracker-{shard}-{number}", store, leadership)
        self.shard = shard

    @property
    def core(self) -> TrackerCore | None:
        core: TrackerCore | None = self.part("advisories")
        return core

    def config(self) -> TrackerConfig:
        deployment = self.deployment
        return TrackerConfig(
            instance=self.name,
            tracker_ttl_s=TTL_S,
            tracker_slack_s=SLACK_NS / SECOND,
            tracker_shard=self.shard,
            tracker_shards=deployment.num_tracker_shards,
            tracker_queue_max=self.queue_max,
            scheduler_shards=deployment.num_shards,
            scheduler_lease_beat_ms=BEAT_MS,
            scheduler_lease_ttl_ms=TTL_MS,
        )

    def check(self) -> None:
        super().check()
        if self.core is not None and self.is_leading:
            check_tracker(self.core, AGENT_LIMITS.workflows_max)


def events_dropped() -> int:
    """Events of schedulers that found no room in their queues, in this interpreter."""
    samples = [
        each
        for metric in (*DROPPED.collect(), *EVENTS_DROPPED.collect())
        for each in metric.samples
    ]
    return int(sum(each.value for each in samples if each.name.endswith("_total")))


def tap_turns(network: Network, ledger: Ledger) -> None:
    """Note which turns and jobs are submitted, started and dropped, as that leaves a process."""

    def on_starts(process: Peer, message: Message) -> None:
        is_able = not isinstance(process, Scheduler) or network.has_connection(process)
        assert is_able, "a scheduler acts without a connection"
        worker_id = WorkerId(message.subject.split(".")[2])
        for start in decode(TurnsStart, message.data).turns:
            ledger.on_start_turn(start, worker_id)

    def on_submits(_: Peer, message: Message) -> None:
        if message.subject.endswith(".turn.submit"):  # and no advisory
            turns = decode(TurnsSubmit, message.data).turns
            ledger.submitted.update(submit.request_id for submit in turns)

    def on_batch(_: Peer, message: Message) -> None:
        jobs = decode(BatchStart, message.data).jobs
        ledger.on_jobs([job.job_id for job in jobs], "run again")

    def on_dropped(_: Peer, message: Message) -> None:
        jobs = decode(JobsDropped, message.data).jobs
        ledger.on_jobs([job.job_id for job in jobs], "dropped")

    def on_leader(process: Peer, message: Message) -> None:
        assert isinstance(process, Candidate)
        process.announced = decode(LeaderChanged, message.data).fence

    taps = (
        (TURN_SUBMIT, on_submits),
        (WORKER_START, on_starts),
        (BATCH_START, on_batch),
        (JOBS_DROPPED, on_dropped),
        (LEADER_CHANGED, on_leader),
    )
    for subject, tap in taps:
        network.tap(subject.pattern.rpartition(".")[2], tap)
