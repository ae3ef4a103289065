"""Section 4.4 live: sub-clusters that follow a zoo whose popularity shifts."""

import math
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure as Drawing

from loadtest.papers.base import (
    Effort,
    Figure,
    Results,
    Row,
    Work,
    label,
    new_drawing,
    ratio,
)
from loadtest.papers.subclusters import make_models
from loadtest.popularity import shares_of
from loadtest.simulator.arrivals import Arrivals, changing
from loadtest.simulator.changing_models import ChangingModels
from loadtest.simulator.checks import check
from loadtest.simulator.models import SimModel, linear_model
from loadtest.simulator.results import summarise
from services.scheduler.core.batching.job import Delays
from services.scheduler.core.partition.limits import SubclusterLimits
from services.scheduler.core.partition.subclusters import ModelSize, Subclusters
from services.scheduler.policies import DEFAULT_POLICY, make_batcher
from shared.zoo import zoo_model

MODES = ("bounded", "free", "never")
MIN_NS = 60_000_000_000
SLOWER = 40.0
SHIFT_S = 600.0
COLD_S = 120.0
LOAD_BYTES_PER_S = 1 << 28
SUBCLUSTERS = 8
BAD_RATE_MAX = 0.01
SEED = 44


class Part(NamedTuple):
    """One run.

    Attributes:
        load: offered, in GPUs that are busy with the largest batches, as a share of all.
    """

    mode: str
    num_gpus: int
    num_models: int
    minutes: float
    load: float


def limits_of(mode: str) -> SubclusterLimits:
    """The scheduler's own; or every minute the most even partition, and every second as many moves
    of workers as gain anything; or nothing after the start."""
    if mode == "free":
        return SubclusterLimits(
            changed_share_max=math.inf, repartition_ns=MIN_NS, uneven_max=0.0, even_min=0.0
        )
    return SubclusterLimits() if mode == "bounded" else SubclusterLimits(window_ns=1 << 61)


def make_zoo(num_models: int) -> tuple[list[SimModel], list[ModelSize]]:
    """Figure 16's variants of the zoo, and their profiles, slower by `SLOWER`."""
    models, sizes = [], []
    for variant in make_models(num_models, SEED):
        profile = zoo_model("1080ti", variant.model_id.rpartition("-")[0])
        model = linear_model(
            variant.model_id,
            SLOWER * profile.alpha_ms,
            SLOWER * profile.beta_ms,
            SLOWER * profile.slo_ms,
        )
        models.append(model)
        job_ns = model.batch_ns()[-1] // model.size_max
        sizes.append(
            ModelSize(
                static_bytes=variant.static_bytes,
                dynamic_bytes=variant.dynamic_bytes,
                job_ns=job_ns,
            )
        )
    return models, sizes


def gpu_memory(sizes: list[ModelSize]) -> int:
    """So much that the zoo takes `SUBCLUSTERS`."""
    total = sum(size.static_bytes for size in sizes)
    return int(1.05 * total / SUBCLUSTERS / 0.9 + max(size.dynamic_bytes for size in sizes) / 0.9)


def make_arrivals(part: Part, sizes: list[ModelSize]) -> Arrivals:
    """Every ten minutes each model has another of the zipf-distributed shares of the GPUs' time,
    and in between it goes there straight."""
    knots_s = np.append(np.arange(0.0, 60 * part.minutes, SHIFT_S), 60 * part.minutes)
    shares = [
        shares_of("zipf:0.9", part.num_models, Path(), SEED + knot) for knot in range(len(knots_s))
    ]
    job_s = np.array([size.job_ns for size in sizes]) / 1e9
    rates = part.load * part.num_gpus * np.array(shares).T / job_s[:, None]
    return changing(knots_s, rates, SEED)


def simulate(part: Part) -> Results:
    """One run: production cores, emulated GPUs."""
    models, sizes = make_zoo(part.num_models)
    arrivals = make_arrivals(part, sizes)
    delays = Delays()
    simulation = ChangingModels(
        Subclusters(limits_of(part.mode), 0),
        sizes,
        gpu_memory(sizes),
        math.inf if part.mode == "free" else LOAD_BYTES_PER_S,
        make_batcher(DEFAULT_POLICY, delays),
        models,
        arrivals,
        part.num_gpus,
        delays,
    )
    record = simulation.run().frozen()
    check(record, seed=SEED, is_whole=True)
    result = summarise(record, int(COLD_S * 1e9))
    return {
        "load": part.load,
        "good_rps": round(result.good_rps, 1),
        "bad_rate": round(result.bad_rate, 5),
        "num_jobs": result.num_jobs,
        "gpu_busy": round(result.gpu_busy, 4),
        "changes": len(simulation.changes),
        "changed_max": most_in_a_minute(simulation.changes),
    }


