"""Figures 10, 11 and 13: turns whose adapters are not there, with Poisson arrivals."""

import random
from functools import partial
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from loadtest.papers.base import (
    Effort,
    Figure,
    Results,
    Row,
    Work,
    label,
    marked,
    new_drawing,
    ratio,
)
from loadtest.papers.caraserve.arrivals import (
    CACHED,
    METRICS,
    OUTPUTS,
    PROMPTS,
    STARTS,
    Server,
    Traffic,
    measure_server,
)
from loadtest.papers.caraserve.link import LINK_MB_S, SIMULATED_LINK
from loadtest.papers.real import here, model_folder, real
from loadtest.plots import doubling_x

COLOURS = {
    CACHED: "#34495e",
    "wait": "#c0392b",
    "stream": "#e08e45",
    "assist": "#2e86c1",
    "auto": "#239b56",
}
NAMES = {
    "ttft_ms": "first token",
    "token_ms": "time per token",
    "latency_ms": "whole turn",
}
HEAVY, LIGHT = 1.0, 0.5
WITHIN_CHANCE = "within chance"
DRAWS, SEED = 1000, 10  # of the same turns again, for what chance does to a ratio of medians
# Section 7.2, in words: on demand is far above what is cached, assisted is close to it.
PAPER_OVER = {"wait": "far above 1", "assist": "near 1"}
Cell = dict[str, Any]


def measure(work: Work, effort: Effort) -> Results:
    """Turns on adapters that are never there, by rank, load and start, over the simulated link."""
    results = here() | {"link_mb_s": LINK_MB_S}
    first, *others = effort.pick((8,), (64,), (64, 16))
    starts = effort.pick((CACHED, "wait"), (CACHED, "wait", "assist", "auto"), (CACHED, *STARTS))
    num_turns = effort.pick(4, 24, 40)
    heavy, light = Traffic(HEAVY, num_turns), Traffic(LIGHT, num_turns)
    with TemporaryDirectory() as name:
        source = str(model_folder(effort, results["dtype"], Path(name)))
        measured = partial(measure_server, source)
        server = Server(rank=first, starts=starts, traffics=(heavy, light))
        (found,) = work.map(measured, [server])
        lone_s, rows = found["lone_s"], found["rows"]
        servers = [
            Server(rank=rank, starts=starts, traffics=(heavy,), lone_s=lone_s) for rank in others
        ]
        for more in work.map(measured, servers):
            rows += more["rows"]
    return results | {"lone_s": lone_s, "rows": rows}


def cells(results: Results, load: float, rank: int) -> dict[str, Cell]:
    """By start."""
    return {
        row["start"]: row for row in results["rows"] if row["load"] == load and row["rank"] == rank
    }


def values(results: Results, name: str) -> list[Any]:
    """All that `name` is in some row, sorted."""
    return sorted({row[name] for row in results["rows"]})


def over_cached(found: dict[str, Cell], start: str, metric: str) -> float:
    """Of means."""
    return ratio(mean(found[start][metric]), mean(found[CACHED][metric]))


def _of_prompt(row: Cell, prompt: int) -> list[float]:
    """Milliseconds to first tokens of turns with such a prompt."""
    pairs = zip(row["prompts"], row["ttft_ms"], strict=True)
    return [ms for each, ms in pairs if each == prompt]


def _shown(results: Results) -> tuple[int, dict[str, Cell]]:
    """The largest rank, and its rows under the heavy load."""
    rank = max(values(results, "rank"))
    return rank, cells(results, HEAVY, rank)


def draw_distributions(results: Results) -> Drawing:
    """Share of turns that took no longer, at the largest rank."""
    _, found = _shown(results)
    drawing = new_drawing(len(METRICS), width=3.6)
    for index, metric in enumerate(METRICS):
        axes = drawing.add_subplot(1, len(METRICS), index + 1)
        for start, row in found.items():
            shares = np.arange(1, len(row[metric]) + 1) / len(row[metric])
            axes.step(sorted(row[metric]), shares, where="post", label=start, color=COLOURS[start])
        axes.set_xlim(left=0)
        label(axes, NAMES[metric], "ms", "share of turns" if not index else "")
    drawing.axes[0].legend(fontsize=7)
    return drawing


def rows_of_distributions(results: Results) -> list[Row]:
    how, lines = real(results, SIMULATED_LINK), []
    rank, found = _shown(results)
    for start, row in found.items():
        for metric in METRICS:
            what = f"rank {rank}, {start}, {NAMES[metric]}, ms"
            over = f"{mean(row[metric]):.0f}"
            if start != CACHED:
                over += f" ({over_cached(found, start, metric):.2f})"
            paper = PAPER_OVER.get(start, "")
            lines.append(Row(f"{what} (over cached)" if paper else what, paper, over, how))
    return lines + rows_of_auto(results)


def rows_of_auto(results: Results) -> list[Row]:
    """What `auto` takes over the better of its two, wherever all three were measured."""
    how, lines = real(results, SIMULATED_LINK), []
    for load in values(results, "load"):
        for rank in values(results, "rank"):
            found = cells(results, load, rank)
            if not {"auto", "assist", "wait"} <= found.keys():
                continue
            for prompt in PROMPTS:
                ms = {each: _of_prompt(found[each], prompt) for each in ("auto", "assist", "wait")}
                over, low, high = over_better(ms)
                what = f"load {load:g}, rank {rank}, prompt of {prompt}: auto over the better of"
                lines.append(
                    Row(
                        f"{what} assist and wait, first token p50 (95% of draws)",
                        "1 or less",
                        f"{over:.2f} ({low:.2f} to {high:.2f})",
                        how,
                        mark=WITHIN_CHANCE if low <= 1 < over else marked(is_met=over <= 1),
                    )
                )
    return lines


