"""Figures 1 and 15: how evenly GPUs are loaded."""

from matplotlib.figure import Figure as Drawing

from loadtest.papers.base import Effort, Figure, Results, Row, Work
from loadtest.papers.symphony.evidence import shares_text
from loadtest.papers.symphony.runs import NAMES
from loadtest.papers.symphony.skipping import unless_skipped
from loadtest.papers.symphony.sweeps import draw_sweep, how, series, sweep

SHOWN = ["symphony", "recompute", "sticky"]
MEASURES = {
    "load_max_over_median": "fullest over median GPU",
    "load_max_minus_min": "turns between the fullest and the emptiest GPU",
}


def measure(work: Work, effort: Effort) -> Results:
    """How even the load is by users: those of Figure 11."""
    return sweep(work, effort, SHOWN, effort.pick([64], [128, 384], [128, 384]))


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
    users = results["users"][place]
    return [
        Row(
            f"{users} users, {MEASURES[measure]}, {NAMES[system]}",
            paper.get(system, "") if measure == compared else "",
            f"{series(results, system, measure)[place]:.2f}",
            how(results),
            shares_text(results["runs"][system][place]),
        )
        for measure in MEASURES
        for system in SHOWN
    ]


ABOUT = (
    "Turns on the fullest GPU over those on the median one, and fewer on the emptiest, in the "
    "mean over the time. The paper's users are of short chats, ours those of Figure 11, and "
    "fewer: two or three turns run on a GPU at a time, so that one more on the fullest is a large "
    "share."
)
FIGURE_1 = Figure("1", "Figure 1: load of GPUs, most users", measure, draw, rows_of_most, ABOUT)
FIGURE_15 = Figure("15", "Figure 15: load of GPUs, fewest users", measure, draw, rows_of_few, ABOUT)
