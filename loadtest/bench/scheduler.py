"""``symphony bench scheduler``: how many requests a second the batching core alone decides on.

As in the paper's section 5.5: no messages, no GPUs; requests are objects made beforehand, and their
arrival times drive the core as fast as it goes. Every batch that it dispatches is taken over by a
GPU, and its end is told to the core. A thread is a process here, with a share of the models and of
the GPUs (sub-clusters know nothing of each other, section 4.4).
"""

import argparse
import gc
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from multiprocessing import get_context
from typing import Any

from loadtest.bench.goodput import count
from loadtest.policies import POLICY_HELP, make_batcher
from loadtest.simulator.arrivals import renewal
from loadtest.simulator.bounds import staggered_rps
from loadtest.simulator.models import SimModel, copies, linear_model
from services.scheduler.core.batching.batcher import Batcher
from services.scheduler.core.batching.effects import Dispatch, Effect, Preempt
from services.scheduler.core.batching.job import NEVER_NS, Job
from services.scheduler.policies import DEFAULT_POLICY
from shared.errors import InvalidRequest

# "ResNet-like models with 100 ms SLO" (section 5.5), the profile of Table 2.
RESNET = linear_model("resnet", 1.053, 5.072, 100.0)

NOTHING: tuple[Effect, ...] = ()


@dataclass(frozen=True, slots=True)
class Share:
    """What one process does; `load` is a share of the staggered bound."""

    num_models: int
    num_gpus: int
    num_jobs: int
    load: float
    policy: str
    seed: int


@dataclass(frozen=True, slots=True)
class Measured:
    """What one process did. `loop_s` is the time of the same loop around a core that does nothing;
    it is part of `seconds`."""

    num_jobs: int
    num_batches: int
    num_dropped: int
    seconds: float
    loop_s: float


class NullBatcher:
    """Does nothing, to measure the loop around it."""

    wake_at_ns = NEVER_NS

    def on_job(self, job: Job, now_ns: int) -> Sequence[Effect]:
        return NOTHING


def run(argv: list[str]) -> dict[str, Any]:
    """Measure: ``{"requests_per_s", "per_core"}``, and what they are made of.

    Raises:
        InvalidRequest: more threads than models or GPUs.
    """
    args = _parser().parse_args(argv)
    make_batcher(args.policy)
    if args.threads > min(args.models, args.gpus):
        raise InvalidRequest(
            f"--threads {args.threads}: each needs a model of its own (--models {args.models}) "
            f"and a GPU (--gpus {args.gpus})"
        )
    rounds = [_round(_shares(args, seed)) for seed in range(args.rounds)]
    best = max(rounds, key=_rate)
    num_jobs = sum(part.num_jobs for part in best)
    rate = _rate(best)
    loop_ns = 1e9 * sum(part.loop_s for part in best) / num_jobs
    result = {
        "requests_per_s": round(rate),
        "per_core": round(rate / args.threads),
        "per_core_without_loop": round(
            sum(part.num_jobs / (part.seconds - part.loop_s) for part in best) / args.threads
        ),
        "loop_ns_per_request": round(loop_ns, 1),
        "mean_batch": round(num_jobs / max(sum(part.num_batches for part in best), 1), 2),
        "dropped": sum(part.num_dropped for part in best),
        "rounds_requests_per_s": [round(_rate(parts)) for parts in rounds],
        "policy": args.policy,
        "models": args.models,
        "gpus": args.gpus,
        "threads": args.threads,
    }
    _print(result)
    return result


def measure_shares(shares: list[Share]) -> float:
    """Requests a second of processes that work at the same time, one for each share."""
    return _rate(_round(shares))


def _rate(parts: Sequence[Measured]) -> float:
    return sum(part.num_jobs / part.seconds for part in parts)


def _shares(args: argparse.Namespace, seed: int) -> list[Share]:
    def part(total: int, index: int) -> int:
        return int(total // args.threads + (index < total % args.threads))

    return [
        Share(
            part(args.models, index), part(args.gpus, index), args.jobs, args.load, args.policy,
            seed * args.threads + index,
        )
        for index in range(args.threads)
    ]  # fmt: skip


def _round(shares: list[Share]) -> list[Measured]:
    """All processes measure at the same time."""
    if len(shares) == 1:
        return [measure(shares[0])]
    context = get_context("spawn")
    barrier = context.Barrier(len(shares))
    with context.Pool(len(shares), _keep_barrier, (barrier,)) as pool:
        parts: list[Measured] = pool.map(_measure_together, shares, chunksize=1)
    return parts


_barriers: list[Any] = []


def _keep_barrier(barrier: Any) -> None:
    _barriers.append(barrier)


def _measure_together(share: Share) -> Measured:
    return measure(share, _barriers[0].wait)


def measure(share: Share, wait: Any = None) -> Measured:
    """Make the requests, call `wait`, and drive a core with them."""
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
    loop_s = _timed(NullBatcher(), jobs)[0]
    seconds, num_batches, num_dropped = _timed(batcher, jobs)
    gc.unfreeze()
    return Measured(len(jobs), num_batches, num_dropped, seconds, loop_s)


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


def _timed(batcher: Batcher | NullBatcher, jobs: Sequence[Job]) -> tuple[float, int, int]:
    """Seconds that the core takes for these requests; batches; requests that it dropped."""
    driver = _Driver(batcher)
    begin = time.perf_counter()
    driver.drive(jobs)
    return time.perf_counter() - begin, driver.num_batches, driver.num_dropped


class _Driver:
    """The least that a core needs around it: a clock, and GPUs that end when they said."""

    def __init__(self, batcher: Any) -> None:
        self._batcher = batcher
        self._ends: list[tuple[int, int, int]] = [(NEVER_NS, 0, 0)]
        self._preempted: set[int] = set()
        self.num_batches = 0
        self.num_dropped = 0

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
                now_ns, gpu, number = heappop(ends)
                if number in self._preempted:
                    continue
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
                self.num_batches += 1
                heappush(self._ends, (effect.end_at_ns, effect.gpu, effect.number))
            elif isinstance(effect, Preempt):
                self._preempted.add(effect.number)
            else:
                self.num_dropped += len(effect.jobs)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="symphony bench scheduler", description=__doc__)
    parser.add_argument("--models", type=count, default=32)
    parser.add_argument("--gpus", type=count, default=256)
    parser.add_argument("--threads", type=count, default=1, help="processes")
    parser.add_argument("--policy", default=DEFAULT_POLICY, help=POLICY_HELP)
    parser.add_argument("--jobs", type=count, default=1_000_000, help="requests for each process")
    parser.add_argument("--load", type=float, default=0.9, help="of the staggered bound")
    parser.add_argument("--rounds", type=count, default=3, help="the best one counts")
    return parser


def _print(result: dict[str, Any]) -> None:
    print(
        f"{result['policy']}: {result['requests_per_s']:,} requests/s,"
        f" {result['per_core']:,} a core"
        f" ({result['per_core_without_loop']:,} without {result['loop_ns_per_request']:g} ns of"
        f" loop), batches of {result['mean_batch']:g}",
        file=sys.stderr,
        flush=True,
    )
