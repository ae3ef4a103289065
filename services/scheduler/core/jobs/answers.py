"""Replies to frontends about jobs that will not run."""

from typing import Literal

from services.scheduler.core.batching.effects import DropReason
from services.scheduler.core.jobs.effects import AnswerDropped, JobsEffect
from services.scheduler.core.jobs.records import ModelKey, Submitted
from shared.ids import FrontendId
from shared.wire.messages import JobDropped, JobsDropped

DropCode = DropReason | Literal["no_worker", "overloaded"]

MESSAGES: dict[DropCode, tuple[str, str]] = {
    "late": ("deadline_unreachable", "too much waits for {model} to meet this request's target"),
    "crowded": ("deadline_unreachable", "too much waits for {model} to meet this request's target"),
    "no_gpu": ("no_worker", "no worker serves {model} at the moment"),
    "no_worker": ("no_worker", "no worker serves {model} at the moment"),
    "overloaded": ("overloaded", "too many jobs wait for a place in a batch"),
}
RETRY_AFTER_S = 1.0
JOBS_A_MESSAGE = 1024  # well below the largest message of NATS


class Answers:
    """Collects dropped jobs, to send each frontend one message."""

    def __init__(self) -> None:
        self._dropped: dict[FrontendId, list[JobDropped]] = {}

    def add(self, submitted: Submitted, reason: DropCode) -> None:
        """Add a job that will not run."""
        code, text = MESSAGES[reason]
        key = submitted.job.model
        assert isinstance(key, ModelKey)
        dropped = JobDropped(
            job_id=submitted.job_id,
            code=code,
            message=text.format(model=key.model_id),
            retry_after_s=RETRY_AFTER_S,
        )
        self._dropped.setdefault(submitted.frontend_id, []).append(dropped)

    def take(self) -> list[JobsEffect]:
        """Everything collected since the last call."""
        if not self._dropped:
            return []
        dropped, self._dropped = self._dropped, {}
        return [
            AnswerDropped(frontend_id, JobsDropped(jobs=jobs[first : first + JOBS_A_MESSAGE]))
            for frontend_id, jobs in dropped.items()
            for first in range(0, len(jobs), JOBS_A_MESSAGE)
        ]
