"""Systems by numbers of users: what several figures are."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from loadtest.papers.base import Effort, Results, Row, Work, label, new_drawing, ratio
from loadtest.papers.symphony.evidence import mark, shares_text, verdict
from loadtest.papers.symphony.runs import COLOURS, NAMES, SYSTEMS, options, run_all
from loadtest.plots import doubling_x
from loadtest.sim.timeline import SECOND

METRICS = {
    "tpot_ms": "TPOT, ms",
    "ttft_ms": "TTFT of returning turns, ms",
    "ttft_p50_ms": "TTFT of returning turns, p50, ms",
    "ttft_p99_ms": "TTFT of returning turns, p99, ms",
    "requests_per_s": "requests a second",
    "normalized_ms": "ms a token, all of a turn",
    "load_max_over_median": "fullest GPU over median",
}


def sweep(
    work: Work, effort: Effort, systems: Sequence[str], users: Sequence[int], **changes: Any
) -> Results:
    """``{"users", "gpus", "trace", "runs": {system: [summary by users]}}``."""
    asked = [
        options(effort, users=each, **SYSTEMS[system], **changes)
        for system in systems
        for each in users
    ]
    found = run_all(work, asked)
    if skipped := [each["skipped"] for each in found if "skipped" in each]:
        return {"skipped": skipped[0]}
    size = len(users)
    return {
        "users": list(users),
        "gpus": asked[0].gpus,
        "trace": asked[0].trace,
        "profile": Path(asked[0].profile).name.removesuffix(".json"),
        "seconds": asked[0].duration_ns // SECOND,
        "warm_s": asked[0].warm_ns // SECOND,
        "runs": {
            system: found[place * size : (place + 1) * size] for place, system in enumerate(systems)
        },
    }


def how(results: Results) -> str:
    """How its rows were come to."""
    return (
        f"simulated: {results['gpus']} GPUs, {results['profile']}, {results['trace']}, "
        f"{results['seconds']} s after {results['warm_s']}"
    )


def series(results: Results, system: str, metric: str) -> list[float]:
    """By users."""
    return [each[metric] for each in results["runs"][system]]


def draw_sweep(results: Results, metrics: Sequence[str]) -> Drawing:
    """A plot for each metric, a line for each system."""
    drawing = new_drawing(len(metrics))
    for index, metric in enumerate(metrics):
        axes = drawing.add_subplot(1, len(metrics), index + 1)
        draw_metric(axes, results, metric)
    return drawing


def draw_metric(axes: Axes, results: Results, metric: str) -> None:
    """One plot of `draw_sweep`; says so if there is nothing to draw."""
    if "skipped" in results:
        axes.plot([0], [0])
        label(axes, "no data", "users", METRICS[metric])
        return
    for system in results["runs"]:
        values = series(results, system, metric)
        axes.plot(results["users"], values, ".-", color=COLOURS.get(system), label=system)
    doubling_x(axes)
    label(axes, results["profile"], "users", METRICS[metric])
    axes.legend(fontsize=7)


def rows_of_values(results: Results, metrics: Sequence[str]) -> list[Row]:
    """Each system's, from the fewest users to the most, with where their history came from at the
    most; and whether this load is one in which that matters."""
    users = "/".join(str(each) for each in results["users"])
    return [
        Row(
            f"{METRICS[metric]}, {NAMES.get(system, system)}, {users} users",
            "",
            " / ".join(f"{value:.4g}" for value in series(results, system, metric)),
            how(results),
            shares_text(runs[-1]),
        )
        for metric in metrics
        for system, runs in results["runs"].items()
    ]


def row_of_load(results: Results) -> Row:
    """Whether this load touches what the figure is about."""
    found = verdict(results["runs"]["symphony"])
    return Row("what this load is about", "KV beyond GPUs", found, how(results))


def row_of_ratio(
    results: Results, metric: str, system: str, paper: str, least: float | None = None
) -> Row:
    """How many times better ours is than another system's: the range over users.

    Args:
        least: what the paper's number comes to; None: nothing to meet.
    """
    theirs, ours = series(results, system, metric), series(results, "symphony", metric)
    better = [
        ratio(mine, other) if metric == "requests_per_s" else ratio(other, mine)
        for other, mine in zip(theirs, ours, strict=True)
    ]
    runs = results["runs"]["symphony"]
    name = METRICS[metric].removesuffix(", ms")
    return Row(
        f"{name}: how many times better than {NAMES[system]}",
        paper,
        f"{min(better):.2f} to {max(better):.2f}" if len(better) > 1 else f"{better[0]:.2f}",
        how(results),
        shares_text(runs[-1]),
        "" if least is None else mark(runs, [each >= least for each in better]),
    )


def row_of_best(results: Results, metric: str) -> Row:
    """How many times better ours is than the best of all others, without hints included."""
    users, runs = results["users"], results["runs"]
    texts = []
    for place, number in enumerate(users):
        values = {
            system: of_system[place][metric]
            for system, of_system in runs.items()
            if not system.startswith("symphony")
        }
        is_rate = metric == "requests_per_s"
        best = (
            max(values, key=values.__getitem__) if is_rate else min(values, key=values.__getitem__)
        )
        ours = runs["symphony"][place][metric]
        better = ratio(ours, values[best]) if is_rate else ratio(values[best], ours)
        texts.append(f"{number} users: {better:.2f} ({NAMES.get(best, best)})")
    name = METRICS[metric].removesuffix(", ms")
    what = f"{name}: how many times better than the best other"
    return Row(what, "", "; ".join(texts), how(results), shares_text(runs["symphony"][-1]))


def users_at(results: Results, system: str, tpot_ms: float) -> float:
    """The most users at which TPOT is no more than that, between the numbers that were run by a
    straight line; 0: it is more from the fewest on."""
    return crossing(results["users"], series(results, system, "tpot_ms"), tpot_ms)


def crossing(users: Sequence[float], values: Sequence[float], most: float) -> float:
    """
    >>> crossing([64, 128], [10.0, 20.0], 15.0), crossing([64, 128], [10.0, 20.0], 30.0)
    (96.0, 128)
    >>> crossing([64, 128], [10.0, 20.0], 5.0)
    0.0
    """
    found = 0.0
    for place, value in enumerate(values):
        if value <= most:
            found = users[place]
            continue
        if place and values[place - 1] <= most:
            share = (most - values[place - 1]) / (value - values[place - 1])
            found = users[place - 1] + share * (users[place] - users[place - 1])
        break
    return found
