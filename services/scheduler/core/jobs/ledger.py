"""Every open job, the outcome of ended ones, and the replies that these cause."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import cast

from services.scheduler.core.batching.job import NEVER_NS
from services.scheduler.core.jobs.answers import Answers, DropCode
from services.scheduler.core.jobs.effects import CountJobs, JobOutcome, JobsEffect
from services.scheduler.core.jobs.meter import Meter
from services.scheduler.core.jobs.records import ModelKey, Submitted
from shared.ids import JobId


class Ledger:
    """Jobs by id, from their submission to their end.

    Args:
        ended_ns: how long an ended job is remembered.
        meter: counts good and bad jobs for scaling advice.
    """

    def __init__(self, ended_ns: int, meter: Meter) -> None:
        self._ended_ns = ended_ns
        self._meter = meter
        self._jobs: dict[JobId, Submitted] = {}
        self._ended: OrderedDict[JobId, int] = OrderedDict()
        self._answers = Answers()
        self._counts: list[JobsEffect] = []

    def __len__(self) -> int:
        return len(self._jobs)

    def knows(self, job_id: JobId, now_ns: int) -> bool:
        """Whether the job is open, or ended recently."""
        return job_id in self._jobs or now_ns - self._ended.get(job_id, -NEVER_NS) < self._ended_ns

    def waiting(self, job_id: JobId) -> Submitted | None:
        """The job, if it is open and in no batch."""
        submitted = self._jobs.get(job_id)
        return submitted if submitted is not None and submitted.batch is None else None

    def all_waiting(self) -> Iterator[Submitted]:
        """Every open job that is in no batch."""
        return (submitted for submitted in self._jobs.values() if submitted.batch is None)

    def open(self, submitted: Submitted) -> None:
        """Add a new job."""
        self._jobs[submitted.job_id] = submitted

    def cancel(self, submitted: Submitted, now_ns: int) -> None:
        """End a cancelled job."""
        self._end(submitted, now_ns)
        self._count(model_key(submitted), "cancelled", 1)

    def requeue(self, submitted: Submitted) -> None:
        """Let a job wait again whose batch did not run."""
        submitted.batch = None
        self._count(model_key(submitted), "requeued", 1)

    def done(self, key: ModelKey, jobs: list[Submitted], now_ns: int) -> None:
        """End the jobs of a batch that ran, in time or late."""
        num_late = sum(submitted.job.deadline_ns < now_ns for submitted in jobs)
        for submitted in jobs:
            self._end(submitted, now_ns)
        self._count(key, "late", num_late)
        self._count(key, "done", len(jobs) - num_late)
        self._meter.count(len(jobs) - num_late, num_late)

    def drop(self, jobs: Iterable[Submitted], reason: DropCode, now_ns: int) -> None:
        """End jobs that will not run."""
        for submitted in jobs:
            self._end(submitted, now_ns)
            self._count(model_key(submitted), "dropped", 1)
            self._answers.add(submitted, reason)
            self._meter.count(0, 1)

    def take_effects(self) -> list[JobsEffect]:
        """Counts and replies since the last call."""
        effects, self._counts = self._counts, []
        return effects + self._answers.take()

    def _end(self, submitted: Submitted, now_ns: int) -> None:
        self._jobs.pop(submitted.job_id, None)
        self._ended[submitted.job_id] = now_ns
        while self._ended and next(iter(self._ended.values())) < now_ns - self._ended_ns:
            self._ended.popitem(last=False)

    def _count(self, key: ModelKey, outcome: JobOutcome, num_jobs: int) -> None:
        if num_jobs:
            self._counts.append(CountJobs(key.model_id, outcome, num_jobs))


def model_key(submitted: Submitted) -> ModelKey:
    """The key by which the job is batched."""
    return cast(ModelKey, submitted.job.model)