def over_better(ms: dict[str, list[float]]) -> tuple[float, float, float]:
    """Median of `auto` over the smaller one of `assist` and `wait`; and where 95% of such ratios
    are if as many turns are drawn from these again (bootstrap).
    """

    def over(times: dict[str, list[float]]) -> float:
        medians = {start: median(each) for start, each in times.items()}
        return ratio(medians["auto"], min(medians["assist"], medians["wait"]))

    rng = random.Random(SEED)
    drawn = sorted(
        over({start: rng.choices(each, k=len(each)) for start, each in ms.items()})
        for _ in range(DRAWS)
    )
    return over(ms), drawn[DRAWS // 40], drawn[-1 - DRAWS // 40]


def draw_iterations(results: Results) -> Drawing:
    """Left prefills, right decodes: what share took no longer."""
    _, found = _shown(results)
    drawing = new_drawing()
    for index, (name, title) in enumerate(
        (("prefill_ms", "prefills"), ("decode_ms", "decodes, as clients see them"))
    ):
        axes = drawing.add_subplot(1, 2, index + 1)
        for start, row in found.items():
            shares = np.arange(1, len(row[name]) + 1) / (len(row[name]) + 1)
            axes.plot(row[name], shares, label=start, color=COLOURS[start])
        axes.set_xlim(left=0)
        label(axes, title, "ms", "share" if not index else "")
    drawing.axes[0].legend(fontsize=7)
    return drawing


def rows_of_iterations(results: Results) -> list[Row]:
    how, lines = real(results, SIMULATED_LINK), []
    rank, found = _shown(results)
    for name, title, papers in (
        ("prefill_ms", "prefill", PAPER_OVER),
        ("decode_ms", "decode", dict.fromkeys(STARTS, "about 1")),
    ):
        usual = median(found[CACHED][name])
        for start, row in found.items():
            p50 = median(row[name])
            over = "" if start == CACHED else f" ({ratio(p50, usual):.2f})"
            what = f"rank {rank}, {start}, {title} p50, ms"
            paper = papers.get(start, "")
            what += " (over cached)" if over else ""
            lines.append(Row(what, paper, f"{p50:.1f}{over}", how))
    return lines


def draw_ranks_and_loads(results: Results) -> Drawing:
    """First tokens over cached: left by rank under the heavy load, right by load."""
    drawing = new_drawing()
    axes = drawing.add_subplot(1, 2, 1)
    ranks = values(results, "rank")
    draw_over_cached(axes, [cells(results, HEAVY, rank) for rank in ranks], ranks)
    doubling_x(axes)
    label(axes, f"load {HEAVY:g}", "rank", "first token over cached")
    axes.legend(fontsize=7)
    axes = drawing.add_subplot(1, 2, 2)
    rank, loads = max(ranks), values(results, "load")
    draw_over_cached(axes, [cells(results, load, rank) for load in loads], loads)
    label(axes, f"rank {rank}", "load", "")
    return drawing


def draw_over_cached(
    axes: Axes, found: list[dict[str, Cell]], places: list[Any], metric: str = "ttft_ms"
) -> None:
    """A line for each start, over places on the x axis and the rows, by start, of each."""
    for start in (each for rows in found[:1] for each in rows if each != CACHED):
        over = [over_cached(rows, start, metric) for rows in found]
        axes.plot(places, over, marker=".", label=start, color=COLOURS[start])
    axes.axhline(1.0, color="k", lw=0.8, ls="--")
    axes.set_ylim(bottom=0)


def rows_of_ranks_and_loads(results: Results) -> list[Row]:
    how, lines = real(results, SIMULATED_LINK), []
    for load in values(results, "load"):
        for rank in values(results, "rank"):
            found = cells(results, load, rank)
            for start in (each for each in found if each != CACHED):
                over = [f"{over_cached(found, start, metric):.2f}" for metric in METRICS]
                what = f"load {load:g}, rank {rank}, {start}: first token, time per token and turn"
                paper = PAPER_OVER.get(start, "")
                lines.append(Row(f"{what} over cached", paper, ", ".join(over), how))
    return lines


ABOUT = (
    "A real worker and kvstore, the 125 M model, adapters on all its linear layers, over a "
    f"simulated link of {LINK_MB_S} MB/s. `wait` is the paper's OnDmd, `assist` its CaraServe; "
    "`stream` and `auto` are ours; on `cached` all adapters are there. Poisson arrivals, the same "
    f"for all, of prompts of {PROMPTS[0]} or {PROMPTS[1]} tokens and replies of {OUTPUTS[0]} to "
    f"{OUTPUTS[1]}; a load of 1 is one turn in the time that a turn takes alone. Here helpers "
    "share the cores with what they help."
)
_COLD = f"{ABOUT} More adapters than the pool holds are asked for in turn: few turns find theirs."
FIGURE_10 = Figure(
    "10",
    "Figure 10: turns on adapters that are not there",
    measure,
    draw_distributions,
    rows_of_distributions,
    f"{_COLD} The load is {HEAVY:g}; rows compare means. `auto` is compared with the better of "
    "`assist` and `wait` by medians; where it is slower, but 95% of draws from the same turns do "
    "not all find it so, that may be chance.",
)
FIGURE_11 = Figure(
    "11",
    "Figure 11: prefills and decodes",
    measure,
    draw_iterations,
    rows_of_iterations,
    "The turns of Figure 10: from a turn's first step to its first token, and from one token to "
    "the next, which prefills of others may hold up.",
)
FIGURE_13 = Figure(
    "13",
    "Figure 13: by rank, and by load",
    measure,
    draw_ranks_and_loads,
    rows_of_ranks_and_loads,
    f"{_COLD} Means over those of `cached`, which has the same arrivals.",
)
