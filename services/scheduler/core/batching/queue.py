"""One model's queue and its candidate batch."""

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

from services.scheduler.core.batching.gathering import Gathering
from services.scheduler.core.batching.job import NEVER_NS, Delays, Job, ModelSpec, deadline_of
from services.scheduler.core.batching.windows import Window

if TYPE_CHECKING:
    from collections.abc import Hashable

LOSS_SHARE = 0.0095  # of the jobs may be lost where 99% are promised, with some reserve
RATE_NS = 1_000_000_000  # over which the rate of arrivals is counted, at least
ACTIVE_NS = 3 * RATE_NS  # a model without a batch for so long wants no GPU
RATE_CHANGE = 0.2  # relative change of the rate that makes new rules
HORIZON_NS = 20_000_000_000  # over which that share is counted, at least


@dataclass(frozen=True, slots=True)
class WindowView:
    """The window of a model's waiting jobs, for display.

    Attributes:
        num_jobs: waiting jobs.
        opens_at_ns, closes_at_ns: between these the batch may start.
    """

    key: "Hashable"
    num_jobs: int
    opens_at_ns: int
    closes_at_ns: int
    is_offered: bool


class ModelQueue:
    """Jobs of one model in order of deadlines, and the state of its timer and loss counters.

    Attributes:
        base_ns, lead_ns: the window of the whole queue opens at ``base_ns - lead_ns[len(jobs)]``.
        armed_at_ns: no later than the instant at which the candidate changes by time alone.
        num_quiet: below this many jobs a new one changes nothing before `armed_at_ns`.
        num_jobs_max: further jobs are refused on arrival; finite only under overload.
        is_offered: the rank table has a candidate of this model.
        rate_num_taken, rate_since_ns: jobs counted towards the next measured rate.
        num_taken, num_bad: jobs that left the queue since `since_ns`, and those of them that were
            dropped; halved periodically, so that they cover the recent past.
    """

    __slots__ = (
        "armed_at_ns", "base_ns", "delays", "gathering", "is_offered", "jobs", "key", "lead_ns",
        "num_bad", "num_gpus", "num_jobs_max", "num_quiet",
        "num_taken", "rate_num_bad", "rate_num_taken", "rate_since_ns", "since_ns", "spec",
        "tail_ns", "window",
    )  # fmt: skip

    def __init__(
        self, spec: ModelSpec, window: Window, gathering: Gathering, delays: Delays
    ) -> None:
        self.key: Hashable = spec.key
        self.jobs: deque[Job] = deque()
        self.delays = delays
        self.tail_ns = 0  # deadline of the last job
        self.base_ns = -NEVER_NS
        self.armed_at_ns = NEVER_NS
        self.is_offered = False
        self.num_jobs_max = NEVER_NS
        self.num_taken = 0.0
        self.num_bad = 0.0
        self.since_ns = NEVER_NS  # nothing counted yet
        self.rate_num_taken = 0
        self.rate_num_bad = 0
        self.rate_since_ns = NEVER_NS
        self.tune(spec, window, gathering, num_gpus=1)

    def tune(self, spec: ModelSpec, window: Window, gathering: Gathering, num_gpus: int) -> None:
        """Apply new batch times or other rules."""
        self.spec = spec
        self.window = window
        self.gathering = gathering
        self.num_gpus = num_gpus
        self.lead_ns = window.lead_ns(spec, self.delays)
        self.lead_ns += [NEVER_NS] * (len(self.jobs) + 1)  # more may wait than fit a batch now
        self.num_quiet = self.num_jobs_max + 1 if self.is_offered else 0

    def find_opening(self) -> int:
        """When the window of all waiting jobs opens; there must be one. Sets `base_ns`."""
        self.base_ns = self.window.base_ns(self.jobs[0])
        return self.base_ns - self.lead_ns[min(len(self.jobs), self.spec.size_max)]

    def view(self) -> WindowView:
        """Its window now; there must be a job."""
        num_jobs, head = len(self.jobs), self.jobs[0]
        size = min(num_jobs, self.spec.size_max)
        return WindowView(
            self.key,
            num_jobs,
            self.window.base_ns(head) - self.lead_ns[size],
            head.deadline_ns - self.spec.batch_ns[size] - self.delays.of(size),
            self.is_offered,
        )

    def arm(self, at_ns: int) -> None:
        """Time alone changes the candidate no earlier than this."""
        self.armed_at_ns = at_ns
        num_quiet = bisect_left(self.lead_ns, self.base_ns - at_ns)
        self.num_quiet = min(num_quiet, self.num_jobs_max + 1)

    def disarm(self) -> None:
        """There is no candidate: the next job makes one."""
        self.armed_at_ns = NEVER_NS
        self.num_quiet = 0

    def insert(self, job: Job) -> None:
        """Queue a job whose deadline is before the last one's."""
        insort(self.jobs, job, key=deadline_of)

    def pop(self, num_jobs: int) -> list[Job]:
        """Take jobs off the head."""
        popleft = self.jobs.popleft
        taken = [popleft() for _ in range(num_jobs)]
        self.num_taken += num_jobs
        self.rate_num_taken += num_jobs
        if not self.jobs:
            self.tail_ns = 0
            self.base_ns = -NEVER_NS
        return taken

    def is_active(self, now_ns: int) -> bool:
        """Whether a batch of this model was sent recently."""
        return self.rate_since_ns <= now_ns < self.rate_since_ns + ACTIVE_NS

    def new_facts(self, num_models: int, now_ns: int) -> ModelSpec | None:
        """The spec with the newly measured rate; None if there is none or it changed little."""
        rate_rps = self._new_rate_rps(now_ns)
        if rate_rps is None:
            return None
        is_news = abs(rate_rps - self.spec.rate_rps) > RATE_CHANGE * rate_rps
        if not is_news and num_models == self.spec.num_models:
            return None
        return replace(self.spec, rate_rps=rate_rps, num_models=num_models)

    def _new_rate_rps(self, now_ns: int) -> float | None:
        if self.rate_since_ns > now_ns:
            self.rate_since_ns = now_ns
            self.rate_num_taken = self.rate_num_bad = 0
        passed_ns = now_ns - self.rate_since_ns
        if passed_ns < RATE_NS:
            return None
        rate_rps = self.rate_num_taken * 1e9 / passed_ns
        served_rps = rate_rps - self.rate_num_bad * 1e9 / passed_ns
        is_broken = self.room_to_lose(now_ns) == inf
        self.num_jobs_max = NEVER_NS
        # The rate served at low load says nothing about the capacity.
        if is_broken and self.is_active(now_ns):
            self.num_jobs_max = self.gathering.queue_max(self.spec, served_rps)
        self.rate_num_taken = self.rate_num_bad = 0
        self.rate_since_ns = now_ns
        known_rps = self.spec.rate_rps
        return rate_rps if known_rps == inf else (rate_rps + known_rps) / 2

    def lose(self, num_jobs: int) -> None:
        """Count jobs that were taken from the queue and will not run."""
        self.num_bad += num_jobs
        self.rate_num_bad += num_jobs

    def refuse(self) -> Job:
        """Remove the last job, which exceeds the limit."""
        job = self.jobs.pop()
        self.tail_ns = self.jobs[-1].deadline_ns if self.jobs else 0
        self.num_taken += 1
        self.rate_num_taken += 1
        self.lose(1)
        return job

    def room_to_lose(self, now_ns: int) -> float:
        """How many more jobs can be lost before too many of the recent ones are; infinite if too
        many are lost already.
        """
        self.since_ns = min(self.since_ns, now_ns)
        age_ns = max(now_ns - self.since_ns, RATE_NS)
        if age_ns > 2 * HORIZON_NS:  # forget half of what is remembered
            self.num_taken /= 2
            self.num_bad /= 2
            age_ns //= 2
            self.since_ns = now_ns - age_ns
        num_jobs = (self.num_taken + len(self.jobs)) * max(HORIZON_NS / age_ns, 1.0)
        room = LOSS_SHARE * num_jobs - self.num_bad
        return room if room >= 0 else inf

    def remove(self, job: Job) -> bool:
        """Remove one job; False if it is not queued."""
        try:
            self.jobs.remove(job)
        except ValueError:
            return False
        self.tail_ns = self.jobs[-1].deadline_ns if self.jobs else 0
        return True
