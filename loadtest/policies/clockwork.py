"""Central batching by the earliest latest moment, after Clockwork.

For each model and each batch size there is a candidate: the first jobs that would be done in time
in a batch of that size. Its latest moment is the last instant at which it can start. A GPU takes
the candidate whose latest moment is the earliest; jobs that it passes over, being too urgent for a
batch of its size, are given up with the other candidates they were in.

What makes Clockwork what was measured are two constants of its controller, both with their
published values here. It does not wait until a GPU is free but keeps it filled `ahead_ns` into the
future, so that as long as a GPU has less than that to do, a job is bound to it on arrival, alone.
And it aims at an instant `slack_ns` before the deadline. On eight GPUs this gives 1342 and 475
requests per second where the paper's Table 2 has 1358 and 458, most batches being of one job;
without the two it would be 3680 and 552.

Source: deferred batch scheduling, sections 2.2 and 5; Gujarati et al., Clockwork, OSDI 2020,
section 5.3, and the defaults of its public implementation.
"""

from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple

from loadtest.policies.fifo import CentralBatcher, DeadlineQueue
from services.scheduler.core.batching.effects import Dispatch, Drop, Effect
from services.scheduler.core.batching.job import Delays, Job

AHEAD_NS = 10_000_000
SLACK_NS = 5_000_000


@dataclass(slots=True)
class _Gpu:
    models: frozenset[Hashable]
    free_at_ns: int


class _Candidate(NamedTuple):
    latest_at_ns: int
    num_skipped: int
    size: int
    queue: DeadlineQueue


class ClockworkBatcher(CentralBatcher):
    """Central batching that keeps every GPU's queue filled.

    Args:
        delays: from a dispatch to the GPU's start. Hidden while the GPU has work.
        ahead_ns: a GPU is given work while it has less than this to do, ns; 0: when it is free.
        slack_ns: how long before its deadline a job shall be done, ns.
    """

    def __init__(self, delays: Delays, ahead_ns: int = AHEAD_NS, slack_ns: int = SLACK_NS) -> None:
        super().__init__(delays, slack_ns)
        self._ahead_ns = ahead_ns
        self._waiting: dict[Hashable, DeadlineQueue] = {}  # those with jobs
        self._gpus: dict[int, _Gpu] = {}
        self._by_free: list[tuple[int, int]] = []  # (free_at_ns, gpu)

    def add_gpu(self, gpu: int, models: Collection[Hashable], now_ns: int) -> Sequence[Effect]:
        """Add an idle GPU."""
        self._gpus[gpu] = _Gpu(frozenset(models), now_ns)
        heappush(self._by_free, (now_ns, gpu))
        return self._fill(now_ns)

    def on_job(self, job: Job, now_ns: int) -> Sequence[Effect]:
        """A job has come. Its model must be known."""
        queue = self._waiting[job.model] = self._queues[job.model]
        queue.push(job)
        self._timers.arm(queue)
        return self._fill(now_ns)

    def on_batch_done(self, gpu: int, now_ns: int) -> Sequence[Effect]:
        """A GPU's oldest batch is over, as was known."""
        return self._fill(now_ns)

    def on_wake(self, now_ns: int) -> Sequence[Effect]:
        """The instant `wake_at_ns` has come: a GPU wants work, or jobs are late."""
        return self._fill(now_ns)

    def _fill(self, now_ns: int) -> Sequence[Effect]:
        """Give work to every GPU that has too little, the first to be free first."""
        if self._timers.next_at_ns <= now_ns:
            self._drop(self._timers.due(now_ns), now_ns)
        heap, no_use = self._by_free, []
        while self._waiting and heap and heap[0][0] <= now_ns + self._ahead_ns:
            _, gpu = entry = heappop(heap)
            candidate = self._first(self._gpus[gpu], now_ns)
            if candidate is None:
                no_use.append(entry)
            else:
                self._dispatch(gpu, candidate, now_ns)
        self._arm(now_ns)
        for entry in no_use:
            heappush(heap, entry)
        out, self._out = self._out, []
        return out

    def _arm(self, now_ns: int) -> None:
        """A GPU that has no use for what waits will have none before something else happens."""
        self.wake_at_ns = self._timers.next_at_ns
        if self._waiting and self._by_free:
            self.wake_at_ns = min(self.wake_at_ns, self._by_free[0][0] - self._ahead_ns)

    def _first(self, gpu: _Gpu, now_ns: int) -> _Candidate | None:
        """The candidate with the earliest latest moment that is still to come."""
        best: _Candidate | None = None
        for key, queue in self._waiting.items():
            if key in gpu.models:
                for candidate in self._candidates(queue, gpu.free_at_ns, now_ns):
                    if best is None or candidate.latest_at_ns <= best.latest_at_ns:
                        best = candidate
        return best

    def _candidates(
        self, queue: DeadlineQueue, free_at_ns: int, now_ns: int
    ) -> Iterable[_Candidate]:
        """A model's candidates by size; only the first in time where that is plain to see."""
        jobs, batch_ns, delays = queue.jobs, queue.spec.batch_ns, self._delays
        size = min(len(jobs), queue.spec.size_max)
        due_ns = jobs[0].deadline_ns - queue.slack_ns
        if max(now_ns + delays.of(size), free_at_ns) + batch_ns[size] <= due_ns:
            return [_Candidate(due_ns - batch_ns[size], 0, size, queue)]
        found = []
        num_skipped = 0
        for size in range(1, queue.spec.size_max + 1):
            end_ns = max(now_ns + delays.of(size), free_at_ns) + batch_ns[size] + queue.slack_ns
            while num_skipped < len(jobs) and jobs[num_skipped].deadline_ns < end_ns:
                num_skipped += 1
            if len(jobs) - num_skipped < size:
                break
            latest_at_ns = jobs[num_skipped].deadline_ns - queue.slack_ns - batch_ns[size]
            found.append(_Candidate(latest_at_ns, num_skipped, size, queue))
        return found

    def _dispatch(self, gpu: int, candidate: _Candidate, now_ns: int) -> None:
        _, num_skipped, size, queue = candidate
        self._drop(queue.take(0, num_skipped), now_ns)
        jobs = queue.take(0, size)
        if not queue.jobs:
            self._waiting.pop(queue.spec.key, None)
        state = self._gpus[gpu]
        start_at_ns = max(now_ns + self._delays.of(size), state.free_at_ns)
        state.free_at_ns = start_at_ns + queue.spec.batch_ns[size]
        heappush(self._by_free, (state.free_at_ns, gpu))
        self._number += 1
        self._out.append(
            Dispatch(self._number, gpu, queue.spec.key, jobs, start_at_ns, state.free_at_ns)
        )

    def _drop(self, jobs: list[Job], now_ns: int) -> None:
        """Give these up, which belong to queues that may be empty now."""
        late: list[Job] = []
        crowded: list[Job] = []
        for job in jobs:
            queue = self._queues[job.model]
            due_ns = now_ns + queue.cost_ns[1] + queue.slack_ns
            (late if job.deadline_ns < due_ns else crowded).append(job)
            if not queue.jobs:
                self._waiting.pop(job.model, None)
        if late:
            self._out.append(Drop(late, "late"))
        if crowded:
            self._out.append(Drop(crowded, "crowded"))
