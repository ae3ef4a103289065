"""The life of jobs for one-shot models, seen from the frontend that owns their inputs.

One request is a group of jobs with one deadline. It is answered once: when every job has its first
result, when one of them is dropped or fails, when its client hangs up, or when nothing came until a
grace after the deadline. Whatever arrives for a job that is answered changes nothing, so submitting
again is always safe; that is done when the scheduler's leader changes and after silence.
"""

from collections.abc import Container
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from services.frontend.core.turns.job_events import (
    INPUT_FIELDS_BYTES,
    AnswerPull,
    Cancel,
    Done,
    Effect,
    Fail,
    JobLimits,
    NewJob,
    NewRequest,
    Outcome,
    Submit,
)
from shared.effects import WakeAt
from shared.ids import FrontendId, JobId
from shared.wire.messages import (
    InputPull,
    InputReply,
    JobDropped,
    JobInput,
    JobResults,
    JobsCancel,
    JobsDropped,
    JobsSubmit,
    JobSubmit,
)

JOBS_PER_MESSAGE_MAX = 1024
INPUT_MISSING = "input_missing"
STATUS_OF = {"invalid_input": 400}  # HTTP status by a worker's error code; others are 500
STALE_TIMERS_MIN = 1024


@dataclass(slots=True)
class _Group:
    new: NewRequest
    open: dict[JobId, NewJob]
    news_at_ns: int
    submitted_at_ns: int
    was_submitted: bool = False
    missed_at_ns: int | None = None
    values: dict[JobId, str] = field(default_factory=dict)

    def check_at_ns(self, limits: JobLimits) -> int:
        """When to submit again or to give up, unless an event comes before."""
        if self.missed_at_ns is not None:
            return self.missed_at_ns + limits.missed_ns
        heard_at_ns = max(self.news_at_ns, self.submitted_at_ns)
        half_ns = (self.new.deadline_at_ns - heard_at_ns) // 2
        again_at_ns = heard_at_ns + max(half_ns, limits.silent_min_ns)
        if again_at_ns < self.new.deadline_at_ns:
            return again_at_ns
        return self.new.deadline_at_ns + limits.grace_ns


