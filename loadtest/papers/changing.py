"""Figure 15: a large cluster under a load that changes, and the advice to its autoscaler."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure as Drawing
from numpy.typing import NDArray

from loadtest.papers.base import OURS, Effort, Figure, Results, Row, Work, label, new_drawing
from loadtest.simulator.arrivals import changing
from loadtest.simulator.bounds import staggered_rps
from loadtest.simulator.log import DONE, Ints, Record
from loadtest.simulator.models import SimModel, zoo_models
from loadtest.simulator.scenario import Scenario
from services.scheduler.core.batching.scaling import ScalingAdvisor, ScalingLimits

NUM_MODELS = 24
SEED = 15
PEAK_LOAD = 1.15  # of the staggered bound: some of the time there are too few GPUs


class Part(NamedTuple):
    """The one run of this figure."""

    policy: str
    num_gpus: int
    seconds: float
    num_intervals: int


def measure(work: Work, effort: Effort) -> Results:
    """One run, read off in intervals."""
    num_gpus = effort.pick(8, 96, 512)
    seconds = effort.pick(2.0, 24.0, 60.0)
    part = Part(OURS[0], num_gpus, seconds, effort.pick(8, 48, 120))
    return work.map(simulate, [part])[0]


def pick_models() -> list[SimModel]:
    """24 of the zoo, from the strongest to the weakest batching effect."""
    models = zoo_models("1080ti")
    return [models[round(n)] for n in np.linspace(0, len(models) - 1, NUM_MODELS)]


def synthesise_rates(
    models: list[SimModel], num_gpus: int, knots_s: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Rates of each model at each knot, jobs/s, [M, K]: what cameras see in three days, shortened.

    A wave a day, at another hour for each model, more and less of it, and bursts of several times
    the rate. The sum peaks at `PEAK_LOAD` times the staggered bound.
    """
    rng = np.random.default_rng(SEED)
    length_s = float(knots_s[-1])
    weights = rng.lognormal(0.0, 0.6, len(models)) / [m.alpha_ms for m in models]
    hours = rng.normal(0.0, 0.5, (len(models), 1))
    depth = rng.uniform(0.4, 0.9, (len(models), 1))
    waves = 1 + depth * np.sin(2 * np.pi * 3 * knots_s / length_s - np.pi / 2 + hours)
    bursts = np.ones_like(waves)
    for index in range(len(models)):
        for _ in range(2):
            middle, width = rng.uniform(0, length_s), length_s * rng.uniform(0.01, 0.04)
            bursts[index] += rng.uniform(0.5, 3.0) * np.exp(-(((knots_s - middle) / width) ** 2))
    rates = np.asarray(weights[:, None] * waves * bursts, dtype=np.float64)
    top = int(np.argmax(rates.sum(axis=0)))
    bound = staggered_rps(models, rates[:, top].tolist(), num_gpus)
    return rates * (PEAK_LOAD * bound / float(rates[:, top].sum()))


def simulate(part: Part) -> Results:
    """Run it, and read the run off in intervals as a monitor would."""
    models = pick_models()
    knots_s = np.linspace(0.0, part.seconds, 4 * part.num_intervals + 1)
    rates = synthesise_rates(models, part.num_gpus, knots_s)
    scenario = Scenario(
        models=tuple(models),
        num_gpus=part.num_gpus,
        policy=part.policy,
        seconds=part.seconds,
        cold_s=0.0,
        seed=SEED,
    )
    arrivals = changing(knots_s, rates, SEED)
    result, record = scenario.record(arrivals)
    return {
        "policy": part.policy,
        "num_gpus": part.num_gpus,
        "seconds": part.seconds,
        "num_jobs": result.num_jobs,
        "models": [model.name for model in models],
        **read_off(record, part.num_intervals),
    }


def read_off(record: Record, num_intervals: int) -> Results:
    """Good jobs of each model, bad ones, GPUs' use and advice in each interval."""
    edges = np.linspace(0, record.arrivals.end_ns, num_intervals + 1)
    length_s = float(edges[1]) / 1e9
    slot = np.minimum(np.searchsorted(edges, record.arrivals.at_ns, "right") - 1, num_intervals - 1)
    done = record.by_job(record.end) == DONE
    refs = record.refs[done]
    good = refs[record.by_job(record.end_ns)[done] <= record.deadline_ns[refs]]
    num_models = len(record.models)
    by_model = np.zeros((num_models, num_intervals))
    np.add.at(by_model, (record.arrivals.model[good], slot[good]), 1)
    offered = np.bincount(slot, minlength=num_intervals)
    num_good = by_model.sum(axis=0).astype(int)
    busy = busy_by_interval(record, edges)
    advice = advise(num_good, offered - num_good, busy, length_s, record.num_gpus)
    return {
        "interval_s": length_s,
        "good_rps": (by_model / length_s).round(1).tolist(),
        "offered_rps": (offered / length_s).round(1).tolist(),
        "bad_rate": ((offered - num_good) / np.maximum(offered, 1)).round(5).tolist(),
        "gpus_busy": busy.round(2).tolist(),
        "advice": advice,
    }


