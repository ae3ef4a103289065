"""Figure 16: how even sub-clusters are, by the solver and by chance."""

import time
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure as Drawing

from loadtest.papers.base import Effort, Figure, Results, Row, Work, label, new_drawing
from loadtest.partition import (
    PartitionModel,
    partition,
    random_partition,
)
from shared.zoo import zoo

MIB = 1 << 20
SOLVERS = ("solver", "random")


class Part(NamedTuple):
    """One configuration for one solver."""

    solver: str
    seed: int
    num_models: int
    num_subclusters: int
    time_limit_s: float


def measure(work: Work, effort: Effort) -> Results:
    """Seeded configurations, both solvers with the same time."""
    num_models, num_subclusters = effort.pick((20, 3), (800, 20), (800, 20))
    num_seeds = effort.pick(1, 3, 20)
    limit_s = effort.pick(0.05, 2.0, 10.0)
    parts = [
        Part(solver, seed, num_models, num_subclusters, limit_s)
        for solver in SOLVERS
        for seed in range(num_seeds)
    ]
    found = work.map(solve, parts)
    results: Results = {"time_limit_s": limit_s}
    for solver in SOLVERS:
        mine = [value for part, value in zip(parts, found, strict=True) if part.solver == solver]
        results[solver] = {
            "rate": sorted(value[0] for value in mine),
            "memory": sorted(value[1] for value in mine),
        }
    return results


def make_models(num_models: int, seed: int) -> list[PartitionModel]:
    """Variants of the zoo's models. Rates are exponential; the paper does not give sizes, so they
    are lognormal around 100 MiB, and what a running batch needs is half as much to twice that."""
    rng = np.random.default_rng(seed)
    names = [model.name for model in zoo("1080ti")]
    models = []
    for number in range(num_models):
        static = float(np.clip(rng.lognormal(np.log(100), 0.8), 10, 1500)) * MIB
        models.append(
            PartitionModel(
                model_id=f"{rng.choice(names)}-{number}",
                rate_rps=float(rng.exponential(100.0)),
                static_bytes=int(static),
                dynamic_bytes=int(static * rng.uniform(0.5, 2.0)),
            )
        )
    return models


def solve(part: Part) -> tuple[float, float]:
    """Imbalance of rate and of static memory over the sub-clusters."""
    models = make_models(part.num_models, part.seed)
    rate_max = 1.5 * sum(model.rate_rps for model in models) / part.num_subclusters
    static = sum(model.static_bytes for model in models) / part.num_subclusters
    memory_max = 1.5 * static + max(model.dynamic_bytes for model in models)
    bounds = (models, part.num_subclusters, rate_max, memory_max)
    if part.solver == "solver":
        found = partition(*bounds, time_limit_s=part.time_limit_s)
        return found.rate_imbalance, found.memory_imbalance
    rng = np.random.default_rng(part.seed)
    num_tries = 50
    begin = time.perf_counter()
    random_partition(*bounds, rng=rng, num_tries=num_tries)
    a_try_s = (time.perf_counter() - begin) / num_tries
    num_tries = max(int(part.time_limit_s / a_try_s), num_tries)
    found = random_partition(*bounds, rng=rng, num_tries=num_tries)
    return found.rate_imbalance, found.memory_imbalance


def draw(results: Results) -> Drawing:
    """Share of configurations with at most this imbalance."""
    drawing = new_drawing()
    for index, what in enumerate(("memory", "rate")):
        axes = drawing.add_subplot(1, 2, index + 1)
        for solver in SOLVERS:
            values = np.maximum(results[solver][what], 1e-7)
            shares = (np.arange(len(values)) + 1) / len(values)
            axes.step(values, shares, where="post", marker=".", label=solver)
        axes.set_xscale("log")
        label(axes, f"{what} imbalance", "(max - min) / average", "share of configurations")
        axes.legend(fontsize=7)
    return drawing


def rows(results: Results) -> list[Row]:
    return [
        Row(
            f"median {what} imbalance, {solver}",
            "",
            f"{float(np.median(results[solver][what])):.2g}",
        )
        for what in ("memory", "rate")
        for solver in SOLVERS
    ]


FIGURE_16 = Figure(
    "16",
    "Figure 16: models shared out among sub-clusters",
    measure,
    draw,
    rows,
    "800 models, 20 sub-clusters, both solvers with the same time. The paper gives no memory "
    "sizes; ours are drawn (lognormal around 100 MiB).",
)
