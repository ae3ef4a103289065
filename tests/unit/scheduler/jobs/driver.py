"""Job cores and short words for what happens to them."""

import dataclasses
from collections.abc import Sequence
from typing import Literal, TypeVar

from services.scheduler.core.batching.job import Delays
from services.scheduler.core.batching.rules import make_rules
from services.scheduler.core.jobs import (
    AnswerDropped,
    CountJobs,
    JobLimits,
    JobsCore,
    JobsEffect,
    SendBatch,
    ShardJobsCore,
)
from services.scheduler.core.jobs.remote_rank import RemoteBatcher, RemoteRank
from services.scheduler.policies import make_batcher
from shared.effects import WakeAt
from shared.ids import BatchId, FrontendId, HostId, JobId, ModelId, WorkerId
from shared.wire.messages import (
    BatchDone,
    BatchRef,
    BatchStart,
    JobRef,
    JobsCancel,
    JobsSubmit,
    JobSubmit,
    LeadershipFence,
    OneshotCard,
    OneshotVariant,
    RankGrant,
    WorkerReport,
)

E = TypeVar("E")
State = Literal["loading", "ready", "draining"]

MS = 1_000_000
SECOND = 1_000 * MS
BATCH_NS = [(size + 5) * MS for size in range(1, 9)]
LIMITS = JobLimits(learning_ns=0, ctrl_ns=0, data_ns=0, return_ns=0, slack_ns=0)


def card(
    model: str, batch_ns: Sequence[int] = BATCH_NS, fingerprint: str = "", slo_ms: float = 50.0
) -> OneshotCard:
    return OneshotCard(
        model_id=ModelId(model),
        task="embed",
        modality="text",
        source=model,
        fingerprint=fingerprint or model,
        slo_ms=slo_ms,
        variants=[OneshotVariant(variant=0, batch_ns=list(batch_ns))],
        num_values=1,
    )


def held(batch_id: str, *jobs: str, fence: int = 1, leadership: str = "all") -> BatchRef:
    refs = [JobRef(job_id=JobId(job), frontend_id=FrontendId("f")) for job in jobs]
    return BatchRef(
        batch_id=BatchId(batch_id),
        fence=fence,
        remaining_ns=5 * MS,
        jobs=refs,
        leadership=leadership,
    )


class Reports:
    """Numbers the reports of every process of every worker."""

    def __init__(self) -> None:
        self._seqs: dict[str, int] = {}

    def make(
        self,
        worker: str,
        *batches: BatchRef,
        incarnation: str = "1",
        models: Sequence[str] = ("m",),
        batch_ns: Sequence[int] = BATCH_NS,
        fingerprint: str = "",
        slo_ms: float = 50.0,
        state: State = "ready",
        seq: int | None = None,
        fence: int = 0,
    ) -> WorkerReport:
        key = f"{worker}/{incarnation}"
        self._seqs[key] = self._seqs.get(key, 0) + 1 if seq is None else seq
        return WorkerReport(
            worker_id=WorkerId(worker),
            incarnation=incarnation,
            seq=self._seqs[key],
            host_id=HostId("h"),
            state=state,
            oneshot=[card(model, batch_ns, fingerprint, slo_ms) for model in models],
            batches=list(batches),
            fences=[LeadershipFence(leadership="all", fence=fence)] if fence else [],
        )


