"""Figures 10, 11 and 13: turns whose adapter is not there."""

from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from matplotlib.figure import Figure as Drawing

from loadtest.papers.base import Effort, Figure, Results, Row, Work, label, new_drawing, ratio
from loadtest.papers.caraserve.coldstart import MODES, Asked, measure_coldstarts
from loadtest.papers.caraserve.link import LINK_MB_S, SIMULATED_LINK
from loadtest.papers.real import here, model_folder, real
from loadtest.plots import doubling_x

CACHED = "cached"
COLOURS = {
    CACHED: "#34495e",
    "wait": "#c0392b",
    "stream": "#e08e45",
    "assist": "#2e86c1",
    "auto": "#239b56",
}
# Section 7.2, in words: on demand is far above what is cached, assisted is close to it.
PAPER_OVER = {"wait": "far above 1", "assist": "near 1"}


def measure(work: Work, effort: Effort) -> Results:
    """Cold and cached turns by rank, mode and prompt, over the simulated link."""
    results = here() | {"link_mb_s": LINK_MB_S}
    ranks = effort.pick((8,), (16, 64), (16, 32, 64))
    modes = effort.pick(MODES[:1], ("wait", "assist"), MODES)
    asked = Asked(
        ranks=ranks,
        prompts=effort.pick((8,), (32,), (32, 128)),
        links=(LINK_MB_S,),
        targets="all",
        rounds=effort.pick(1, 1, 2),
        modes=modes,
        others_tokens=effort.pick(8, 32, 64),
    )
    with TemporaryDirectory() as name:
        source = str(model_folder(effort, results["dtype"], Path(name)))
        (found,) = work.map(lambda each: measure_coldstarts(source, each), [asked])
    return results | {"rows": found}


def _cells(results: Results, rank: int, prompt: int) -> dict[str, dict[str, Any]]:
    """By mode."""
    return {
        row["mode"]: row
        for row in results["rows"]
        if (row["rank"], row["prompt_tokens"]) == (rank, prompt)
    }


def _numbers(results: Results, name: str) -> list[int]:
    """All that `name` is in some row, sorted."""
    return sorted({row[name] for row in results["rows"]})


def _samples(results: Results, rank: int, prompt: int) -> dict[str, list[float]]:
    """Milliseconds to first tokens: of cold turns by mode, and of all turns that found their
    adapter there."""
    cells = _cells(results, rank, prompt)
    cached = [ms for row in cells.values() for ms in row["samples_ms"]["cached"]]
    return {CACHED: cached, **{mode: row["samples_ms"]["cold"] for mode, row in cells.items()}}


def draw_distribution(results: Results) -> Drawing:
    """Share of turns whose first token came within so long, at the largest rank."""
    rank, prompts = max(_numbers(results, "rank")), _numbers(results, "prompt_tokens")
    drawing = new_drawing(len(prompts))
    for index, prompt in enumerate(prompts):
        axes = drawing.add_subplot(1, len(prompts), index + 1)
        for mode, samples in _samples(results, rank, prompt).items():
            shares = np.arange(1, len(samples) + 1) / len(samples)
            axes.step(sorted(samples), shares, where="post", label=mode, color=COLOURS[mode])
        axes.set_xlim(left=0)
        label(axes, f"rank {rank}, prompt of {prompt}", "ms to the first token", "share of turns")
        axes.legend(fontsize=7)
    return drawing


def rows_of_distribution(results: Results) -> list[Row]:
    how, lines = real(results, SIMULATED_LINK), []
    rank = max(_numbers(results, "rank"))
    for prompt in _numbers(results, "prompt_tokens"):
        of_mode = _samples(results, rank, prompt)
        usual = median(of_mode[CACHED])
        for mode, samples in of_mode.items():
            what = f"rank {rank}, prompt of {prompt}, {mode}"
            p90 = quantiles(samples, n=10, method="inclusive")[-1]
            times = f"{median(samples):.0f} / {p90:.0f}"
            lines.append(Row(f"{what}, first token p50 / p90, ms", "", times, how))
            if mode != CACHED:
                over = f"{ratio(median(samples), usual):.2f}"
                paper = PAPER_OVER.get(mode, "")
                lines.append(Row(f"{what}, p50 over cached", paper, over, how))
    return lines


