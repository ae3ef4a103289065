"""The loop: virtual time, one heap of events, a production core, and emulated GPUs.

What a shell does around a core is done here as the scheduler service does it: every batch's end is
reported once, however often its message comes; jobs of a GPU that vanished are submitted again if
they can still be in time; measured run times correct the profiles.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random
from typing import Any

import numpy as np

from loadtest.policies.shepherd import Preempt
from loadtest.simulator.arrivals import Arrivals
from loadtest.simulator.faults import GpuFault, check_faults
from loadtest.simulator.gpus import EmulatedGpu
from loadtest.simulator.log import DONE, LOST, PREEMPTED, Batch, Log, Reason
from loadtest.simulator.models import MS_NS, SimModel, Truth
from loadtest.simulator.network import Network
from services.scheduler.core.batching.batcher import Batcher
from services.scheduler.core.batching.effects import Dispatch, Drop, Effect
from services.scheduler.core.batching.job import NEVER_NS, Delays, Job, ModelSpec
from services.scheduler.core.batching.latency import BatchLatency

Act = Callable[[Any], None]

WAKES_MAX = 10_000  # of a core at one instant


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a run meets.

    Attributes:
        delays: what the core plans with.
        learns: correct the core's profiles by what batches took.
    """

    seed: int
    delays: Delays
    truth: Truth
    network: Network
    faults: Sequence[GpuFault]
    learns: bool


class Simulation:
    """One run.

    Args:
        batcher: the core; it knows no model and no GPU yet.
        lost_max: of each model, jobs that may be dropped before the run is given up; None to go on
            to the end. Counted are jobs that arrive from `counted_from_ns` on.
    """

    def __init__(
        self,
        batcher: Batcher,
        models: Sequence[SimModel],
        arrivals: Arrivals,
        num_gpus: int,
        conditions: Conditions,
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
        self._random = Random(conditions.seed)
        self._delays = conditions.delays
        self._truth = conditions.truth
        self._network = conditions.network
        self._index: dict[Hashable, int] = {model.name: index for index, model in enumerate(models)}
        self._is_exact = self._truth.is_exact and self._network.is_exact
        self._profile_ns = [model.batch_ns() for model in models]  # what `Truth` is relative to
        self._latencies = [_latency(model) for model in models] if conditions.learns else []
        self._versions = [0] * len(models)
        self._counted_from_ns = counted_from_ns
        self._lost_left = list(lost_max) if lost_max is not None else None
        self._unreported: list[dict[int, Batch]] = [{} for _ in self.gpus]  # by number, by GPU
        self._heap: list[tuple[int, int, Act | None, Any]] = [(NEVER_NS, 0, None, None)]
        self._num_events = 0
        self._num_wakes = 0
        for model in models:
            batcher.add_model(model.spec())
        for gpu in self.gpus:
            self._perform(batcher.add_gpu(gpu.number, list(self._index), 0))
        check_faults(conditions.faults)
        for fault in conditions.faults:
            self.at(fault.at_ns, self._vanish, fault)

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
        target_ns = self.arrivals.target_ns
        if target_ns is None:
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
        now_ns, network = self.now_ns, self._network
        size = len(effect.jobs)
        index = self._index[effect.model]
        delay_ns = network.dispatch.sample(self._random) + network.data_ns * size
        run_ns = self._profile_ns[index][size]
        if not self._truth.is_exact:
            run_ns = self._truth.actual_ns(run_ns, self._random)
        batch = Batch(
            effect.number,
            effect.gpu,
            index,
            effect.jobs,
            now_ns,
            effect.start_at_ns,
            effect.end_at_ns,
            now_ns + delay_ns,
            run_ns,
        )
        self._unreported[effect.gpu][effect.number] = batch
        gpu = self.gpus[effect.gpu]
        if gpu.is_here:
            gpu.take(batch)
            self.at(batch.end_ns, self._end, batch)
        else:  # not noticed yet
            batch.start_ns = batch.end_ns = batch.here_at_ns
            batch.end, batch.is_over = LOST, True

    def _end(self, batch: Batch) -> None:
        if batch.is_over or batch.end_ns != self.now_ns:
            return  # it was stopped, or it runs at another time by now
        self.gpus[batch.gpu].finish(batch)
        network = self._network
        delay_ns = network.done.sample(self._random)
        if network.doubled and self._random.random() < network.doubled:
            again_ns = delay_ns + network.done.sample(self._random)
            self.at(self.now_ns + again_ns, self._hear, batch)
        if delay_ns:
            self.at(self.now_ns + delay_ns, self._hear, batch)
        else:
            self._hear(batch)

    def _hear(self, batch: Batch) -> None:
        if self._unreported[batch.gpu].pop(batch.number, None) is not batch:
            return  # reported before, preempted meanwhile, or of a GPU that was given up
        self._settle(batch)
        if self._latencies:
            self._learn(batch)
        effects = self.batcher.on_batch_done(batch.gpu, self.now_ns)
        if effects:
            self._perform(effects)

    def _settle(self, batch: Batch) -> None:
        self.log.add_batch(batch)
        if self._lost_left is not None and batch.end == DONE and not self._is_exact:
            self._count_lost([job for job in batch.jobs if job.deadline_ns < batch.end_ns])

    def _learn(self, batch: Batch) -> None:
        latency = self._latencies[batch.model]
        latency.observe(len(batch.jobs), batch.run_ns)
        if latency.version != self._versions[batch.model]:
            self._versions[batch.model] = latency.version
            model = self.models[batch.model]
            self.batcher.add_model(ModelSpec(model.name, latency.table(), model.slo_ns))

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
        gpu = self.gpus[effect.gpu]
        if batch.is_over:  # its end is not known yet; its result is not awaited any more
            batch.end = PREEMPTED
        else:
            at_ns = self.now_ns + self._network.dispatch.sample(self._random)
            for moved in gpu.preempt(batch, at_ns):
                self.at(moved.end_ns, self._end, moved)
        self._settle(batch)

    def _vanish(self, fault: GpuFault) -> None:
        self.gpus[fault.gpu].vanish(self.now_ns)
        self.at(self.now_ns + fault.noticed_after_ns, self._notice, fault.gpu)
        if fault.back_after_ns is not None:
            self.at(self.now_ns + fault.back_after_ns, self._come_back, fault.gpu)

    def _notice(self, gpu: int) -> None:
        unreported, self._unreported[gpu] = self._unreported[gpu], {}
        self._perform(self.batcher.remove_gpu(gpu, self.now_ns))
        for batch in unreported.values():
            self._settle(batch)
            if batch.end == LOST:
                self._submit_again(batch)

    def _submit_again(self, batch: Batch) -> None:
        soonest_ns = self.now_ns + self._delays.of(1) + self._profile_ns[batch.model][1]
        late = [job for job in batch.jobs if job.deadline_ns < soonest_ns]
        if late:
            self._drop(late, "gpu_lost")
        for job in batch.jobs:
            if job.deadline_ns >= soonest_ns:
                self._perform(self.batcher.on_job(job, self.now_ns))

    def _come_back(self, gpu: int) -> None:
        self.gpus[gpu].come_back(self.now_ns)
        self._perform(self.batcher.add_gpu(gpu, list(self._index), self.now_ns))


def _latency(model: SimModel) -> BatchLatency:
    return BatchLatency.linear(model.alpha_ms * MS_NS, model.beta_ms * MS_NS, model.size_max)
