"""Queues, candidates and timers of some models: the paper's ModelThreads.

A model's batch becomes schedulable when its window opens; then it is offered to the rank table,
which grants a GPU at once or later, and the batch is dispatched. The code is the same whether the
table is in this process or in another one (`RankPort`).

Source: deferred batch scheduling, Algorithm 1 and appendix D.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from math import inf
from typing import Protocol

from services.scheduler.core.batching.candidates import ExecutionCandidate
from services.scheduler.core.batching.effects import Dispatch, Drop, Effect
from services.scheduler.core.batching.job import NEVER_NS, Delays, Job, ModelSpec, num_due_by
from services.scheduler.core.batching.queue import RATE_NS, ModelQueue, WindowView
from services.scheduler.core.batching.rank import Grant
from services.scheduler.core.batching.rules import MakeRules

STALE_TIMERS_MAX = 64  # of queues that were armed for another instant since
NOTHING: tuple[Effect, ...] = ()


class RankPort(Protocol):
    """Where candidates are offered. A table in another process never grants at once."""

    def offer(self, candidate: ExecutionCandidate, now_ns: int) -> Grant | None: ...

    def withdraw(self, model: Hashable) -> None: ...

    def give_back(self, grant: Grant) -> None: ...

    def book(self, gpu: int, end_at_ns: int) -> None: ...

    def on_batch_done(self, gpu: int, now_ns: int) -> None: ...

    @property
    def wake_at_ns(self) -> int: ...

    def match(self, now_ns: int) -> Grant | None: ...


class ModelShard:
    """Decides when some models' batches are schedulable, and which jobs they contain.

    Args:
        rank: the rank table, or its proxy.
        make_rules: window and gathering for a model.
        delays: from a dispatch to the GPU's start.
    """

    def __init__(self, rank: RankPort, make_rules: MakeRules, delays: Delays) -> None:
        self._rank = rank
        self._make_rules = make_rules
        self._delays = delays
        self._queues: dict[Hashable, ModelQueue] = {}
        self._timers: list[tuple[int, int, ModelQueue]] = []
        self._num_timers = 0
        self._number = 0
        self._out: list[Effect] = []
        self._num_active = 1
        self._count_at_ns = 0
        self.wake_at_ns = NEVER_NS  # when to call `on_wake`; may be earlier than needed

    def add_model(self, spec: ModelSpec) -> None:
        """Add a model, or update its times."""
        queue = self._queues.get(spec.key)
        if queue is None:
            rules = self._make_rules(spec, 1)
            self._queues[spec.key] = ModelQueue(spec, *rules, self._delays)
        else:
            old = queue.spec
            known = replace(spec, rate_rps=old.rate_rps, num_models=old.num_models)
            self._retune(queue, known, queue.num_gpus)

    def set_num_gpus(self, key: Hashable, num_gpus: int) -> None:
        """Set the number of GPUs that serve this model."""
        queue = self._queues.get(key)
        if queue is None:
            return
        is_measured = queue.spec.rate_rps < inf
        if queue.num_gpus != num_gpus or not is_measured:
            self._retune(queue, queue.spec, num_gpus)

    def _retune(self, queue: ModelQueue, spec: ModelSpec, num_gpus: int) -> None:
        if spec.rate_rps == inf:  # nothing measured yet: all models may be in use
            spec = replace(spec, num_models=len(self._queues))
        rules = self._make_rules(spec, max(num_gpus, 1))
        queue.tune(spec, *rules, num_gpus)
        if queue.jobs:
            self._arm(queue, 0)  # look at it at once

    def remove_model(self, key: Hashable) -> Sequence[Effect]:
        """Remove a model; its waiting jobs are dropped."""
        queue = self._queues.pop(key)
        self._rank.withdraw(key)
        queue.armed_at_ns = NEVER_NS
        if queue.jobs:
            self._out.append(Drop(queue.pop(len(queue.jobs)), "no_gpu"))
        return self._finish()

    def on_job(self, job: Job, now_ns: int) -> Sequence[Effect]:
        """Queue a job, whose model must be known."""
        queue = self._queues[job.model]
        jobs = queue.jobs
        deadline_ns = job.deadline_ns
        if deadline_ns >= queue.tail_ns:
            queue.tail_ns = deadline_ns
            jobs.append(job)
            if len(jobs) < queue.num_quiet:
                return NOTHING
        else:
            queue.insert(job)
            if jobs[0] is job:  # the candidate is more urgent now
                return self._refreshed(queue, now_ns)
        if len(jobs) > queue.num_jobs_max:
            self._out.append(Drop([queue.refuse()], "crowded"))
            return self._finish()
        if queue.is_offered:
            return NOTHING
        opens_at_ns = queue.base_ns - queue.lead_ns[len(jobs)]
        if opens_at_ns <= now_ns:
            return self._refreshed(queue, now_ns)
        # Wake halfway, so that not every arrival sets a timer; never later than was set.
        self._arm(queue, min((opens_at_ns + now_ns) >> 1, queue.armed_at_ns))
        return NOTHING

    def num_ahead(self, key: Hashable, deadline_ns: int) -> int:
        """How many waiting jobs of a model are due no later than this."""
        queue = self._queues.get(key)
        return 0 if queue is None else num_due_by(queue.jobs, deadline_ns)

    def windows(self) -> Iterator[WindowView]:
        """The windows of all models with waiting jobs."""
        for queue in self._queues.values():
            if queue.jobs:
                yield queue.view()

    def on_cancel(self, job: Job, now_ns: int) -> Sequence[Effect]:
        """Cancel a job. One that was dispatched still runs."""
        queue = self._queues.get(job.model)
        if queue is None or not queue.remove(job):
            return NOTHING
        queue.base_ns = -NEVER_NS
        return self._refreshed(queue, now_ns)

    def on_grant(self, grant: Grant, now_ns: int) -> Sequence[Effect]:
        """A GPU was granted: dispatch what fits, or give it back."""
        self._accept(grant, now_ns)
        return self._finish()

    def on_wake(self, now_ns: int) -> Sequence[Effect]:
        """The instant `wake_at_ns` has come: candidates first, then GPUs."""
        timers = self._timers
        while timers and timers[0][0] <= now_ns:
            at_ns, _, queue = heappop(timers)
            if queue.armed_at_ns == at_ns:
                queue.armed_at_ns = NEVER_NS
                self._refresh(queue, now_ns)
        return self.on_gpus(now_ns)

    def on_batch_done(self, gpu: int, now_ns: int) -> Sequence[Effect]:
        """A GPU's oldest batch has ended."""
        self._rank.on_batch_done(gpu, now_ns)
        return self.on_gpus(now_ns)

    def on_gpus(self, now_ns: int) -> Sequence[Effect]:
        """GPUs were added, removed or freed: match them with waiting candidates."""
        while (grant := self._rank.match(now_ns)) is not None:
            self._accept(grant, now_ns)
        return self._finish()

    def _accept(self, grant: Grant, now_ns: int) -> None:
        queue = self._queues.get(grant.model)
        if queue is None:
            self._rank.give_back(grant)
            return
        queue.is_offered = False
        self._dispatch(queue, grant, now_ns)
        self._refresh(queue, now_ns)

    def _finish(self) -> Sequence[Effect]:
        """The end of every event that is not an ordinary arrival."""
        timers = self._timers
        while timers and timers[0][2].armed_at_ns != timers[0][0]:
            heappop(timers)
        self.wake_at_ns = min(timers[0][0] if timers else NEVER_NS, self._rank.wake_at_ns)
        if not self._out:
            return NOTHING
        out, self._out = self._out, []
        return out

    def _refreshed(self, queue: ModelQueue, now_ns: int) -> Sequence[Effect]:
        self._refresh(queue, now_ns)
        return self._finish()

    def _refresh(self, queue: ModelQueue, now_ns: int) -> None:
        """Recompute the candidate, and offer or dispatch it if its window is open."""
        while True:
            size = self._gather(queue, now_ns)
            if size == 0:
                self._retract(queue)
                queue.disarm()
                return
            head = queue.jobs[0]
            opens_at_ns = queue.find_opening()
            if opens_at_ns > now_ns:
                self._retract(queue)
                last_at_ns = head.deadline_ns - queue.spec.batch_ns[1] - self._delays.of(1)
                self._arm(queue, min(opens_at_ns, last_at_ns + 1))  # a timeout may be too long
                return
            latest_at_ns = head.deadline_ns - queue.spec.batch_ns[size]
            delay_ns = self._delays.of(size)
            while latest_at_ns - delay_ns < now_ns and size > 1:  # inputs would arrive too late
                size -= 1
                latest_at_ns = head.deadline_ns - queue.spec.batch_ns[size]
                delay_ns = self._delays.of(size)
            candidate = ExecutionCandidate(queue.key, latest_at_ns, delay_ns)
            grant = self._rank.offer(candidate, now_ns)
            if grant is None:
                queue.is_offered = True
                self._arm(queue, max(latest_at_ns - delay_ns, now_ns) + 1)
                queue.num_quiet = queue.num_jobs_max + 1
                return
            queue.is_offered = False
            self._dispatch(queue, grant, now_ns)

    def _gather(self, queue: ModelQueue, earliest_at_ns: int) -> int:
        """Drop the jobs that the rules leave out; returns the size of the batch."""
        if not queue.jobs:
            return 0
        # The delay of the smallest batch: the real one's is part of its window's lead.
        start_at_ns = earliest_at_ns + self._delays.of(1)
        num_left_out, size = queue.gathering.gather(
            queue.spec, queue.jobs, start_at_ns, queue.room_to_lose(earliest_at_ns)
        )
        if num_left_out:
            due_ns = start_at_ns + queue.spec.batch_ns[1]
            left_out = queue.pop(num_left_out)
            queue.lose(num_left_out)
            is_late = left_out[-1].deadline_ns < due_ns
            self._out.append(Drop(left_out, "late" if is_late else "crowded"))
        return size

    def _dispatch(self, queue: ModelQueue, grant: Grant, now_ns: int) -> None:
        start_ns = max(now_ns, grant.free_at_ns - self._delays.of(1))
        size = self._gather(queue, start_ns)
        while size > 1 and self._ends_late(queue, size, now_ns, grant):
            size -= 1
        if size == 0 or queue.find_opening() > now_ns:
            self._rank.give_back(grant)  # the candidate's head is late by now
            return
        start_at_ns = max(now_ns + self._delays.of(size), grant.free_at_ns)
        end_at_ns = start_at_ns + queue.spec.batch_ns[size]
        jobs = queue.pop(size)
        self._number += 1
        self._out.append(Dispatch(self._number, grant.gpu, queue.key, jobs, start_at_ns, end_at_ns))
        self._rank.book(grant.gpu, end_at_ns)
        spec = queue.new_facts(self._count_active(now_ns), now_ns)
        if spec is not None:  # every caller recomputes the candidate after this
            queue.tune(spec, *self._make_rules(spec, max(queue.num_gpus, 1)), queue.num_gpus)

    def _count_active(self, now_ns: int) -> int:
        """Models that recently had batches; counted at most once per `RATE_NS`."""
        if now_ns >= self._count_at_ns:
            self._num_active = sum(queue.is_active(now_ns) for queue in self._queues.values())
            self._count_at_ns = now_ns + RATE_NS
        return self._num_active

    def _ends_late(self, queue: ModelQueue, size: int, now_ns: int, grant: Grant) -> bool:
        start_at_ns = max(now_ns + self._delays.of(size), grant.free_at_ns)
        return start_at_ns + queue.spec.batch_ns[size] > queue.jobs[0].deadline_ns

    def _retract(self, queue: ModelQueue) -> None:
        if queue.is_offered:
            self._rank.withdraw(queue.key)
            queue.is_offered = False

    def _arm(self, queue: ModelQueue, at_ns: int) -> None:
        is_set = queue.armed_at_ns == at_ns  # a timer for that instant is in the heap
        queue.arm(at_ns)
        if is_set:
            return
        self._num_timers += 1
        heappush(self._timers, (at_ns, self._num_timers, queue))
        if len(self._timers) > 2 * len(self._queues) + STALE_TIMERS_MAX:
            self._timers[:] = (timer for timer in self._timers if timer[2].armed_at_ns == timer[0])
            heapify(self._timers)
        self.wake_at_ns = min(self.wake_at_ns, at_ns)
