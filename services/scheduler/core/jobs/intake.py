"""Admission of jobs: they are held while a new leader learns which jobs run already."""

from collections.abc import Iterable
from dataclasses import dataclass

from services.scheduler.core.batching.job import Job
from services.scheduler.core.jobs.job_limits import JobLimits
from services.scheduler.core.jobs.records import ModelKey, Submitted
from shared.ids import FrontendId, JobId
from shared.wire.messages import JobsSubmit, JobSubmit


@dataclass(frozen=True, slots=True)
class HeldJob:
    """A job that was submitted during the learning period. Its deadline counts from then."""

    frontend_id: FrontendId
    submit: JobSubmit
    received_at_ns: int


class Intake:
    """Holds jobs until `open`: a worker may still report that an earlier leader's batch has them.

    Attributes:
        is_open: the learning period is over.
    """

    def __init__(self, limits: JobLimits) -> None:
        self.is_open = False
        self._limits = limits
        self._held: list[HeldJob] = []

    def admit(self, message: JobsSubmit, now_ns: int) -> list[JobSubmit]:
        """The jobs of a message that are admitted now; the others are held."""
        if self.is_open:
            return message.jobs
        self._held += (HeldJob(message.frontend_id, submit, now_ns) for submit in message.jobs)
        return []

    def cancel(self, job_ids: Iterable[JobId]) -> None:
        """Remove cancelled jobs."""
        if self._held:
            gone = set(job_ids)
            self._held = [early for early in self._held if early.submit.job_id not in gone]

    def open(self) -> list[HeldJob]:
        """End the learning period; returns the held jobs."""
        self.is_open = True
        held, self._held = self._held, []
        return held

    def record(
        self, frontend_id: FrontendId, submit: JobSubmit, received_at_ns: int, now_ns: int
    ) -> Submitted:
        """A new job, whose deadline leaves time for the result's way back."""
        slo_ns = min(submit.slo_ns, self._limits.slo_max_ns)
        deadline_ns = received_at_ns + slo_ns - self._limits.return_ns
        key = ModelKey(submit.model_id, submit.fingerprint, submit.variant)
        job = Job(key, deadline_ns, now_ns)
        job.ref = submitted = Submitted(submit.job_id, frontend_id, job)
        return submitted
