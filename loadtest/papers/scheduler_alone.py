"""How many requests a second the batching core alone decides on (deferred batching, section 5.5).

No messages, no GPUs; requests are objects made beforehand, and their arrival times drive the core
as fast as it goes. Every batch that it dispatches is taken over by a GPU, and its end is reported
to the core. A thread is a process here, with a share of the models and of the GPUs (sub-clusters
know nothing of each other, section 4.4).
"""

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from multiprocessing import get_context
from typing import Any

from loadtest.policies import make_batcher
from loadtest.simulator.arrivals import renewal
from loadtest.simulator.bounds import staggered_rps
from loadtest.simulator.models import SimModel, copies, linear_model
from services.scheduler.core.batching.effects import Dispatch, Effect
from services.scheduler.core.batching.job import NEVER_NS, Job

# "ResNet-like models with 100 ms SLO" (section 5.5), the profile of Table 2.
RESNET = linear_model("resnet", 1.053, 5.072, 100.0)


@dataclass(frozen=True, slots=True)
class Share:
    """What one process does; `load` is a share of the staggered bound."""

    num_models: int
    num_gpus: int
    num_jobs: int
    load: float
    policy: str
    seed: int


def measure_shares(shares: list[Share]) -> float:
    """Requests a second of processes that work at the same time, one for each share."""
    return sum(_round(shares))


def _round(shares: list[Share]) -> list[float]:
    """Requests a second of each process; all measure at the same time."""
    if len(shares) == 1:
        return [measure(shares[0])]
    context = get_context("spawn")
    barrier = context.Barrier(len(shares))
    with context.Pool(len(shares), _keep_barrier, (barrier,)) as pool:
        parts: list[float] = pool.map(_measure_together, shares, chunksize=1)
    return parts


_barriers: list[Any] = []


def _keep_barrier(barrier: Any) -> None:
    _barriers.append(barrier)


def _measure_together(share: Share) -> float:
    return measure(share, _barriers[0].wait)


def measure(share: Share, wait: Any = None) -> float:
    """Make the requests, call `wait`, and drive a core with them; requests a second."""
    models = copies(RESNET, share.num_models)
    jobs = make_jobs(models, share)
    batcher = make_batcher(share.policy)
    for model in models:
        batcher.add_model(model.spec())
    for gpu in range(share.num_gpus):
        batcher.add_gpu(gpu, [model.name for model in models], 0)
    gc.collect()
    gc.freeze()  # the requests exist: looking through them again would be the benchmark's cost
    if wait is not None:
        wait()
    driver = _Driver(batcher)
    begin = time.perf_counter()
    driver.drive(jobs)
    seconds = time.perf_counter() - begin
    gc.unfreeze()
    return len(jobs) / seconds


def make_jobs(models: Sequence[SimModel], share: Share) -> list[Job]:
    """Requests for all models alike, Poisson, at a share of what the GPUs can serve."""
    rate = share.load * staggered_rps(models, [1.0] * len(models), share.num_gpus)
    arrivals = renewal([rate / len(models)] * len(models), share.num_jobs / rate, share.seed)
    slo_ns = models[0].slo_ns
    names = [model.name for model in models]
    return [
        Job(names[index], at_ns + slo_ns, at_ns)
        for index, at_ns in zip(arrivals.model.tolist(), arrivals.at_ns.tolist(), strict=True)
    ]


class _Driver:
    """The least that a core needs around it: a clock, and GPUs that end when they said."""

    def __init__(self, batcher: Any) -> None:
        self._batcher = batcher
        self._ends: list[tuple[int, int, int]] = [(NEVER_NS, 0, 0)]

    def drive(self, jobs: Sequence[Job]) -> None:
        batcher, ends, advance = self._batcher, self._ends, self._advance
        on_job = batcher.on_job
        for job in jobs:
            now_ns = job.arrived_at_ns
            if ends[0][0] <= now_ns or batcher.wake_at_ns <= now_ns:
                advance(now_ns)
            effects = on_job(job, now_ns)
            if effects:
                self._perform(effects)

    def _advance(self, until_ns: int) -> None:
        batcher, ends = self._batcher, self._ends
        while True:
            wake_at_ns = batcher.wake_at_ns
            if ends[0][0] <= wake_at_ns:
                if ends[0][0] > until_ns:
                    return
                now_ns, gpu, _ = heappop(ends)
                effects = batcher.on_batch_done(gpu, now_ns)
            elif wake_at_ns <= until_ns:
                effects = batcher.on_wake(wake_at_ns)
            else:
                return
            if effects:
                self._perform(effects)

    def _perform(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if type(effect) is Dispatch:
                heappush(self._ends, (effect.end_at_ns, effect.gpu, effect.number))
