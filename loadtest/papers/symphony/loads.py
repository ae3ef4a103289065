"""Figures 1 and 15: how evenly GPUs are loaded."""

from matplotlib.figure import Figure as Drawing

from loadtest.papers.base import Effort, Figure, Results, Row, Work
from loadtest.papers.symphony.runs import NAMES, READING_WARM_NS
from loadtest.papers.symphony.skipping import unless_skipped
from loadtest.papers.symphony.sweeps import draw_sweep, how, series, sweep

SHOWN = ["symphony", "recompute", "sticky"]
MEASURES = {
    "load_max_over_median": "fullest over median GPU",
    "load_max_minus_min": "turns between the fullest and the emptiest GPU",
}


def measure(work: Work, effort: Effort) -> Results:
    """How even the load is by users, who only type; and who read, too."""
    users = effort.pick([64], [256, 1024], [256, 512, 1024])
    results = sweep(work, effort, SHOWN, users)
    if effort.level != "tiny" and "skipped" not in results:
        results["reading"] = sweep(
            work, effort, SHOWN, users, trace="sharegpt-like", warm_ns=READING_WARM_NS
        )
    return results


def draw(results: Results) -> Drawing:
    """By users."""
    return draw_sweep(results, ["load_max_over_median"])


def rows_of_most(results: Results) -> list[Row]:
    compared = "300 requests between the fullest and the emptiest GPU"
    return _rows(results, -1, "load_max_minus_min", {"sticky": compared})


def rows_of_few(results: Results) -> list[Row]:
    paper = {
        "sticky": "3.1 (4.3; in 4.2 it is 2.8)",
        "symphony": "balanced",
        "recompute": "balanced",
    }
    return _rows(results, 0, "load_max_over_median", paper)


@unless_skipped
def _rows(results: Results, place: int, compared: str, paper: dict[str, str]) -> list[Row]:
    """Of both measures; the paper has numbers of the one that is `compared`."""
    rows = []
    for who in ("type", "read and type"):
        runs = results if who == "type" else results.get("reading", {})
        if "runs" not in runs:
            continue
        users = runs["users"][place]
        rows += [
            Row(
                f"{users} users who {who}, {MEASURES[measure]}, {NAMES[system]}",
                paper.get(system, "") if measure == compared and who == "type" else "",
                f"{series(runs, system, measure)[place]:.2f}",
                how(runs),
            )
            for measure in MEASURES
            for system in SHOWN
        ]
    return rows


ABOUT = (
    "Turns on the fullest GPU over those on the median one, and fewer on the emptiest, in the mean "
    "over the time. Users who only type (`sharegpt-busy`) are those of the plot. Of people who "
    "read, too, one in ten is being answered at a time: they could not be 300 requests apart, and "
    "what few turns there are lie unevenly where sessions stay."
)
FIGURE_1 = Figure("1", "Figure 1: load of GPUs, 1,024 users", measure, draw, rows_of_most, ABOUT)
FIGURE_15 = Figure("15", "Figure 15: load of GPUs, 256 users", measure, draw, rows_of_few, ABOUT)
