"""Which GPU runs which models in batches of what size: squishy bin packing.

A model whose rate fills GPUs gets them whole, with the largest batch that leaves a request that
just missed one time for the next: ``2 l(b) <= SLO``. What is left of its rate needs a part of a
GPU: a batch of b, whose last request comes ``(b - 1) / rate`` after the first, so that
``(b - 1) / rate + l(b) <= SLO``, in a duty cycle of ``min(b / rate, SLO - l(b))``. Such parts share
a GPU if all their batches fit into the shortest of their duty cycles, for which the batches are
made smaller ("squished").

The rates are scaled up, or down, to what just fits on all the GPUs: with fewer GPUs in use than
there are, every model has the same headroom; with too few, every model is served in part.

Source: Shen et al., Nexus, SOSP 2019, section 6.1 and algorithm 1; deferred batch scheduling,
sections 2.2 and 5.3.
"""

import math
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from services.scheduler.core.batching.job import ModelSpec

NUM_BISECTIONS = 12
SCALE_RANGE = 2.0**20  # beyond it, scaling changes nothing any more


class Share(NamedTuple):
    """A model's part of a GPU: batches of `batch`, `rate` requests per ns."""

    batch: int
    rate: float


Plan = dict[int, dict[Hashable, Share]]


class _Demand(NamedTuple):
    """A rate that needs less than a GPU, and how that would be served on a GPU of its own."""

    spec: ModelSpec
    rate: float
    batch: int
    duty_ns: float

    @property
    def occupancy(self) -> float:
        return self.spec.batch_ns[self.batch] / self.duty_ns


@dataclass(slots=True)
class _Bin:
    """A GPU that models share."""

    duty_ns: float
    demands: list[_Demand]
    batches: list[int]
    occupancy: float


def full_batch(spec: ModelSpec) -> int:
    """The largest batch with ``2 l(b) <= SLO``, at least 1."""
    return max(spec.largest(spec.slo_ns // 2), 1)


def make_plan(
    specs: Collection[ModelSpec],
    rates: Mapping[Hashable, float],
    gpus: Mapping[int, Collection[Hashable]],
) -> Plan:
    """Assign models to GPUs.

    Args:
        specs: the models.
        rates: requests by model, > 0, in any unit: only their proportions count.
        gpus: the models that each GPU can run.
    """
    served = {key for models in gpus.values() for key in models}
    specs = [spec for spec in specs if spec.key in served]
    if not specs:
        return {}
    busy = sum(rates[s.key] * s.batch_ns[full_batch(s)] / full_batch(s) for s in specs)
    low, best = len(gpus) / busy, None
    scale_min = low / SCALE_RANGE
    while low > scale_min and (best := _pack(specs, rates, gpus, low)) is None:
        low /= 2
    if best is None:
        return _crowd(specs, rates, gpus)
    high = low * 2
    for _ in range(NUM_BISECTIONS):
        middle = (low + high) / 2
        plan = _pack(specs, rates, gpus, middle)
        if plan is None:
            high = middle
        else:
            low, best = middle, plan
    return best


def _pack(
    specs: Collection[ModelSpec],
    rates: Mapping[Hashable, float],
    gpus: Mapping[int, Collection[Hashable]],
    scale: float,
) -> Plan | None:
    """Serve ``scale * rates``; None if that needs more GPUs than there are."""
    # GPUs that serve few models first: the others are needed for the rest.
    free = sorted(gpus, key=lambda gpu: (len(gpus[gpu]), gpu))
    plan: Plan = {}
    demands = []
    for spec in specs:
        rate, full = rates[spec.key] * scale, full_batch(spec)
        rate_of_gpu = full / spec.batch_ns[full]
        num_whole = int(rate / rate_of_gpu + 1e-9)
        for _ in range(num_whole):
            gpu = next((gpu for gpu in free if spec.key in gpus[gpu]), None)
            if gpu is None:
                return None
            free.remove(gpu)
            plan[gpu] = {spec.key: Share(full, rate_of_gpu)}
            rate -= rate_of_gpu
        if num_whole == 0 or rate > 1e-6 * rate_of_gpu:
            demands.append(_demand(spec, rate))
    bins = _share(demands, free, gpus)
    if bins is None:
        return None
    for gpu, shared in bins.items():
        pairs = zip(shared.demands, shared.batches, strict=True)
        plan[gpu] = {part.spec.key: Share(batch, part.rate) for part, batch in pairs}
    return plan


def _demand(spec: ModelSpec, rate: float) -> _Demand:
    """The largest batch that can be collected and run in time, in the longest cycle it allows."""
    full = full_batch(spec)
    batch = next(
        (b for b in range(full, 1, -1) if (b - 1) / rate + spec.batch_ns[b] <= spec.slo_ns), 1
    )
    duty_ns = min(spec.slo_ns - spec.batch_ns[batch], batch / rate)
    if spec.batch_ns[batch] > duty_ns:
        batch, duty_ns = full, spec.batch_ns[full]  # It needs the GPU for itself after all.
    return _Demand(spec, rate, batch, duty_ns)


def _share(
    demands: list[_Demand], free: list[int], gpus: Mapping[int, Collection[Hashable]]
) -> dict[int, _Bin] | None:
    """Best fit in order of decreasing occupancy; None if a demand fits nowhere."""
    bins: dict[int, _Bin] = {}
    for demand in sorted(demands, key=lambda d: -d.occupancy):
        best_gpu, best = -1, None
        for gpu, shared in bins.items():
            if demand.spec.key in gpus[gpu] and shared.occupancy + 1e-9 < 1:
                merged = _merge(shared, demand)
                if merged and (best is None or merged.occupancy > best.occupancy):
                    best_gpu, best = gpu, merged
        if best is None:
            gpu = next((gpu for gpu in free if demand.spec.key in gpus[gpu]), -1)
            if gpu < 0:
                return None
            free.remove(gpu)
            best_gpu = gpu
            best = _Bin(demand.duty_ns, [demand], [demand.batch], demand.occupancy)
        bins[best_gpu] = best
    return bins


def _merge(shared: _Bin, demand: _Demand) -> _Bin | None:
    duty_ns = min(shared.duty_ns, demand.duty_ns)
    demands = [*shared.demands, demand]
    batches = [max(math.ceil(duty_ns * part.rate - 1e-6), 1) for part in demands]
    busy_ns = 0
    for part, batch in zip(demands, batches, strict=True):
        busy_ns += part.spec.batch_ns[batch]
        if busy_ns > duty_ns:
            return None
    return _Bin(duty_ns, demands, batches, busy_ns / duty_ns)


def _crowd(
    specs: Collection[ModelSpec],
    rates: Mapping[Hashable, float],
    gpus: Mapping[int, Collection[Hashable]],
) -> Plan:
    """More models than the GPUs can serve in time at any rate: spread them evenly by work."""
    plan: Plan = {gpu: {} for gpu in gpus}
    busy = dict.fromkeys(gpus, 0.0)
    for spec in specs:
        full = full_batch(spec)
        gpu = min((gpu for gpu in gpus if spec.key in gpus[gpu]), key=lambda gpu: (busy[gpu], gpu))
        plan[gpu][spec.key] = Share(full, rates[spec.key])
        busy[gpu] += rates[spec.key] * spec.batch_ns[full] / full
    return plan
