"""Batching by a plan, without coordination between GPUs, after Nexus.

Every `epoch_ns` a plan says which GPUs run which models with which batch size (`nexus_plan.py`),
from the rates of the epoch before. A job is routed at once to one of the GPUs that run its model,
in proportion to the rates that the plan gives them, evenly in turn, and stays there. (Drawing GPUs
at random instead lowers the goodput by a quarter and more, below what was measured of Nexus.) A
GPU takes turns among its models. It runs what waits, up to the planned size, as soon as it is idle;
jobs too urgent for a batch of that size are dropped in favour of those behind.

Source: deferred batch scheduling, sections 2.2 and 5.3; Shen et al., Nexus, SOSP 2019.
"""

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace

from loadtest.policies.fifo import DeadlineQueue, DropTimers
from loadtest.policies.nexus_plan import make_plan
from services.scheduler.core.batching.effects import Dispatch, Drop, DropReason, Effect
from services.scheduler.core.batching.job import NEVER_NS, Delays, Job, ModelSpec

EPOCH_NS = 10_000_000_000
FIRST_EPOCH_NS = 1_000_000_000


@dataclass(slots=True)
class _Gpu:
    """A GPU and the models it runs by the plan, in the order of their turns."""

    models: frozenset[Hashable]
    is_busy: bool = False
    queues: dict[Hashable, DeadlineQueue] = field(default_factory=dict)
    batches: dict[Hashable, int] = field(default_factory=dict)
    turns: list[Hashable] = field(default_factory=list)
    next_turn: int = 0


