"""Figure 2: goodput and GPU use from no load to overload."""

from typing import NamedTuple

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
    figures_of,
    label,
    new_drawing,
    ratio,
    searches,
)
from loadtest.simulator.models import copies, linear_model
from loadtest.simulator.scenario import Scenario

RESNET_100 = linear_model("resnet", 1.053, 5.072, 100.0)
SCENARIO = Scenario(models=tuple(copies(RESNET_100, 10)), num_gpus=24)


class Load(NamedTuple):
    """One run at an offered rate."""

    scenario: Scenario
    rps: float


def run_at(load: Load) -> Results:
    """What comes of an offered rate."""
    return {"offered_rps": load.rps, **figures_of(load.scenario.run(load.rps))}


def measure(work: Work, effort: Effort) -> Results:
    """Each policy at loads from 1,000 r/s to well over the peak, and its goodput."""
    thousands = effort.pick(
        [3, 25], [1, 3, 8, 14, 18, 20, 22, 30, 42], [1, *range(2, 31), 34, 38, 42]
    )
    scenarios = [SCENARIO.changed(policy=policy) for policy in COMPARED]
    # Not by the number of jobs: what is lost in overload shows after seconds only.
    cold_s, counted_s = effort.pick((0.2, 0.5), (1.0, 1.5), (1.0, 10.0))
    loads = [
        Load(scenario.changed(seconds=cold_s + counted_s, cold_s=cold_s), 1e3 * load)
        for scenario in scenarios
        for load in thousands
    ]
    runs = iter(work.map(run_at, loads))
    peaks = searches(work, effort, scenarios)
    return {
        policy: {"goodput_rps": peak["rps"], "loads": [next(runs) for _ in thousands]}
        for policy, peak in zip(COMPARED, peaks, strict=True)
    }


def draw(results: Results) -> Drawing:
    """Left goodput, right the share of time that GPUs are busy."""
    drawing = new_drawing()
    for index, key in enumerate(("good_rps", "gpu_busy")):
        axes = drawing.add_subplot(1, 2, index + 1)
        for policy, found in results.items():
            axes.plot(
                [load["offered_rps"] / 1e3 for load in found["loads"]],
                [load[key] / (1e3 if key == "good_rps" else 0.01) for load in found["loads"]],
                marker=".",
                label=policy,
                color=colour(policy),
            )
        name = "in time, 1,000 r/s" if key == "good_rps" else "GPUs busy, %"
        label(axes, ("Goodput", "GPU use")[index], "offered, 1,000 r/s", name)
        axes.legend(fontsize=7)
    return drawing


def rows(results: Results) -> list[Row]:
    lines = []
    for policy, found in results.items():
        peak = found["goodput_rps"]
        first = next(load for load in found["loads"] if load["offered_rps"] >= 3000)
        lines.append(Row(f"{policy}, goodput, r/s", "", f"{peak:.0f}"))
        paper_busy = "20%" if policy in OURS else "100%"
        lines.append(
            Row(
                f"{policy}, GPUs busy at {first['offered_rps']:.0f} r/s",
                paper_busy,
                f"{100 * first['gpu_busy']:.0f}%",
            )
        )
        beyond = [load for load in found["loads"] if load["offered_rps"] > 1.05 * peak]
        if beyond and peak:
            worst = min(load["good_rps"] for load in beyond)
            most = max(load["offered_rps"] for load in beyond)
            lines.append(
                Row(
                    f"{policy}, least served beyond the peak, up to {most / peak:.1f} times",
                    "stable" if policy in ("deferred", "nexus") else "",
                    f"{100 * ratio(worst, peak):.0f}%",
                )
            )
        below = [load for load in found["loads"] if load["offered_rps"] < peak]
        if below and peak:
            off = max(abs(load["gpu_busy"] - load["offered_rps"] / peak) for load in below)
            lines.append(
                Row(f"{policy}, GPU use off proportional by at most", "", f"{100 * off:.0f} points")
            )
    return lines


FIGURE_2 = Figure(
    "2",
    "Figure 2: goodput and GPU use by load",
    measure,
    draw,
    rows,
    "10 ResNet models (1.053, 5.072) with targets of 100 ms on 24 GPUs (section 5.4).",
)
