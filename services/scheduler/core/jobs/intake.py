"""Jobs on their way in: held while a new leader learns what runs already."""

from collections.abc import Iterable
from dataclasses import dataclass

from services.scheduler.core.batching.job import Job
from services.scheduler.core.jobs.limits import JobLimits
from services.scheduler.core.jobs.records import ModelKey, Submitted
from shared.ids import FrontendId, JobId
from shared.messages import JobsSubmit, JobSubmit


@dataclass(frozen=True, slots=True)
class HeldJob:
    """A submit that came while learning. Its deadline counts from when it was heard."""

    frontend_id: FrontendId
    submit: JobSubmit
    reported_at_ns: int


class Intake:
    """Until `open` nothing comes in: a worker may still tell that an earlier leader's batch has it.

    Attributes:
        is_open: the learning is over.
    """

    def __init__(self, limits: JobLimits) -> None:
        self.is_open = False
        self._limits = limits
        self._held: list[HeldJob] = []

    def admit(self, message: JobsSubmit, now_ns: int) -> list[JobSubmit]:
        """Those of a message's jobs that come in now; the others are held."""
        if self.is_open:
            return message.jobs
        self._held += (HeldJob(message.frontend_id, submit, now_ns) for submit in message.jobs)
        return []

    def cancel(self, job_ids: Iterable[JobId]) -> None:
        """Nobody wants these any more."""
        if self._held:
            gone = set(job_ids)
            self._held = [early for early in self._held if early.submit.job_id not in gone]

    def open(self) -> list[HeldJob]:
        """From now on everything comes in at once; what was held comes now."""
        self.is_open = True
        held, self._held = self._held, []
        return held

    def record(
        self, frontend_id: FrontendId, submit: JobSubmit, reported_at_ns: int, now_ns: int
    ) -> Submitted:
        """A job that comes in: its result must exist early enough to find its way back."""
        slo_ns = min(submit.slo_ns, self._limits.slo_max_ns)
        deadline_ns = reported_at_ns + slo_ns - self._limits.return_ns
        key = ModelKey(submit.model_id, submit.fingerprint, submit.variant)
        job = Job(key, deadline_ns, now_ns)
        job.ref = submitted = Submitted(submit.job_id, frontend_id, job)
        return submitted
