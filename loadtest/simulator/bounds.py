"""What analysis says that a cluster can serve."""

from collections.abc import Sequence

import numpy as np

from loadtest.simulator.models import SimModel


def staggered_rps(models: Sequence[SimModel], weights: Sequence[float], num_gpus: int) -> float:
    """Rate of a perfectly staggered execution, jobs/s in all.

    For one model ``N b / l(b)`` with the largest b for which ``(1 + 1/N) l(b) <= SLO`` (deferred
    batch scheduling, equations 1 and 2, section 5.3). There a batch gathers for ``l(b) / N``, which
    is ``b / rate``. So for several models that share the GPUs: each runs batches of the largest b
    for which ``b / rate + l(b) <= SLO`` (a single job need not gather), and the GPUs' time is
    enough, ``sum(rate l(b) / b) <= N``. With one model the two are the same.
    """
    shares = np.asarray(weights) / np.sum(weights)
    top = capacity_rps(models, shares.tolist(), num_gpus)

    def is_enough(rate: float) -> bool:
        used = sum(
            rate * share * _ms_a_job(model, rate * share / 1e3) / 1e3
            for model, share in zip(models, shares, strict=True)
            if share > 0
        )
        return float(used) <= num_gpus * (1 + 1e-12)

    # Batches grow in steps, so more load can need less time: look from above.
    step = 0.999
    while top > 1e-6 and not is_enough(top):
        top *= step
    low, high = top, top / step
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if is_enough(middle) else (low, middle)
    return float(low)


def _ms_a_job(model: SimModel, rate_per_ms: float) -> float:
    """GPU time a job in the largest batch that gathers in time, ms."""
    size = int((model.slo_ms - model.beta_ms) / (model.alpha_ms + 1 / rate_per_ms) + 1e-9)
    size = min(max(size, 1), model.size_max)
    return model.alpha_ms + model.beta_ms / size


def capacity_rps(models: Sequence[SimModel], weights: Sequence[float], num_gpus: int) -> float:
    """Rate that no schedule exceeds: every GPU always runs the largest batches."""
    ms_a_job = sum(
        share * (model.alpha_ms + model.beta_ms / model.size_max)
        for model, share in zip(models, np.asarray(weights) / np.sum(weights), strict=True)
    )
    return float(num_gpus * 1e3 / ms_a_job)


def uncoordinated_rps(model: SimModel, num_gpus: int) -> float:
    """Rate of GPUs that each wait for a whole batch time, ``2 l(b) <= SLO`` (section 5.3)."""
    size = max(int((model.slo_ms / 2 - model.beta_ms) / model.alpha_ms + 1e-9), 1)
    return num_gpus * size * 1e3 / (model.alpha_ms * size + model.beta_ms)