class Jobs:
    """Every open request for jobs of this frontend.

    Args:
        frontend_id: where workers send results.
    """

    def __init__(self, frontend_id: FrontendId, limits: JobLimits) -> None:
        self._frontend_id = frontend_id
        self._limits = limits
        self._groups: dict[str, _Group] = {}
        self._of_job: dict[JobId, _Group] = {}  # jobs without a result only
        self._unsent: dict[int, dict[str, None]] = {}  # by shard: requests, in order
        self._flush_at_ns: int | None = None
        self._checks: list[tuple[int, str]] = []  # heap; entries of ended requests stay in it
        self._wake_at_ns: int | None = None

    def __len__(self) -> int:
        return len(self._of_job)

    def on_new(self, new: NewRequest, now_ns: int) -> list[Effect]:
        """Submit new jobs, together with others that come within `gather_ns`."""
        assert new.request_id not in self._groups, f"{new.request_id} twice"
        assert new.jobs, "a request without inputs"
        jobs = {job.input.job_id: job for job in new.jobs}
        assert len(jobs) == len(new.jobs), f"{new.request_id} names a job twice"
        group = _Group(new, jobs, news_at_ns=now_ns, submitted_at_ns=now_ns)
        self._groups[new.request_id] = group
        self._of_job |= dict.fromkeys(jobs, group)
        if new.deadline_at_ns - now_ns < new.fastest_ns:
            return self._miss(group, "its inputs were ready too late for the target")
        self._queue(group, now_ns + self._limits.gather_ns)
        self._check_at(group, group.check_at_ns(self._limits))
        return self._announce()

    def on_pull(self, pull: InputPull, now_ns: int) -> list[Effect]:
        """A worker pulls inputs: answer as many as fit into one message, at least one."""
        inputs: list[JobInput] = []
        num_bytes = 0
        for job_id in pull.job_ids:
            group = self._of_job.get(job_id)
            if group is None or group.new.deadline_at_ns <= now_ns:
                num_bytes += len(job_id) + INPUT_FIELDS_BYTES
                given = JobInput(job_id=job_id, gone=True)
            else:
                group.news_at_ns = now_ns
                num_bytes += group.open[job_id].num_bytes
                given = group.open[job_id].input
            if inputs and num_bytes > self._limits.reply_bytes_max:
                break
            inputs.append(given)
        return [AnswerPull(InputReply(inputs=inputs))]

    def on_results(self, message: JobResults, now_ns: int) -> list[Effect]:
        """A batch is done; a job's first result counts."""
        effects: list[Effect] = []
        for result in message.results:
            group = self._of_job.get(result.job_id)
            if group is None:
                continue
            group.news_at_ns = now_ns
            if result.code == INPUT_MISSING:
                effects += self._on_missed(group, now_ns)
                continue
            if result.code:
                why = JobDropped(
                    job_id=result.job_id,
                    code=result.code,
                    message=result.message,
                    http_status=STATUS_OF.get(result.code, 500),
                )
                effects += self._fail(group, "failed", why, spare=(result.job_id,))
                continue
            del self._of_job[result.job_id]
            del group.open[result.job_id]
            group.values[result.job_id] = result.values
            if not group.open:
                effects.append(self._done(group, now_ns))
        return [*effects, *self._announce()]

    def on_dropped(self, message: JobsDropped) -> list[Effect]:
        """The scheduler dropped these jobs: fail their requests."""
        effects: list[Effect] = []
        spare = {dropped.job_id for dropped in message.jobs}
        for dropped in message.jobs:
            group = self._of_job.get(dropped.job_id)
            if group is not None:
                effects += self._fail(group, "dropped", dropped, spare)
        return effects

    def on_cancel(self, request_id: str) -> list[Effect]:
        """The client is gone; unknown and ended requests are ignored."""
        group = self._groups.get(request_id)
        return [] if group is None else self._close(group)

    def on_resubmit_all(self, now_ns: int) -> list[Effect]:
        """Another scheduler leads, or the bus was away: it may know of none of the open jobs."""
        for group in self._groups.values():
            if group.new.deadline_at_ns > now_ns:
                self._queue(group, now_ns)
        return [*self._flush(now_ns), *self._announce()]

    def on_stop(self) -> list[Effect]:
        """This frontend ends: fail all open requests."""
        effects: list[Effect] = []
        for group in list(self._groups.values()):
            why = self._why(group, "stopping", "this frontend is stopping")
            effects += self._fail(group, "unanswered", why)
        return effects

    def on_wake(self, now_ns: int) -> list[Effect]:
        """The instant of the last `WakeAt`: submit, submit again, give up."""
        self._wake_at_ns = None
        effects: list[Effect] = []
        while self._checks and self._checks[0][0] <= now_ns:
            group = self._groups.get(heappop(self._checks)[1])
            if group is not None:
                effects += self._check(group, now_ns)
        if self._flush_at_ns is not None and self._flush_at_ns <= now_ns:
            effects += self._flush(now_ns)
        return [*effects, *self._announce()]

    def _on_missed(self, group: _Group, now_ns: int) -> list[Effect]:
        """A batch ran without an input that is here: submit its job for another batch, if there is
        time.
        """
        again_at_ns = now_ns + self._limits.missed_ns
        if again_at_ns + group.new.fastest_ns > group.new.deadline_at_ns:
            return self._miss(group, "its inputs did not reach the worker in time")
        if group.missed_at_ns is None:
            group.missed_at_ns = now_ns
            self._check_at(group, again_at_ns)
        return []

    def _check(self, group: _Group, now_ns: int) -> list[Effect]:
        give_up_at_ns = group.new.deadline_at_ns + self._limits.grace_ns
        if now_ns >= give_up_at_ns:
            return self._miss(group, "nothing answered by the deadline")
        check_at_ns = group.check_at_ns(self._limits)
        if check_at_ns <= now_ns < group.new.deadline_at_ns:
            self._queue(group, now_ns)
            group.submitted_at_ns, group.missed_at_ns = now_ns, None
            check_at_ns = group.check_at_ns(self._limits)
        # After a late wake-up the deadline may be past: it is too late to submit again.
        self._check_at(group, check_at_ns if check_at_ns > now_ns else give_up_at_ns)
        return []

    def _check_at(self, group: _Group, at_ns: int) -> None:
        heappush(self._checks, (at_ns, group.new.request_id))
        if len(self._checks) > 2 * len(self._groups) + STALE_TIMERS_MIN:
            self._checks = [check for check in self._checks if check[1] in self._groups]
            heapify(self._checks)

    def _queue(self, group: _Group, flush_at_ns: int) -> None:
        self._unsent.setdefault(group.new.shard, {})[group.new.request_id] = None
        if self._flush_at_ns is None or flush_at_ns < self._flush_at_ns:
            self._flush_at_ns = flush_at_ns

    def _flush(self, now_ns: int) -> list[Effect]:
        """One message a shard for all that waits, or several if there are many jobs."""
        self._flush_at_ns = None
        unsent, self._unsent = self._unsent, {}
        effects: list[Effect] = []
        for shard, request_ids in unsent.items():
            jobs: list[JobSubmit] = []
            for request_id in request_ids:
                group = self._groups[request_id]
                if group.new.deadline_at_ns <= now_ns:
                    continue  # the alarm was late: no worker can finish these in time
                group.was_submitted = True
                group.submitted_at_ns = now_ns
                jobs += _submits(group, now_ns)
            for at in range(0, len(jobs), JOBS_PER_MESSAGE_MAX):
                some = jobs[at : at + JOBS_PER_MESSAGE_MAX]
                effects.append(Submit(shard, JobsSubmit(frontend_id=self._frontend_id, jobs=some)))
        return effects

    def _announce(self) -> list[Effect]:
        instants = [] if self._flush_at_ns is None else [self._flush_at_ns]
        if self._checks:
            instants.append(self._checks[0][0])
        if not instants or (self._wake_at_ns is not None and self._wake_at_ns <= min(instants)):
            return []
        self._wake_at_ns = min(instants)
        return [WakeAt(self._wake_at_ns)]

    def _done(self, group: _Group, now_ns: int) -> Done:
        new = group.new
        self._close(group)
        return Done(
            request_id=new.request_id,
            values=[group.values[job.input.job_id] for job in new.jobs],
            took_ns=now_ns - new.arrived_at_ns,
            is_late=now_ns > new.deadline_at_ns,
        )

    def _miss(self, group: _Group, message: str) -> list[Effect]:
        return self._fail(group, "unanswered", self._why(group, "deadline_exceeded", message))

    def _why(self, group: _Group, code: str, message: str) -> JobDropped:
        return JobDropped(job_id=next(iter(group.open)), code=code, message=message)

    def _fail(
        self, group: _Group, outcome: Outcome, why: JobDropped, spare: Container[JobId] = ()
    ) -> list[Effect]:
        new = group.new
        fail = Fail(request_id=new.request_id, num_jobs=len(new.jobs), outcome=outcome, why=why)
        return [fail, *self._close(group, spare)]

    def _close(self, group: _Group, spare: Container[JobId] = ()) -> list[Effect]:
        """Forget a request, and cancel what the scheduler may still hold of it: all but `spare`."""
        new = group.new
        del self._groups[new.request_id]
        for job_id in group.open:
            del self._of_job[job_id]
        if (waiting := self._unsent.get(new.shard)) is not None:
            waiting.pop(new.request_id, None)
        job_ids = [job_id for job_id in group.open if job_id not in spare]
        if not job_ids or not group.was_submitted:
            return []
        return [Cancel(new.shard, JobsCancel(job_ids=job_ids))]


def _submits(group: _Group, now_ns: int) -> list[JobSubmit]:
    """Submit messages for a request's open jobs."""
    return [
        JobSubmit(
            job_id=job_id,
            model_id=group.new.model_id,
            fingerprint=group.new.fingerprint,
            variant=job.variant,
            slo_ns=max(group.new.deadline_at_ns - now_ns, 0),
        )
        for job_id, job in group.open.items()
    ]