class NexusBatcher:
    """Distributed batching by an epoch's plan.

    Until there are rates all models are taken to have the same; the first epoch is short.

    Args:
        delays: from a dispatch to the GPU's start. A GPU waits for it.
        epoch_ns: time between plans.
        first_epoch_ns: time until the first plan by measured rates.
    """

    def __init__(
        self,
        delays: Delays,
        epoch_ns: int = EPOCH_NS,
        first_epoch_ns: int = FIRST_EPOCH_NS,
    ) -> None:
        self._delays = delays
        self._rates: dict[Hashable, float] = {}
        self._epoch_ns = epoch_ns
        self._first_epoch_ns = first_epoch_ns
        self._specs: dict[Hashable, ModelSpec] = {}
        self._counts: dict[Hashable, int] = {}  # of this epoch's jobs
        self._epoch_at_ns: int | None = None  # its end; known from the first job on
        self._gpus: dict[int, _Gpu] = {}
        # By model: a heap of (virtual time of its next job, GPU, virtual time between two).
        self._routes: dict[Hashable, list[tuple[float, int, float]]] = {}
        self._is_stale = False  # the plan
        self._timers = DropTimers()
        self._number = 0
        self._now_ns = 0  # the latest instant given
        self._out: list[Effect] = []
        self.wake_at_ns = NEVER_NS

    def add_model(self, spec: ModelSpec) -> None:
        """Add a model."""
        self._counts[spec.key] = 0
        self._specs[spec.key] = spec
        self._outdate()

    def add_gpu(self, gpu: int, models: Collection[Hashable], now_ns: int) -> Sequence[Effect]:
        """Add an idle GPU."""
        self._now_ns = now_ns
        self._gpus[gpu] = _Gpu(frozenset(models))
        self._outdate()
        return self._finish()

    def on_job(self, job: Job, now_ns: int) -> Sequence[Effect]:
        """A job has come. Its model must be known."""
        self._settle(now_ns)
        self._counts[job.model] += 1
        if self._epoch_at_ns is None:
            self._epoch_at_ns = now_ns + self._first_epoch_ns
        gpu = self._route(job)
        if gpu is not None and not self._gpus[gpu].is_busy:
            self._run(gpu)
        return self._finish()

    def on_batch_done(self, gpu: int, now_ns: int) -> Sequence[Effect]:
        """A GPU's batch is over."""
        self._settle(now_ns)
        self._gpus[gpu].is_busy = False
        self._run(gpu)
        return self._finish()

    def on_wake(self, now_ns: int) -> Sequence[Effect]:
        """The instant `wake_at_ns` has come: a new plan is due, or jobs are late."""
        self._settle(now_ns)
        self._drop(self._timers.due(now_ns), "late")
        return self._finish()

    def _outdate(self) -> None:
        """Models or GPUs have changed; once all of them are known, there will be a new plan."""
        self._is_stale = True
        self.wake_at_ns = self._now_ns

    def _settle(self, now_ns: int) -> None:
        self._now_ns = now_ns
        if self._epoch_at_ns is not None and self._epoch_at_ns <= now_ns:
            self._end_epoch(now_ns)
        if self._is_stale:
            self._replan()

    def _end_epoch(self, now_ns: int) -> None:
        if not any(self._counts.values()):
            self._epoch_at_ns = None  # Nothing to plan by; the next job begins an epoch.
            return
        # A model without jobs is planned for as if it had had one.
        self._rates = {key: max(count, 1) for key, count in self._counts.items()}
        self._counts = dict.fromkeys(self._counts, 0)
        self._epoch_at_ns = now_ns + self._epoch_ns
        self._is_stale = True

    def _replan(self) -> None:
        """Make a plan, and reroute the jobs that wait where their models are no longer run."""
        self._is_stale = False
        homeless: list[Job] = []
        usual = sum(self._rates.values()) / len(self._rates) if self._rates else 1.0
        rates = {key: self._rates.get(key, usual) for key in self._specs}
        served = {gpu: state.models for gpu, state in self._gpus.items()}
        plan = make_plan(list(self._specs.values()), rates, served)
        self._routes = {}
        for gpu, state in self._gpus.items():
            shares = plan.get(gpu, {})
            for key in [key for key in state.queues if key not in shares]:
                queue = state.queues.pop(key)
                homeless += queue.take(0, len(queue.jobs))
            for key, share in shares.items():
                if key not in state.queues:
                    state.queues[key] = DeadlineQueue(self._specs[key], self._delays)
                gap = 1 / share.rate
                self._routes.setdefault(key, []).append((gap / 2, gpu, gap))
            state.batches = {key: share.batch for key, share in shares.items()}
            state.turns = list(shares)
        for route in self._routes.values():
            heapify(route)
        for job in homeless:
            self._route(job)
        for gpu, state in self._gpus.items():
            if not state.is_busy:
                self._run(gpu)

    def _route(self, job: Job) -> int | None:
        """Send a job to one of the GPUs that run its model."""
        route = self._routes.get(job.model)
        if not route:
            self._drop([job], "no_gpu")
            return None
        at, gpu, gap = route[0]
        heapreplace(route, (at + gap, gpu, gap))
        queue = self._gpus[gpu].queues[job.model]
        queue.push(job)
        self._timers.arm(queue)
        return gpu

    def _run(self, gpu: int) -> None:
        """Run the next model in turn that has a job that can make it."""
        state = self._gpus[gpu]
        for _ in range(len(state.turns)):
            key = state.turns[state.next_turn % len(state.turns)]
            state.next_turn += 1
            queue = state.queues[key]
            size = self._gather(queue, state.batches[key]) if queue.jobs else 0
            if size:
                start_at_ns = self._now_ns + self._delays.of(size)
                end_at_ns = start_at_ns + queue.spec.batch_ns[size]
                self._number += 1
                jobs = queue.take(0, size)
                self._out.append(Dispatch(self._number, gpu, key, jobs, start_at_ns, end_at_ns))
                state.is_busy = True
                return

    def _gather(self, queue: DeadlineQueue, batch: int) -> int:
        """Drop the heads that would be late in a batch as large as planned, or as there are jobs
        for; the size of that batch.
        """
        self._drop(queue.take_late(self._now_ns), "late")
        crowded = []
        size = min(batch, queue.spec.size_max, len(queue.jobs))
        while size and queue.jobs[0].deadline_ns < self._now_ns + queue.cost_ns[size]:
            crowded.append(queue.jobs.popleft())
            size = min(size, len(queue.jobs))
        self._drop(crowded, "crowded")
        return size

    def _drop(self, jobs: list[Job], reason: DropReason) -> None:
        if jobs:
            self._out.append(Drop(jobs, reason))

    def _finish(self) -> Sequence[Effect]:
        self.wake_at_ns = self._timers.next_at_ns
        if self._is_stale:
            self.wake_at_ns = self._now_ns
        elif self._epoch_at_ns is not None:
            self.wake_at_ns = min(self.wake_at_ns, self._epoch_at_ns)
        out, self._out = self._out, []
        return out
