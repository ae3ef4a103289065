"""Beyond the paper: loads of agents with tools, and of requests that are not announced."""

from matplotlib.figure import Figure as Drawing

from loadtest.papers.base import Effort, Figure, Results, Row, Work, label, new_drawing, ratio
from loadtest.papers.symphony.evidence import shares_text, verdict
from loadtest.papers.symphony.runs import COLOURS, NAMES, SYSTEMS, options, run_all

# With the users that load eight GPUs, and whether anybody says what comes.
LOADS = {
    "servegen": (768, "never announced"),
    "mooncake": (1024, "announced"),
    "lmcache-agents": (256, "announced"),
}
SHOWN = ["symphony", "no hints", "prefix-cache", "sticky"]
METRICS = {"ttft_ms": "TTFT of returning turns", "tpot_ms": "TPOT"}


def measure(work: Work, effort: Effort) -> Results:
    """``{"runs": {trace: {system: summary}}, "absent": {trace: why}}``."""
    loads = effort.pick(["lmcache-agents"], list(LOADS), list(LOADS))
    asked = {
        (trace, system): options(effort, **SYSTEMS[system], trace=trace, users=LOADS[trace][0])
        for trace in loads
        for system in SHOWN
    }
    found = dict(zip(asked, run_all(work, asked.values()), strict=True))
    results: Results = {
        "gpus": next(iter(asked.values())).gpus,
        "profile": next(iter(asked.values())).profile,
        "runs": {},
        "absent": {},
    }
    for (trace, system), run in found.items():
        if "skipped" in run:
            results["absent"][trace] = run["skipped"]
        else:
            results["runs"].setdefault(trace, {})[system] = run
    return results


def draw(results: Results) -> Drawing:
    """Bars of both times over ours, by load."""
    drawing = new_drawing(len(METRICS))
    runs = results["runs"]
    for index, (metric, name) in enumerate(METRICS.items()):
        axes = drawing.add_subplot(1, len(METRICS), index + 1)
        for place, system in enumerate(SHOWN):
            where = [each + (place - 1.5) * 0.2 for each in range(len(runs))]
            times = [
                ratio(each[system][metric], each["symphony"][metric]) for each in runs.values()
            ]
            axes.bar(where, times, 0.18, color=COLOURS[system], label=system)
        axes.set_xticks(range(len(runs)), list(runs), rotation=30, fontsize=7)
        label(axes, f"{name} over ours", "", "")
        axes.legend(fontsize=7)
    return drawing


def rows(results: Results) -> list[Row]:
    """Of each load; a line that says why of what is not here."""
    lines = [
        Row(f"{trace}: {why}", "", "", "not measured") for trace, why in results["absent"].items()
    ]
    source = f"simulated: {results['gpus']} GPUs, {results['profile']}"
    for trace, runs in results["runs"].items():
        users, announced = LOADS[trace]
        for metric, name in METRICS.items():
            ours = runs["symphony"][metric]
            beside = ", ".join(
                f"{runs[system][metric]:.4g} ({ratio(runs[system][metric], ours):.2f})"
                for system in SHOWN[1:]
            )
            what = f"{trace}, {users} users, {announced}: {name}, ms"
            text = f"{ours:.4g} beside {beside}"
            lines.append(Row(what, "", text, source, shares_text(runs["symphony"])))
        lines.append(Row(f"{trace}: the load", "", verdict([runs["symphony"]]), source))
    return lines


FIGURE_LOADS = Figure(
    "loads",
    "Other loads",
    measure,
    draw,
    rows,
    f"Not in the paper. Ours beside, in this order, ours without hints, {NAMES['prefix-cache']}, "
    f"and {NAMES['sticky']}; in brackets over ours. Users of `servegen` stand for as many "
    "requests as so many people of `sharegpt-like` send: each is a session of its own, of which "
    "nothing can be known before, so that what is to be seen is that nothing is lost. `mooncake` "
    "is Kimi's trace at its own pace. Agents' next turns are announced when their tools begin.",
)
