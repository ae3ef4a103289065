"""Figures 3 (left) and 14: more adapters on one server, asked for as functions are called."""

from functools import partial
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory

import numpy as np
from matplotlib.figure import Figure as Drawing

from loadtest.functions_trace import TRACE
from loadtest.papers.base import Effort, Figure, Results, Row, Work, label, new_drawing
from loadtest.papers.caraserve.arrivals import (
    CACHED,
    METRICS,
    POOL_IMAGES,
    POOL_TURNS,
    Server,
    Traffic,
    measure_server,
)
from loadtest.papers.caraserve.link import LINK_MB_S, SIMULATED_LINK
from loadtest.papers.caraserve.starts import (
    ABOUT,
    NAMES,
    Cell,
    cells,
    draw_over_cached,
    over_cached,
    values,
)
from loadtest.papers.real import here, model_folder, real
from loadtest.popularity import shares_of

RANK = 64
# Adapters, and the load that they bring.
STEPS = ((16, 0.33), (32, 0.67), (64, 1.0))
PAPER_SHARES = ("10%", "16%", "20%")  # section 2.3, at 3, 6 and 9 requests a second
# Section 7.2, in words: over cached with few adapters, and with most.
PAPER_FEW = "about 1"
PAPER_MOST = {"wait": "far above 1", "assist": "near 1"}


def measure(work: Work, effort: Effort) -> Results:
    """More and more adapters under a growing load, by start."""
    if not TRACE.is_file():
        return {"skipped": f"not here: {TRACE}"}
    results = here() | {"link_mb_s": LINK_MB_S}
    starts = effort.pick((CACHED, "wait"), (CACHED, "wait"), (CACHED, "wait", "assist", "auto"))
    num_turns = effort.pick(4, 24, 40)
    traffics = [
        Traffic(load, num_turns, tuple(shares_of("maf", num, TRACE, seed=14).tolist()))
        for num, load in effort.pick(STEPS[:1], STEPS, STEPS)
    ]
    server = Server(
        rank=effort.pick(8, RANK, RANK),
        starts=starts,
        traffics=traffics,
        num_adapters=max(len(each.shares) for each in traffics),
    )
    with TemporaryDirectory() as name:
        source = str(model_folder(effort, results["dtype"], Path(name)))
        (found,) = work.map(partial(measure_server, source), [server])
    return results | found


def _steps(results: Results) -> list[tuple[int, float, dict[str, Cell]]]:
    """Adapters, load and rows by start, of each step; none where nothing was measured."""
    if "skipped" in results:
        return []
    (rank,) = values(results, "rank")
    loads = values(results, "load")
    return [(num, load, cells(results, load, rank)) for num, load in STEPS if load in loads]


def _shares(found: dict[str, Cell]) -> list[float]:
    """Of each turn's time on `wait`, what it takes more than when every adapter is there; below 0
    where it took less."""
    pairs = zip(found["wait"]["latency_ms"], found[CACHED]["latency_ms"], strict=True)
    return [1 - cached / waited for waited, cached in pairs]


def draw_shares(results: Results) -> Drawing:
    """What share of turns spend no more of their time on cold starts, by load."""
    drawing = new_drawing(1)
    axes = drawing.add_subplot()
    for _, load, found in _steps(results):
        shares = sorted(100 * each for each in _shares(found))
        at = np.arange(1, len(shares) + 1) / len(shares)
        axes.step(shares, at, where="post", label=f"load {load:g}")
    axes.set_xlim(left=0)
    label(axes, "cold starts, on `wait`", "% of a turn's time", "share of turns")
    axes.legend(fontsize=7)
    return drawing


def rows_of_shares(results: Results) -> list[Row]:
    if "skipped" in results:
        return [Row(results["skipped"], "", "", "not measured")]
    how, lines = real(results, SIMULATED_LINK), []
    for (num, load, found), paper in zip(_steps(results), PAPER_SHARES, strict=False):
        taken = [sum(found[start]["latency_ms"]) for start in (CACHED, "wait")]
        what = f"load {load:g}, {num} adapters: cold starts' share of all turns' time"
        lines.append(Row(what, paper, f"{100 * (1 - taken[0] / taken[1]):.0f}%", how))
        starts = found["wait"]["starts"]
        there = f"{starts.get('resident', 0)} of {sum(starts.values())}"
        lines.append(Row(f"load {load:g}: turns that found their adapter there", "", there, how))
    return lines


def draw_growing(results: Results) -> Drawing:
    """Over cached, by adapters and load, a line for each start."""
    drawing = new_drawing(len(METRICS), width=3.6)
    steps = _steps(results)
    for index, metric in enumerate(METRICS):
        axes = drawing.add_subplot(1, len(METRICS), index + 1)
        draw_over_cached(
            axes, [found for _, _, found in steps], [num for num, _, _ in steps], metric
        )
        label(axes, NAMES[metric], "adapters", "over cached" if not index else "")
    drawing.axes[0].legend(fontsize=7)
    return drawing


def rows_of_growing(results: Results) -> list[Row]:
    if "skipped" in results:
        return [Row(results["skipped"], "", "", "not measured")]
    how, lines = real(results, SIMULATED_LINK), []
    steps = _steps(results)
    for num, load, found in steps:
        for start in (each for each in found if each != CACHED):
            paper = PAPER_FEW if num == steps[0][0] else PAPER_MOST.get(start, "")
            times = [
                f"{over_cached(found, start, metric):.2f} ({mean(found[start][metric]):.0f} ms)"
                for metric in METRICS
            ]
            what = f"{num} adapters, load {load:g}, {start}: first token, time per token and turn"
            lines.append(Row(f"{what} over cached", paper, ", ".join(times), how))
    return lines


_GROWING = (
    f"{ABOUT} Adapters of rank {RANK} are asked for as functions of the Azure trace were; the pool "
    f"holds {POOL_IMAGES} of them and {POOL_TURNS} turns. With more adapters comes more load."
)
FIGURE_3_LEFT = Figure(
    "3-left",
    "Figure 3, left: cold starts' share of turns",
    measure,
    draw_shares,
    rows_of_shares,
    f"{_GROWING} What a turn takes longer on `wait` than the same turn on `cached`, of its own "
    "loading and of others'.",
)
FIGURE_14 = Figure(
    "14",
    "Figure 14: more adapters on one server",
    measure,
    draw_growing,
    rows_of_growing,
    _GROWING,
)