def busy_by_interval(record: Record, edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """How many GPUs ran batches on average, in each interval."""
    moments = np.concatenate([record.start_ns, record.end_ns]).astype(np.float64)
    steps = np.concatenate([np.ones(len(record.start_ns)), -np.ones(len(record.end_ns))])
    order = np.argsort(moments, kind="stable")
    at, running = moments[order], np.cumsum(steps[order])
    spent = np.concatenate([[0.0], np.cumsum(running[:-1] * np.diff(at))])
    by_edge = np.interp(edges, at, spent)
    return np.asarray(np.diff(by_edge) / np.diff(edges), dtype=np.float64)


def advise(
    num_good: Ints, num_bad: Ints, busy: NDArray[np.float64], length_s: float, num_gpus: int
) -> list[int]:
    """GPUs to add, or below 0 to take away, after each interval. The advice is not followed."""
    interval_ns = round(length_s * 1e9)
    limits = ScalingLimits(
        gpus_max=4 * num_gpus, window_ns=2 * interval_ns, warmup_ns=2 * interval_ns
    )
    advisor = ScalingAdvisor(num_gpus, limits)
    advice = []
    for index in range(len(num_good)):
        now_ns = (index + 1) * interval_ns
        share = float(busy[index]) / num_gpus
        advisor.on_interval(int(num_good[index]), int(num_bad[index]), share, num_gpus, now_ns)
        given = advisor.advice(now_ns)
        advice.append(given.add - given.remove)
    return advice


def draw(results: Results) -> Drawing:
    """As in the paper: load, GPUs in use, advice, bad rate."""
    drawing = new_drawing(2, 4, 1.7)
    instants = (np.arange(len(results["offered_rps"])) + 0.5) * results["interval_s"]
    axes = drawing.add_subplot(4, 1, 1)
    good = np.array(results["good_rps"]) / 1e3
    bad = np.array(results["offered_rps"]) / 1e3 - good.sum(axis=0)
    axes.stackplot(instants, good, lw=0)
    axes.fill_between(instants, good.sum(axis=0), good.sum(axis=0) + bad, color="0.4", lw=0)
    label(
        axes, f"{results['num_gpus']} GPUs, {NUM_MODELS} models; grey: not served", "", "1,000 r/s"
    )
    axes = drawing.add_subplot(4, 1, 2)
    axes.plot(instants, results["gpus_busy"], color="#2e86c1")
    axes.axhline(results["num_gpus"], color="k", lw=0.8, ls="--")
    label(axes, "", "", "GPUs busy")
    axes = drawing.add_subplot(4, 1, 3)
    axes.step(instants, results["advice"], where="mid", color="#239b56")
    axes.axhline(0, color="k", lw=0.8)
    label(axes, "", "", "advice, GPUs")
    axes = drawing.add_subplot(4, 1, 4)
    axes.plot(instants, [100 * rate for rate in results["bad_rate"]], color="#c0392b")
    label(axes, "", "time, s", "bad, %")
    return drawing


def rows(results: Results) -> list[Row]:
    offered, busy = np.array(results["offered_rps"]), np.array(results["gpus_busy"])
    bad = np.array(results["bad_rate"])
    calm = busy < 0.9 * results["num_gpus"]
    calm_bad = float((bad * offered)[calm].sum() / max(offered[calm].sum(), 1.0))
    fit = np.polyfit(offered[calm], busy[calm], 1) if calm.sum() > 2 else np.zeros(2)
    off = np.abs(np.polyval(fit, offered[calm]) - busy[calm]).max(initial=0.0)
    return [
        Row("requests simulated", "", f"{results['num_jobs']:,}"),
        Row("bad rate while GPUs are under 90% busy", "low", f"{100 * calm_bad:.2f}%"),
        Row("highest bad rate of an interval", "", f"{100 * bad.max():.1f}%"),
        Row(
            "GPUs busy in the interval of least and of most load",
            "follows the load",
            f"{busy[int(np.argmin(offered))]:.0f} and {busy[int(np.argmax(offered))]:.0f}"
            f" of {results['num_gpus']}",
        ),
        Row(
            "GPUs busy off a straight line over the load, at most",
            "",
            f"{100 * off / results['num_gpus']:.1f}% of the GPUs",
        ),
        Row(
            "advice, from and to, GPUs",
            "",
            f"{min(results['advice']):+d} and {max(results['advice']):+d}",
        ),
    ]


FIGURE_15 = Figure(
    "15",
    "Figure 15: a changing workload on a large cluster",
    measure,
    draw,
    rows,
    "The paper's rates come from 150 hours of video, which are not public. Here they are a seeded "
    "sum of daily waves and bursts, three days shortened to a minute, with a peak 15% over the "
    "staggered bound. The advice is not followed, so it is repeated at every interval.",
)
