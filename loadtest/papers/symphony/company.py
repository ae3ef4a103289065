"""Figure 16: agents that write code."""

from matplotlib.figure import Figure as Drawing

from loadtest.papers.base import Effort, Figure, Results, Row, Work, label, new_drawing, ratio
from loadtest.papers.symphony.evidence import mark, shares_text
from loadtest.papers.symphony.runs import COLOURS, SYSTEMS, options, run_all
from loadtest.papers.symphony.skipping import unless_skipped
from loadtest.sim.timeline import SECOND

FILES = [4, 8, 12]
SHOWN = {
    "symphony": "ours",
    "no hints": "ours without hints",
    "recompute": "vLLM",
    "sticky": "in place of Parrot",
}


def measure(work: Work, effort: Effort) -> Results:
    """Seconds of a workflow, by files and system."""
    files = effort.pick([4], FILES[-1:], FILES)
    num_workflows = effort.pick(4, 48, 96)
    seconds = effort.pick(60, 3600, 3600)  # at most: a run ends with its last workflow
    asked = [
        options(
            effort,
            **SYSTEMS[system],
            trace=f"metagpt-{each}",
            users=num_workflows,
            warm_ns=0,
            duration_ns=seconds * SECOND,
        )
        for system in SHOWN
        for each in files
    ]
    found = run_all(work, asked)
    if skipped := [each["skipped"] for each in found if "skipped" in each]:
        return {"skipped": skipped[0]}
    return {
        "files": files,
        "workflows": asked[0].users,
        "gpus": asked[0].gpus,
        "profile": asked[0].profile,
        "runs": {
            system: found[place * len(files) : (place + 1) * len(files)]
            for place, system in enumerate(SHOWN)
        },
    }


def draw(results: Results) -> Drawing:
    """Bars, by files."""
    drawing = new_drawing(1)
    axes = drawing.add_subplot()
    for place, (system, runs) in enumerate(results.get("runs", {"": []}).items()):
        where = [each + (place - 1.5) * 0.2 for each in range(len(runs))]
        seconds = [each["workflow_s"] for each in runs]
        axes.bar(where, seconds, 0.18, color=COLOURS.get(system), label=system or "no data")
    axes.set_xticks(range(len(results.get("files", []))), results.get("files", []))
    label(axes, "a workflow of MetaGPT", "files", "seconds")
    axes.legend(fontsize=7)
    return drawing


@unless_skipped
def rows(results: Results) -> list[Row]:
    source = (
        f"simulated: {results['gpus']} GPUs, {results['profile']}, {results['workflows']} workflows"
    )
    times = {
        system: [each["workflow_s"] for each in runs] for system, runs in results["runs"].items()
    }
    runs, lines = results["runs"], []
    for system, paper, least in (
        ("recompute", "up to 2.8", 2.8), ("sticky", "up to 1.7", 1.7), ("no hints", "", 0.0)
    ):  # fmt: skip
        better = [
            ratio(each, ours) for each, ours in zip(times[system], times["symphony"], strict=True)
        ]
        files = "/".join(map(str, results["files"]))
        lines.append(
            Row(
                f"{system} ({SHOWN[system]}) over ours, {files} files",
                paper,
                " / ".join(f"{each:.2f}" for each in better),
                source,
                shares_text(runs["symphony"][-1]),
                mark(runs["symphony"], [each >= least for each in better]) if paper else "",
            )
        )
    for system, values in times.items():
        seconds = " / ".join(f"{each:.1f}" for each in values)
        unfinished = sum(each["unfinished"] for each in runs[system])
        what = f"{system}, s a workflow ({unfinished} turns not over)"
        lines.append(Row(what, "", seconds, source, shares_text(runs[system][-1])))
    return lines


FIGURE_16 = Figure(
    "16",
    "Figure 16: MetaGPT",
    measure,
    draw,
    rows,
    "Calls and tokens as Parrot's authors logged them, 8 files; 4 and 12 are made of these. Each "
    "agent keeps its conversation, as the paper says of MetaGPT; the logged prompts themselves "
    "share little more than their system prompts from round to round. Parrot is not here: `sticky` "
    "stands in its place, and is better than Parrot, which keeps KV on GPUs alone.",
)
