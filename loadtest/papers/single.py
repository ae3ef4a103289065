"""One model on 8 GPUs: Table 2, and the batches and waits behind it (Figures 1 and 12)."""

from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure as Drawing

from loadtest.papers.base import (
    COMPARED,
    OURS,
    Effort,
    Figure,
    Results,
    Row,
    Work,
    colour,
    label,
    new_drawing,
    ratio,
)
from loadtest.simulator.bounds import staggered_rps, uncoordinated_rps
from loadtest.simulator.log import DONE
from loadtest.simulator.models import linear_model
from loadtest.simulator.scenario import Scenario
from loadtest.simulator.search import find_goodput

NUM_GPUS = 8
PROFILES = {
    "ResNet50": linear_model("ResNet50", 1.053, 5.072, 25.0),
    "InceptionResNetV2": linear_model("InceptionResNetV2", 5.090, 18.368, 70.0),
}
PERCENTS = list(range(0, 101, 2))

# Table 2 and section 2.2.
PAPER_RPS: dict[str, dict[str, float]] = {
    "ResNet50": {"deferred": 5264, "clockwork": 1358, "nexus": 4027, "shepherd": 4445},
    "InceptionResNetV2": {"deferred": 926, "clockwork": 458, "nexus": 618, "shepherd": 778},
}
PAPER_BATCH: dict[str, dict[str, int]] = {
    "ResNet50": {"deferred": 14, "clockwork": 1, "nexus": 6, "shepherd": 9},
    "InceptionResNetV2": {"deferred": 8, "clockwork": 1, "nexus": 2, "shepherd": 4},
}


class Part(NamedTuple):
    """A search, and a look at the run that it ends with."""

    scenario: Scenario
    tolerance: float


def look(part: Part) -> Results:
    """Goodput, batch sizes and queueing delays."""
    found = find_goodput(part.scenario, part.tolerance)
    if found.result is None:
        return {"rps": 0.0, "batch_p50": 0, "sizes": {}, "queueing_ms": [0.0] * len(PERCENTS)}
    result, record = part.scenario.record(part.scenario.arrivals(found.rps))
    ran = record.by_job(record.end) == DONE
    waits = record.by_job(record.start_ns)[ran] - record.arrivals.at_ns[record.refs[ran]]
    return {
        "rps": round(found.rps, 1),
        "batch_p50": result.batch_p50,
        "gpu_busy": round(result.gpu_busy, 4),
        "sizes": {str(size): count for size, count in result.models[0].batch_sizes.items()},
        "queueing_ms": [round(float(ms), 3) for ms in np.percentile(waits, PERCENTS) / 1e6],
    }


def measure(work: Work, effort: Effort) -> Results:
    """Every policy's goodput for both models."""
    cases = [(name, policy) for name in PROFILES for policy in (*COMPARED, "eager")]
    parts = [
        Part(
            effort.sized(Scenario(models=(PROFILES[name],), num_gpus=NUM_GPUS, policy=policy)),
            effort.tolerance,
        )
        for name, policy in cases
    ]
    results: dict[str, Any] = {name: {"policies": {}} for name in PROFILES}
    for (name, policy), value in zip(cases, work.map(look, parts), strict=True):
        results[name]["policies"][policy] = value
    for name, model in PROFILES.items():
        results[name]["staggered_rps"] = round(staggered_rps([model], [1.0], NUM_GPUS), 1)
        results[name]["uncoordinated_rps"] = round(uncoordinated_rps(model, NUM_GPUS), 1)
    return results


def rows_of_table(results: Results) -> list[Row]:
    rows = []
    for name, found in results.items():
        for policy, value in found["policies"].items():
            paper = PAPER_RPS[name].get(policy)
            rows.append(
                Row(
                    f"{name}, {policy}, r/s",
                    f"{paper:g}" if paper else "",
                    f"{value['rps']:.0f}",
                )
            )
        rows.append(
            Row(
                f"{name}, staggered bound, r/s",
                {"ResNet50": "5839", "InceptionResNetV2": "1083"}[name],
                f"{found['staggered_rps']:.0f}",
            )
        )
        rows.append(
            Row(
                f"{name}, bound without coordination, r/s",
                {"ResNet50": "4501", "InceptionResNetV2": "713"}[name],
                f"{found['uncoordinated_rps']:.0f}",
            )
        )
    return rows


