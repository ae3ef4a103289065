"""Figure 4: decode steps of adapters of different ranks, padded and not."""

from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from kernels.sgmv.interface import NO_ADAPTER
from loadtest.bench.steps import PlannedSteps, make_llama, medians
from loadtest.models import LLAMA_125M
from loadtest.papers.base import Effort, Figure, Results, Row, Work, label, new_drawing, ratio
from loadtest.papers.real import DTYPES, here, real
from loadtest.papers.shapes import TINY_LLAMA

Mixture = tuple[int, ...]
"""Ranks that adapters have in turn."""

BASE = "base"
ALIKE: tuple[Mixture, ...] = ((8,), (16,), (32,), (64,))
MIXED: tuple[Mixture, ...] = ((8, 8, 8, 8, 8, 8, 8, 64), (8, 16, 32, 64), (8, 64))
# Section 2.3, of Figure 5: milliseconds, padded and not, by turns and their rank.
PAPER_MS: dict[tuple[int, Mixture], tuple[str, str]] = {
    (24, (32,)): ("34.8", "35.3"),
    (16, (64,)): ("35.8", "35.9"),
}


def measure(work: Work, effort: Effort) -> Results:
    """Milliseconds of a step by batch and mixture, each row with an adapter of its own.

    Padding makes every adapter one of the largest rank, so a padded step is one whose adapters are
    all of that.
    """
    shape = effort.pick(TINY_LLAMA, LLAMA_125M, LLAMA_125M)
    batches = effort.pick((2, 8), (8, 16, 24), (1, 4, 8, 16, 24))
    context, rounds = effort.pick(64, 512, 512), effort.pick(1, 2, 7)
    results = here() | {"shape": shape.name, "context": context}
    model = make_llama(shape, DTYPES[results["dtype"]])
    most = max(batches)
    first_of = {rank: number * most for number, (rank,) in enumerate(ALIKE)}
    steps = PlannedSteps(model, most, context, [rank for (rank,) in ALIKE for _ in range(most)])

    def of_batch(batch: int) -> dict[str, Any]:
        rows_on = {BASE: [NO_ADAPTER] * batch}
        for mixture in (*ALIKE, *MIXED):
            ranks = [mixture[row % len(mixture)] for row in range(batch)]
            rows_on[_key(mixture)] = [first_of[rank] + row for row, rank in enumerate(ranks)]
        works = {key: partial(steps.ms, on, context) for key, on in rows_on.items()}
        ms = {key: round(each, 2) for key, each in medians(works, rounds).items()}
        return {"batch": batch, "ms": ms}

    results["batches"] = work.map(of_batch, batches)
    steps.close()
    return results


def _key(mixture: Mixture) -> str:
    return ",".join(map(str, mixture))


def _padded(mixture: Mixture) -> str:
    """The key of what it is when all are filled up."""
    return _key((max(mixture),))


def _named(mixture: Mixture) -> str:
    """
    >>> _named((8, 8, 64)), _named((8, 16)), _named((8,))
    ('one of 64 among 2 of 8', 'ranks 8 and 16 in turn', 'rank 8')
    """
    if len(mixture) == 1:
        return f"rank {mixture[0]}"
    if len(set(mixture)) < len(mixture):
        return f"one of {mixture[-1]} among {len(mixture) - 1} of {mixture[0]}"
    *others, last = mixture
    return f"ranks {', '.join(map(str, others))} and {last} in turn"


def draw(results: Results) -> Drawing:
    """Left steps by batch, a line for each rank; right mixtures, padded and not."""
    drawing = new_drawing()
    _draw_alike(drawing.add_subplot(1, 2, 1), results)
    _draw_mixed(drawing.add_subplot(1, 2, 2), results)
    return drawing


def _draw_alike(axes: Axes, results: Results) -> None:
    batches = [each["batch"] for each in results["batches"]]
    axes.plot(
        batches, [each["ms"][BASE] for each in results["batches"]], "k.--", label="no adapters"
    )
    for mixture in ALIKE:
        ms = [each["ms"][_key(mixture)] for each in results["batches"]]
        axes.plot(batches, ms, marker=".", label=_named(mixture))
    axes.set_ylim(bottom=0)
    label(axes, "distinct adapters of one rank", "batch", "ms a step")
    axes.legend(fontsize=7)


def _draw_mixed(axes: Axes, results: Results) -> None:
    last = results["batches"][-1]
    places = np.arange(len(MIXED))
    for number, (name, key_of) in enumerate((("padded", _padded), ("unpadded", _key))):
        heights = [last["ms"][key_of(mixture)] for mixture in MIXED]
        axes.bar(places + 0.4 * number, heights, 0.4, label=name)
    axes.axhline(last["ms"][BASE], color="k", lw=0.8, ls="--", label="no adapters")
    names = [_named(mixture).replace(" among ", "\namong ") for mixture in MIXED]
    names = [name.replace("ranks ", "").replace(" in turn", "\nin turn") for name in names]
    axes.set_xticks(places + 0.2, names)
    axes.set_ylim(top=1.35 * axes.get_ylim()[1])  # room for the legend
    label(axes, f"mixed ranks, batch {last['batch']}", "", "ms a step")
    axes.legend(fontsize=7, ncols=3)


def rows(results: Results) -> list[Row]:
    how, lines = real(results), []
    for each in results["batches"]:
        batch, ms = each["batch"], each["ms"]
        for mixture in ALIKE:
            paper = PAPER_MS.get((batch, mixture))
            given = f"{paper[0]} padded, {paper[1]} unpadded" if paper else ""
            what = f"{batch} turns of {_named(mixture)}, ms"
            lines.append(Row(what, given, f"{ms[_key(mixture)]:.1f}", how))
    last = results["batches"][-1]
    lines.append(
        Row(f"{last['batch']} turns without adapters, ms", "", f"{last['ms'][BASE]:.1f}", how)
    )
    for mixture in MIXED:
        padded, unpadded = last["ms"][_padded(mixture)], last["ms"][_key(mixture)]
        what = f"{last['batch']} turns, {_named(mixture)}: padded / unpadded, ms"
        ours = f"{padded:.1f} / {unpadded:.1f} ({ratio(padded, unpadded):.2f})"
        lines.append(Row(what, "", ours, how))
    return lines


FIGURE_4 = Figure(
    "4",
    "Figure 4: decode steps by ranks, padded and not",
    measure,
    draw,
    rows,
    "Steps of the 125 M model, 512 tokens of context, each turn with an adapter of its own on all "
    "linear layers; the histories are random numbers. The kernel that serves does not pad; a "
    "padded step is one in which every adapter has the largest rank, so with ranks that are alike "
    "both are the same. The paper's numbers are from the example of its Figure 5.",
)