def most_in_a_minute(changes: list[tuple[int, int]]) -> int:
    """GPUs that were changed within any minute, at most."""
    return max(
        (
            len({gpu for other_ns, gpu in changes[first:] if other_ns < at_ns + MIN_NS})
            for first, (at_ns, _) in enumerate(changes)
        ),
        default=0,
    )


def measure(work: Work, effort: Effort) -> Results:
    """Every mode at every load."""
    num_gpus, num_models = effort.pick((8, 24), (64, 200), (64, 200))
    minutes = effort.pick(4.0, 12.0, 60.0)
    loads = effort.pick([0.3], [0.28, 0.32, 0.36, 0.4, 0.44], [0.28, 0.32, 0.36, 0.38, 0.4, 0.44])
    parts = [Part(mode, num_gpus, num_models, minutes, load) for mode in MODES for load in loads]
    found = work.map(simulate, parts)
    return {
        "num_gpus": num_gpus,
        "num_models": num_models,
        "minutes": minutes,
        "modes": {
            mode: [run for part, run in zip(parts, found, strict=True) if part.mode == mode]
            for mode in MODES
        },
    }


def goodput(runs: list[Results]) -> float:
    """Jobs/s done in time at the load at which `BAD_RATE_MAX` are not, between the loads that were
    simulated; 0 where that is not between them."""
    for low, high in pairwise(runs):
        if low["bad_rate"] <= BAD_RATE_MAX < high["bad_rate"]:
            step = high["bad_rate"] - low["bad_rate"]
            share = (BAD_RATE_MAX - low["bad_rate"]) / step
            return float(low["good_rps"] + share * (high["good_rps"] - low["good_rps"]))
    return 0.0


def draw(results: Results) -> Drawing:
    """Bad rate by load, and GPUs changed."""
    drawing = new_drawing()
    axes = drawing.add_subplot(1, 2, 1)
    for mode, runs in results["modes"].items():
        loads = [run["load"] for run in runs]
        axes.plot(loads, [100 * run["bad_rate"] for run in runs], marker=".", label=mode)
    axes.axhline(100 * BAD_RATE_MAX, color="k", lw=0.8, ls="--")
    label(axes, "jobs late or dropped", "offered load, share of the GPUs", "%")
    axes.legend(fontsize=7)
    axes = drawing.add_subplot(1, 2, 2)
    for mode, runs in results["modes"].items():
        shares = [100 * run["changed_max"] / results["num_gpus"] for run in runs]
        axes.plot([run["load"] for run in runs], shares, marker=".", label=mode)
    label(axes, "GPUs changed in a minute, at most", "offered load, share of the GPUs", "%")
    return drawing


def rows(results: Results) -> list[Row]:
    modes = results["modes"]
    rates = {mode: goodput(runs) for mode, runs in modes.items()}
    changed = max(run["changed_max"] for run in modes["bounded"]) / results["num_gpus"]
    share = ratio(rates["bounded"], rates["free"])
    lines = [
        Row(
            "goodput with bounded changes, share of solving freely",
            "",
            f"{100 * share:.1f}%" if share else "not between the loads",
        ),
        Row(
            "GPUs changed in any minute, at most",
            "",
            f"{100 * changed:.1f}%",
        ),
    ]
    names = {"bounded": "bounded", "free": "solved freely", "never": "never changed"}
    lines += [Row(f"goodput, {names[mode]}, r/s", "", f"{rates[mode]:.0f}") for mode in MODES]
    return lines


SECTION_4_4 = Figure(
    "section4.4",
    "Section 4.4, live: sub-clusters of a zoo whose popularity shifts",
    measure,
    draw,
    rows,
    "200 variants of the zoo on 64 GPUs that hold an eighth of it each; shares of the GPUs' time "
    "are Zipf (0.9), and every ten minutes all are dealt again. *bounded* is the scheduler's core: "
    "at most 5% of the GPUs change in a minute, and load at 256 MiB/s. *free* is the same core "
    "without bounds that solves the whole problem every minute and loads in no time; *never* "
    "keeps the first partition. Profiles and targets are 40 times slower than the zoo's, so that "
    "minutes can be simulated; goodput allows 1% of all jobs to be late or dropped. One seed, in "
    "which *free* is no upper bound. The paper gives no number.",
)