def draw_table(results: Results) -> Drawing:
    """Goodput as bars, the paper's as marks, the bounds as lines."""
    drawing = new_drawing()
    for index, (name, found) in enumerate(results.items()):
        axes = drawing.add_subplot(1, 2, index + 1)
        policies = found["policies"]
        for place, (policy, value) in enumerate(policies.items()):
            axes.bar(place, value["rps"], color=colour(policy))
            paper = PAPER_RPS[name].get(policy)
            if paper:
                axes.plot(place, paper, "kD", markersize=5)
        axes.axhline(found["staggered_rps"], color="k", lw=0.8, ls="--")
        axes.axhline(found["uncoordinated_rps"], color="k", lw=0.8, ls=":")
        axes.set_xticks(range(len(policies)), list(policies), rotation=25, ha="right")
        label(axes, f"{name} (diamonds: paper; lines: bounds)", "", "goodput, r/s")
    return drawing


def draw_batches(results: Results) -> Drawing:
    """Share of jobs that ran in a batch of at most this size."""
    drawing = new_drawing()
    for index, (name, found) in enumerate(results.items()):
        axes = drawing.add_subplot(1, 2, index + 1)
        for policy, value in found["policies"].items():
            sizes = {int(size): count for size, count in value["sizes"].items()}
            total = sum(sizes.values())
            shares = np.cumsum([sizes[size] for size in sorted(sizes)]) / max(total, 1)
            axes.step(sorted(sizes), shares, where="post", label=policy, color=colour(policy))
        label(axes, name, "batch size", "share of jobs")
        axes.legend(fontsize=7)
    return drawing


def rows_of_batches(results: Results) -> list[Row]:
    return [
        Row(
            f"{name}, {policy}, median batch",
            str(PAPER_BATCH[name].get(policy, "")),
            f"{value['batch_p50']:g}",
        )
        for name, found in results.items()
        for policy, value in found["policies"].items()
    ]


def draw_queueing(results: Results) -> Drawing:
    """Share of jobs that waited at most so long."""
    drawing = new_drawing()
    for index, (name, found) in enumerate(results.items()):
        axes = drawing.add_subplot(1, 2, index + 1)
        for policy, value in found["policies"].items():
            axes.plot(
                value["queueing_ms"],
                [percent / 100 for percent in PERCENTS],
                label=policy,
                color=colour(policy),
            )
        label(axes, f"{name}, target {PROFILES[name].slo_ms:g} ms", "queueing delay, ms", "share")
        axes.legend(fontsize=7)
    return drawing


def rows_of_queueing(results: Results) -> list[Row]:
    rows = []
    for name, found in results.items():
        policies = found["policies"]
        for policy, value in policies.items():
            rows.append(
                Row(
                    f"{name}, {policy}, queueing delay p50 / p98, ms",
                    "",
                    f"{value['queueing_ms'][25]:.1f} / {value['queueing_ms'][49]:.1f}",
                )
            )
        for other in ("nexus", "clockwork"):
            if other in policies:
                times = ratio(
                    policies[other]["queueing_ms"][25], policies[OURS[0]]["queueing_ms"][25]
                )
                rows.append(
                    Row(f"{name}, median of {other} over {OURS[0]}", "2 to 3", f"{times:.1f}")
                )
    return rows


_ABOUT = "One model on 8 GPUs, Poisson arrivals, each policy at its own goodput."
TABLE_2 = Figure(
    "table2", "Table 2: goodput of one model on 8 GPUs", measure, draw_table, rows_of_table, _ABOUT
)
FIGURE_1 = Figure("1", "Figure 1: batch sizes", measure, draw_batches, rows_of_batches, _ABOUT)
FIGURE_12 = Figure(
    "12", "Figure 12: queueing delay", measure, draw_queueing, rows_of_queueing, _ABOUT
)
