"""The loop: virtual time, one heap of events, a production core, and emulated GPUs.

Batches take what their profiles say and messages what the core reckons with; faults of GPUs, of
messages and of profiles are simulated around the scheduler service itself (`loadtest/sim`).
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Any

import numpy as np

from loadtest.policies import Policy
from loadtest.policies.shepherd import Preempt
from loadtest.simulator.arrivals import Arrivals
from loadtest.simulator.gpus import EmulatedGpu
from loadtest.simulator.log import Batch, Log, Reason
from loadtest.simulator.models import SimModel
from services.scheduler.core.batching.effects import Dispatch, Drop, Effect
from services.scheduler.core.batching.job import NEVER_NS, Delays, Job

Act = Callable[[Any], None]

WAKES_MAX = 10_000  # of a core at one instant


class Simulation:
    """One run.

    Args:
        batcher: the core; it knows no model and no GPU yet.
        delays: what it reckons with, and what messages take.
        lost_max: of each model, jobs that may be dropped before the run is given up; None to go on
            to the end. Counted are jobs that arrive from `counted_from_ns` on.
    """

    def __init__(
        self,
        batcher: Policy,
        models: Sequence[SimModel],
        arrivals: Arrivals,
        num_gpus: int,
        delays: Delays,
        lost_max: Sequence[float] | None = None,
        counted_from_ns: int = 0,
    ) -> None:
        self.batcher = batcher
        self.models = models
        self.arrivals = arrivals
        self.now_ns = 0
        self.gpus = [EmulatedGpu(number) for number in range(num_gpus)]
        self.log = Log(models, arrivals, num_gpus)
        self.was_given_up = False
        self._delays = delays
        self._index: dict[Hashable, int] = {model.name: index for index, model in enumerate(models)}
        self._profile_ns = [model.batch_ns() for model in models]
        self._counted_from_ns = counted_from_ns
        self._lost_left = list(lost_max) if lost_max is not None else None
        self._unreported: list[dict[int, Batch]] = [{} for _ in self.gpus]  # by number, by GPU
        self._heap: list[tuple[int, int, Act | None, Any]] = [(NEVER_NS, 0, None, None)]
        self._num_events = 0
        self._num_wakes = 0
        for model in models:
            batcher.add_model(model.spec())
        for gpu in self.gpus:
            self._perform(batcher.add_gpu(gpu.number, self.models_at_start(), 0))

    def models_at_start(self) -> list[Hashable]:
        """What every GPU serves at first."""
        return list(self._index)

    def at(self, at_ns: int, act: Act, argument: Any) -> None:
        """Call `act(argument)` at an instant."""
        assert at_ns >= self.now_ns, "an event in the past"
        self._num_events += 1
        heappush(self._heap, (at_ns, self._num_events, act, argument))

    def run(self) -> Log:
        """Let all jobs arrive, and everything come to its end."""
        batcher, heap = self.batcher, self._heap
        on_job = batcher.on_job
        for job in self._jobs():
            now_ns = job.arrived_at_ns
            if heap[0][0] <= now_ns or batcher.wake_at_ns <= now_ns:
                self._advance(now_ns)
                if self.was_given_up:
                    return self.log
            self.now_ns = now_ns
            effects = on_job(job, now_ns)
            if effects:
                self._perform(effects)
        self._advance(NEVER_NS - 1)
        return self.log

    def _jobs(self) -> Iterator[Job]:
        at_ns, model = self.arrivals.at_ns, self.arrivals.model
        slo_ns = np.array([model.slo_ns for model in self.models], dtype=np.int64)
        target_ns = slo_ns[model]
        keys = [model.name for model in self.models]
        chunk = 65536
        for first in range(0, len(at_ns), chunk):
            piece = slice(first, first + chunk)
            instants = at_ns[piece].tolist()
            indices = model[piece].tolist()
            deadlines = (at_ns[piece] + target_ns[piece]).tolist()
            refs = range(first, first + len(indices))
            for index, due_ns, now_ns, ref in zip(indices, deadlines, instants, refs, strict=True):
                yield Job(keys[index], due_ns, now_ns, ref)

    def _advance(self, until_ns: int) -> None:
        """Everything that happens up to an instant: ends of batches before the core's timers."""
        batcher, heap = self.batcher, self._heap
        while not self.was_given_up:
            wake_at_ns = batcher.wake_at_ns
            if heap[0][0] <= wake_at_ns:
                at_ns = heap[0][0]
                if at_ns > until_ns:
                    return
                assert at_ns >= self.now_ns, "time went back"
                self.now_ns, _, act, argument = heappop(heap)
                assert act is not None
                act(argument)
                continue
            if wake_at_ns > until_ns:
                return
            self._wake(wake_at_ns)

    def _wake(self, wake_at_ns: int) -> None:
        if wake_at_ns > self.now_ns:
            self.now_ns = wake_at_ns  # a timer may be set for an instant that has passed
            self._num_wakes = 0
        self._num_wakes += 1
        assert self._num_wakes < WAKES_MAX, f"the core is woken for ever at {self.now_ns} ns"
        effects = self.batcher.on_wake(self.now_ns)
        if effects:
            self._perform(effects)

    def _perform(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if type(effect) is Dispatch:
                self._dispatch(effect)
            elif type(effect) is Drop:
                self._drop(effect.jobs, effect.reason)
            else:
                assert isinstance(effect, Preempt)
                self._preempt(effect)

    def _dispatch(self, effect: Dispatch) -> None:
        now_ns, size = self.now_ns, len(effect.jobs)
        index = self._index[effect.model]
        batch = Batch(
            effect.number,
            effect.gpu,
            index,
            effect.jobs,
            now_ns,
            effect.start_at_ns,
            effect.end_at_ns,
            now_ns + self._delays.of(size),
            self._profile_ns[index][size],
        )
        self._unreported[effect.gpu][effect.number] = batch
        self.gpus[effect.gpu].take(batch)
        self.at(batch.end_ns, self._end, batch)

    def _end(self, batch: Batch) -> None:
        if batch.is_over or batch.end_ns != self.now_ns:
            return  # it was stopped, or it runs at another time by now
        self.gpus[batch.gpu].finish(batch)
        del self._unreported[batch.gpu][batch.number]
        self.log.add_batch(batch)
        effects = self.batcher.on_batch_done(batch.gpu, self.now_ns)
        if effects:
            self._perform(effects)

    def _drop(self, jobs: Sequence[Job], reason: Reason) -> None:
        self.log.add_drop(jobs, reason, self.now_ns)
        if self._lost_left is not None:
            self._count_lost(jobs)

    def _count_lost(self, jobs: Sequence[Job]) -> None:
        assert self._lost_left is not None
        for job in jobs:
            if job.arrived_at_ns >= self._counted_from_ns:
                index = self._index[job.model]
                self._lost_left[index] -= 1
                if self._lost_left[index] < 0:
                    self.was_given_up = True

    def _preempt(self, effect: Preempt) -> None:
        batch = self._unreported[effect.gpu].pop(effect.number, None)
        assert batch is not None, f"batch {effect.number} was preempted, and had ended"
        for moved in self.gpus[effect.gpu].preempt(batch, self.now_ns + self._delays.ctrl_ns):
            self.at(moved.end_ns, self._end, moved)
        self.log.add_batch(batch)
