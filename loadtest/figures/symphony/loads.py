"""Figures 1 and 15: how evenly GPUs are loaded."""

from matplotlib.figure import Figure as Drawing

from loadtest.figures.base import Effort, Figure, Results, Row, Work
from loadtest.figures.symphony.runs import NAMES
from loadtest.figures.symphony.skipping import unless_skipped
from loadtest.figures.symphony.sweeps import draw_sweep, how, series, sweep

SHOWN = ["symphony", "recompute", "sticky"]


def measure(work: Work, effort: Effort) -> Results:
    """The fullest GPU over the median one, by users."""
    return sweep(work, effort, SHOWN, effort.pick([64], [256, 1024], [256, 512, 1024]))


def draw(results: Results) -> Drawing:
    """By users."""
    return draw_sweep(results, ["load_max_over_median"])


def rows_of_most(results: Results) -> list[Row]:
    return _rows(results, -1, {"sticky": "300 requests between the fullest and the emptiest GPU"})


def rows_of_few(results: Results) -> list[Row]:
    paper = {
        "sticky": "3.1 (4.3; in 4.2 it is 2.8)",
        "symphony": "balanced",
        "recompute": "balanced",
    }
    return _rows(results, 0, paper)


@unless_skipped
def _rows(results: Results, place: int, paper: dict[str, str]) -> list[Row]:
    users = results["users"][place]
    return [
        Row(
            f"{users} users, fullest over median GPU, {NAMES[system]}",
            paper.get(system, ""),
            f"{series(results, system, 'load_max_over_median')[place]:.2f}",
            how(results),
        )
        for system in SHOWN
    ]


ABOUT = (
    "Turns on the fullest GPU over those on the median one, in the mean over the time. Users only "
    "type (`sharegpt-busy`): people who read, too, would be answered one in ten at a time, and "
    "could not be 300 requests apart."
)
FIGURE_1 = Figure("1", "Figure 1: load of GPUs, 1,024 users", measure, draw, rows_of_most, ABOUT)
FIGURE_15 = Figure("15", "Figure 15: load of GPUs, 256 users", measure, draw, rows_of_few, ABOUT)