class Driver:
    """A core that is told events by hand. What it wants is kept in `effects` until it is taken.

    Attributes:
        alarm_at_ns: when it wants to be woken.
    """

    def __init__(
        self, policy: str = "eager", limits: JobLimits = LIMITS, *, fence: int = 1
    ) -> None:
        self.now_ns = SECOND
        self.limits = limits
        self.reports = Reports()
        self.effects: list[JobsEffect] = []
        self.alarm_at_ns = 1 << 62
        self.core = self.make_core(policy, fence)
        self.wake()

    def make_core(self, policy: str, fence: int) -> JobsCore:
        limits = self.limits
        batcher = make_batcher(policy, Delays(limits.ctrl_ns, limits.data_ns, limits.slack_ns))
        name = f"s-{fence}"
        return JobsCore(batcher, limits, fence=fence, started_at_ns=self.now_ns, name=name)

    def take(self, effects: list[JobsEffect]) -> list[JobsEffect]:
        """Keep alarms apart."""
        for effect in effects:
            if isinstance(effect, WakeAt):
                self.alarm_at_ns = min(self.alarm_at_ns, effect.at_ns)
        self.effects += effects
        return effects

    def wake(self) -> None:
        self.alarm_at_ns = 1 << 62
        self.take(self.core.on_wake(self.now_ns))

    def wait(self, passed_ns: int) -> None:
        """Let time pass; alarms ring when they should."""
        until_ns = self.now_ns + passed_ns
        num_wakes = 0
        while self.alarm_at_ns <= until_ns:
            num_wakes = num_wakes + 1 if self.alarm_at_ns <= self.now_ns else 0
            assert num_wakes < 100, "woken for ever"
            self.now_ns = max(self.alarm_at_ns, self.now_ns)
            self.wake()
        self.now_ns = until_ns

    def submit(
        self,
        *jobs: str,
        slo_ms: float = 50,
        model: str = "m",
        frontend: str = "f",
        fingerprint: str = "",
    ) -> None:
        submits = [
            JobSubmit(
                job_id=JobId(job),
                model_id=ModelId(model),
                fingerprint=fingerprint or model,
                variant=0,
                slo_ns=int(slo_ms * MS),
            )
            for job in jobs
        ]
        message = JobsSubmit(frontend_id=FrontendId(frontend), jobs=submits)
        self.take(self.core.on_jobs(message, self.now_ns))

    def cancel(self, *jobs: str) -> None:
        ids = [JobId(job) for job in jobs]
        message = JobsCancel(job_ids=ids)
        self.take(self.core.on_cancel(message, self.now_ns))

    def report(self, worker: str, *batches: BatchRef, **more: object) -> None:
        report = self.reports.make(worker, *batches, **more)  # type: ignore[arg-type]
        self.take(self.core.on_report(report, self.now_ns))

    def hold(self, start: BatchStart) -> BatchRef:
        """A batch as its worker reports it."""
        return BatchRef(
            batch_id=start.batch_id, fence=start.fence, remaining_ns=MS, jobs=start.jobs
        )

    def gone(self, worker: str) -> None:
        self.take(self.core.on_worker_gone(WorkerId(worker), self.now_ns))

    def done(
        self,
        worker: str,
        start: BatchStart,
        *,
        size: int | None = None,
        is_refused: bool = False,
        fence: int | None = None,
    ) -> None:
        done = batch_done(worker, start.batch_id, size=len(start.jobs) if size is None else size)
        done = BatchDone(
            worker_id=done.worker_id,
            batch_id=done.batch_id,
            fence=start.fence if fence is None else fence,
            model_id=start.model_id,
            variant=start.variant,
            size=0 if is_refused else done.size,
            run_ns=start.expected_ns,
            is_refused=is_refused,
            leadership=start.leadership,
        )
        self.take(self.core.on_batch_done(done, self.now_ns))

    def sent(self) -> list[tuple[str, BatchStart]]:
        """Batches since the last call, each with its worker."""
        return [(effect.worker_id, effect.start) for effect in self.pop(SendBatch)]

    def sent_jobs(self) -> list[tuple[str, list[str]]]:
        """As `sent`, but only the jobs."""
        return [(worker, [job.job_id for job in start.jobs]) for worker, start in self.sent()]

    def dropped(self) -> list[tuple[str, str]]:
        """(job, code) answered since the last call."""
        answers = self.pop(AnswerDropped)
        return [(job.job_id, job.code) for answer in answers for job in answer.dropped.jobs]

    def counts(self) -> dict[str, int]:
        """Jobs by outcome since the last call."""
        counts: dict[str, int] = {}
        for effect in self.pop(CountJobs):
            counts[effect.outcome] = counts.get(effect.outcome, 0) + effect.num_jobs
        return counts

    def pop(self, kind: type[E]) -> list[E]:
        """Take the effects of one kind out."""
        found: list[E] = [effect for effect in self.effects if isinstance(effect, kind)]
        self.effects = [effect for effect in self.effects if not isinstance(effect, kind)]
        return found


class ShardDriver(Driver):
    """A shard, whose rank process is the test."""

    core: ShardJobsCore

    def make_core(self, policy: str, fence: int) -> ShardJobsCore:
        limits = self.limits
        remote = RemoteRank(shard=3, first_seq=100)
        batcher = RemoteBatcher(
            remote, make_rules(policy), Delays(limits.ctrl_ns, limits.data_ns, limits.slack_ns)
        )
        return ShardJobsCore(
            batcher,
            limits,
            fence=fence,
            started_at_ns=self.now_ns,
            name=f"s-{fence}",
            leadership="shard-3",
        )

    def grant(self, worker: str, grant_id: int, model: str = "m", free_in_ms: float = 0) -> None:
        message = RankGrant(
            grant_id=grant_id,
            model_id=ModelId(model),
            fingerprint=model,
            variant=0,
            worker_id=WorkerId(worker),
            free_in_ns=int(free_in_ms * MS),
        )
        self.take(self.core.on_grant(message, self.now_ns))


def batch_done(worker: str, batch_id: str, size: int = 1) -> BatchDone:
    return BatchDone(
        worker_id=WorkerId(worker),
        batch_id=BatchId(batch_id),
        fence=1,
        model_id=ModelId("m"),
        variant=0,
        size=size,
        run_ns=6 * MS,
    )


def ready(policy: str = "eager", *workers: str, limits: JobLimits = LIMITS) -> Driver:
    """A core past its learning, that has heard of these workers."""
    driver = Driver(policy, limits)
    for worker in workers or ("w",):
        driver.report(worker)
    return driver


def with_limits(**values: int) -> JobLimits:
    """The tests' own limits but for these."""
    return dataclasses.replace(LIMITS, **values)  # type: ignore[arg-type]