def draw_iterations(results: Results) -> Drawing:
    """Bars by mode: a cold turn's first token, and others' time per token meanwhile."""
    rank, cells = _shown_cells(results)
    drawing = new_drawing()
    axes = drawing.add_subplot(1, 2, 1)
    for place, (mode, row) in enumerate(cells.items()):
        axes.bar(place, row["ttft_ms"], color=COLOURS[mode])
    cached = median(row["cached_ms"] for row in cells.values())
    axes.bar(len(cells), cached, color=COLOURS[CACHED])
    axes.set_xticks(range(len(cells) + 1), [*cells, CACHED])
    prompt = next(iter(cells.values()))["prompt_tokens"]
    label(axes, f"prefill of {prompt}, rank {rank}", "", "ms to the first token")
    axes = drawing.add_subplot(1, 2, 2)
    for place, row in enumerate(cells.values()):
        for number, when in enumerate(("loading", "resident")):
            axes.bar(
                place + 0.4 * number,
                row["others_tpot_ms"][when],
                0.4,
                color=("#7f8c8d", COLOURS[CACHED])[number],
                label=None if place else _WHILE[when],
            )
    axes.set_xticks([place + 0.2 for place in range(len(cells))], list(cells))
    axes.set_ylim(top=1.3 * axes.get_ylim()[1])  # room for the legend
    label(axes, "others' decodes meanwhile", "", "ms a token")
    axes.legend(fontsize=7)
    return drawing


def rows_of_iterations(results: Results) -> list[Row]:
    how, lines = real(results, SIMULATED_LINK), []
    rank, cells = _shown_cells(results)
    for mode, row in cells.items():
        what = f"rank {rank}, {mode}"
        prefill = f"{row['ttft_ms']:.0f} / {row['cached_ms']:.0f}"
        lines.append(Row(f"{what}, first token cold / cached, ms", "", prefill, how))
        others = f"{row['others_tpot_ms']['loading']:.1f} ({row['others_tpot_ratio']:.2f})"
        title = f"{what}, others' time per token, ms (over that while none is loaded)"
        lines.append(Row(title, "about 1", others, how))
    return lines


def _shown_cells(results: Results) -> tuple[int, dict[str, dict[str, Any]]]:
    """The largest rank, and its rows by mode that tell of others: those of the longest prompt."""
    rank = max(_numbers(results, "rank"))
    return rank, _cells(results, rank, max(_numbers(results, "prompt_tokens")))


def draw_ranks(results: Results) -> Drawing:
    """First token over cached, by rank, a line for each mode."""
    ranks, prompts = _numbers(results, "rank"), _numbers(results, "prompt_tokens")
    drawing = new_drawing(len(prompts))
    for index, prompt in enumerate(prompts):
        axes = drawing.add_subplot(1, len(prompts), index + 1)
        for mode in _cells(results, ranks[0], prompt):
            over = [_cells(results, rank, prompt)[mode]["over_cached"] for rank in ranks]
            axes.plot(ranks, over, marker=".", label=mode, color=COLOURS[mode])
        axes.axhline(1.0, color="k", lw=0.8, ls="--")
        doubling_x(axes)
        axes.set_ylim(bottom=0)
        label(axes, f"prompt of {prompt}", "rank", "first token over cached")
        axes.legend(fontsize=7)
    return drawing


def rows_of_ranks(results: Results) -> list[Row]:
    how = real(results, SIMULATED_LINK)
    return [
        Row(
            f"rank {rank}, prompt of {prompt}, {mode}, first token over cached",
            PAPER_OVER.get(mode, ""),
            f"{row['over_cached']:.2f}",
            how,
        )
        for prompt in _numbers(results, "prompt_tokens")
        for rank in _numbers(results, "rank")
        for mode, row in _cells(results, rank, prompt).items()
    ]


_WHILE = {"loading": "adapters are loaded", "resident": "none is loaded"}
_ABOUT = (
    "A real worker and kvstore, the 125 M model, adapters on all its linear "
    f"layers, over a simulated link of {LINK_MB_S} MB/s. `wait` is the paper's OnDmd, `assist` its "
    "CaraServe; `stream` and `auto` are ours."
)
FIGURE_10 = Figure(
    "10",
    "Figure 10: time to the first token",
    measure,
    draw_distribution,
    rows_of_distribution,
    f"{_ABOUT} Turns come one after the other, each with an adapter that is not there, where the "
    "paper has Poisson arrivals. Here helpers share the cores with what they help.",
)
FIGURE_11 = Figure(
    "11",
    "Figure 11: prefills and decodes while adapters are loaded",
    measure,
    draw_iterations,
    rows_of_iterations,
    f"{_ABOUT} Three turns decode on the base model while others come, one after another, whose "
    "adapters are not there, and while others come whose adapter is.",
)
FIGURE_13 = Figure(
    "13",
    "Figure 13: time to the first token by rank",
    measure,
    draw_ranks,
    rows_of_ranks,
    f"{_ABOUT} The upper part of the paper's figure; its lower one, under a lighter load, comes "
    "with the production traces.",
)
