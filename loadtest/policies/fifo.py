"""Queues in order of deadlines, and when their heads become hopeless: for the batchers that compare
with deferred batching. Their models and GPUs are there from the beginning to the end, and batches
take what profiles say, as in the simulator, which alone runs them.
"""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Hashable
from heapq import heappop, heappush

from services.scheduler.core.batching.effects import Effect
from services.scheduler.core.batching.job import (
    NEVER_NS,
    Delays,
    Job,
    ModelSpec,
    deadline_of,
)


class DeadlineQueue:
    """Waiting jobs of one model, the most urgent first.

    Args:
        spec: the model.
        delays: from a dispatch to the GPU's start.
        slack_ns: by how much earlier than its deadline a job shall be done.

    Attributes:
        cost_ns: from the dispatch of a batch of each size to its end, ns.
        armed_at_ns: instant of its timer; `NEVER_NS` if it has none.
    """

    __slots__ = ("armed_at_ns", "cost_ns", "delays", "jobs", "slack_ns", "spec")

    def __init__(self, spec: ModelSpec, delays: Delays, slack_ns: int = 0) -> None:
        self.jobs: deque[Job] = deque()
        self.delays = delays
        self.slack_ns = slack_ns
        self.armed_at_ns = NEVER_NS
        self.spec = spec
        sizes = range(1, spec.size_max + 1)
        self.cost_ns = [0, *(self.delays.of(size) + spec.batch_ns[size] for size in sizes)]

    def push(self, job: Job) -> None:
        """Queue a job behind all that are due no later."""
        jobs = self.jobs
        if not jobs or jobs[-1].deadline_ns <= job.deadline_ns:
            jobs.append(job)
            return
        ordered = list(jobs)
        insort(ordered, job, key=deadline_of)
        self.jobs = deque(ordered)

    def take(self, num_skipped: int, size: int) -> list[Job]:
        """Remove a batch; the jobs before it stay."""
        jobs = self.jobs
        if num_skipped == 0:
            return [jobs.popleft() for _ in range(size)]
        jobs.rotate(-num_skipped)
        batch = [jobs.popleft() for _ in range(size)]
        jobs.rotate(num_skipped)
        return batch

    def take_late(self, now_ns: int) -> list[Job]:
        """Remove the jobs that could not be done in time even alone, dispatched now."""
        due_ns = now_ns + self.cost_ns[1] + self.slack_ns
        jobs, late = self.jobs, []
        while jobs and jobs[0].deadline_ns < due_ns:
            late.append(jobs.popleft())
        return late

    def largest(self, now_ns: int) -> tuple[int, int]:
        """The largest batch that meets its deadlines if dispatched now: (jobs skipped, size).

        Skipped are jobs so urgent that a batch with them would have to be smaller. Of equally large
        batches the most urgent one.
        """
        cost_ns, num_jobs = self.cost_ns, len(self.jobs)
        if not num_jobs:
            return 0, 0
        jobs, start_ns = self.jobs, now_ns + self.slack_ns
        # No batch is larger than what the least urgent job could be in.
        size_max = bisect_right(cost_ns, jobs[-1].deadline_ns - start_ns) - 1
        num_skipped = best = first = 0
        while best < min(num_jobs - first, size_max):
            due_ns = start_ns + cost_ns[best + 1]
            if jobs[first].deadline_ns < due_ns:
                first = bisect_left(jobs, due_ns, first + 1, key=deadline_of)
                continue
            fits = bisect_right(cost_ns, jobs[first].deadline_ns - start_ns) - 1
            num_skipped, best = first, min(fits, num_jobs - first)
        return num_skipped, best


class DropTimers:
    """Remembers when each queue's head becomes late. A queue has one timer; O(log M) to set it."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, DeadlineQueue]] = []
        self._num_armed = 0

    @property
    def next_at_ns(self) -> int:
        """When to call `due`; perhaps earlier than a job becomes late."""
        return self._heap[0][0] if self._heap else NEVER_NS

    def arm(self, queue: DeadlineQueue) -> None:
        """See to it that the head of this queue, if there is one, is looked at in time."""
        if not queue.jobs:
            return
        at_ns = queue.jobs[0].deadline_ns - queue.slack_ns - queue.cost_ns[1] + 1
        if at_ns < queue.armed_at_ns:
            queue.armed_at_ns = at_ns
            self._num_armed += 1
            heappush(self._heap, (at_ns, self._num_armed, queue))

    def due(self, now_ns: int) -> list[Job]:
        """Take the jobs that have become late out of their queues."""
        heap, late = self._heap, []
        while heap and heap[0][0] <= now_ns:
            at_ns, _, queue = heappop(heap)
            if queue.armed_at_ns == at_ns:
                queue.armed_at_ns = NEVER_NS
                late += queue.take_late(now_ns)
                self.arm(queue)
        return late


class CentralBatcher:
    """What batchers have in common that see every model's one queue.

    Args:
        delays: from a dispatch to the GPU's start.
        slack_ns: by how much earlier than its deadline a job shall be done.

    Attributes:
        wake_at_ns: when to call `on_wake`.
    """

    def __init__(self, delays: Delays, slack_ns: int = 0) -> None:
        self._delays = delays
        self._slack_ns = slack_ns
        self._queues: dict[Hashable, DeadlineQueue] = {}
        self._timers = DropTimers()
        self._number = 0  # of the last batch
        self._out: list[Effect] = []
        self.wake_at_ns = NEVER_NS

    def add_model(self, spec: ModelSpec) -> None:
        """Add a model."""
        self._queues[spec.key] = DeadlineQueue(spec, self._delays, self._slack_ns)
