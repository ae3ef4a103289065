"""Figures 8 and 9: what adapters add to one projection."""

from collections.abc import Callable
from typing import Any

import torch
from matplotlib.figure import Figure as Drawing

from loadtest.bench.gpu.timing import median_s
from loadtest.bench.sgmv import measure_cells
from loadtest.bench.sgmv.agreement import refuse_if_wrong
from loadtest.bench.sgmv.cells import Cell, Measurer
from loadtest.bench.sgmv.popularity import POPULARITIES
from loadtest.papers.base import Effort, Figure, Results, Row, Work, label, new_drawing, ratio
from loadtest.papers.real import DTYPES, here, real
from loadtest.plots import doubling_x, log_y

RANK = 16
COMPARED = ("sgmv", "loop", "gather_bmm", "bmm")  # of `bench sgmv`
# Section 7.1: microseconds at batch 1 and 64; the model there is 4096 wide.
PAPER_HIDDEN = 4096
PAPER_US = {
    "distinct": ("37", "116"),
    "uniform": ("37", "46"),
    "skewed": ("37", "46"),
    "identical": ("37", "40"),
}
PAPER_RANK_US = {8: "72", 16: "75", 32: "89", 64: "118"}  # distinct, batch 64
PAPER_SHARED_US = "42 to 45"
PAPER_FIRST_US = "about 42"
FIRST = next(iter(POPULARITIES))

_Lines = dict[str, list[tuple[int, float]]]
"""Batches and microseconds, by what the line is of."""


def measure(work: Work, effort: Effort) -> Results:
    """All implementations at one rank, by width, popularity and batch; and the roofs."""
    batches = effort.pick((1, 3), (1, 8, 64), (1, 2, 4, 8, 16, 32, 64))
    results = here()
    dtype = DTYPES[results["dtype"]]
    side = effort.pick(64, 1024, 2048)
    a, b = (torch.randn(side, side).to(dtype) for _ in range(2))
    peak_s = median_s(torch.device("cpu"), lambda: a @ b, effort.pick(1, 3, 9))
    results |= {"element_bytes": dtype.itemsize, "peak_gflops": round(2e-9 * side**3 / peak_s, 1)}
    cells = [Cell(batch, name, (RANK,)) for name in POPULARITIES for batch in batches]
    return results | _by_width(work, effort, dtype, cells, COMPARED)


def measure_ranks(work: Work, effort: Effort) -> Results:
    """The kernel that serves alone, by width, rank, popularity and batch."""
    batches = effort.pick((1, 3), (1, 16, 64), (1, 2, 4, 8, 16, 32, 64))
    ranks = effort.pick((4, 8), tuple(PAPER_RANK_US), tuple(PAPER_RANK_US))
    results = here()
    cells = [
        Cell(batch, name, (rank,)) for rank in ranks for name in POPULARITIES for batch in batches
    ]
    return results | _by_width(work, effort, DTYPES[results["dtype"]], cells, ("sgmv",))


def _by_width(
    work: Work, effort: Effort, dtype: torch.dtype, cells: list[Cell], names: tuple[str, ...]
) -> Results:
    """``widths``: by inputs and outputs of the projection, the cells of `bench sgmv`."""
    refuse_if_wrong(dtype)
    widths = effort.pick((64,), (768, PAPER_HIDDEN), (768, PAPER_HIDDEN))
    memory_bytes = effort.pick(16, 1024, 1024) << 20

    def of_width(hidden: int) -> Results:
        rounds = effort.pick(1, 8, 40) if hidden < PAPER_HIDDEN else effort.pick(1, 3, 12)
        return measure_cells(Measurer(hidden, dtype, memory_bytes, rounds, names), cells)

    measured = work.map(of_width, widths)
    return {"widths": {str(width): each for width, each in zip(widths, measured, strict=True)}}


def rows_of_cells(
    results: Results, width: str, popularity: str, rank: int | None = None
) -> list[dict[str, Any]]:
    """Of one width and popularity, by batch; of one rank, or of all."""
    return [
        row
        for row in results["widths"][width]["rows"]
        if row["popularity"] == popularity and rank in {None, row["ranks"][0]}
    ]


def draw_operators(results: Results) -> Drawing:
    """Microseconds by batch, a line for each implementation."""

    def lines_of(width: str, popularity: str) -> _Lines:
        of_cell = rows_of_cells(results, width, popularity)
        return {kind: [(row["batch"], 1e3 * row[kind]) for row in of_cell] for kind in COMPARED}

    return _draw(results, lines_of)


def draw_ranks(results: Results) -> Drawing:
    """Microseconds by batch, a line for each rank."""

    def lines_of(width: str, popularity: str) -> _Lines:
        lines: _Lines = {}
        for rank in _ranks(results):
            of_cell = rows_of_cells(results, width, popularity, rank)
            lines[f"rank {rank}"] = [(row["batch"], 1e3 * row["sgmv"]) for row in of_cell]
        return lines

    return _draw(results, lines_of)


def _draw(results: Results, lines_of: Callable[[str, str], _Lines]) -> Drawing:
    """A row of plots for each width, a column for each popularity."""
    widths = list(results["widths"])
    drawing = new_drawing(len(POPULARITIES), len(widths), height=2.7, width=2.8)
    plots = drawing.subplots(len(widths), len(POPULARITIES), sharey="row", squeeze=False)
    for width, of_width in zip(widths, plots, strict=True):
        for name, axes in zip(POPULARITIES, of_width, strict=True):
            for name_of_line, points in lines_of(width, name).items():
                axes.plot(*zip(*points, strict=True), marker=".", label=name_of_line)
            doubling_x(axes)
            log_y(axes)
            label(axes, f"{width} wide, {name}", "batch", "us a call" if name == FIRST else "")
    plots[0, 0].legend(fontsize=7)
    return drawing


def rows_of_operators(results: Results) -> list[Row]:
    how, lines = real(results), []
    for width in results["widths"]:
        for name in POPULARITIES:
            of_cell = rows_of_cells(results, width, name)
            first, last = of_cell[0], of_cell[-1]
            batches = f"batch {first['batch']} to {last['batch']}"
            paper = f"{' to '.join(PAPER_US[name])}" if width == str(PAPER_HIDDEN) else ""
            what = f"{width} wide, {name}"
            ours = f"{1e3 * first['sgmv']:.0f} to {1e3 * last['sgmv']:.0f}"
            lines.append(Row(f"{what}, sgmv, {batches}, us", paper, ours, how))
            times = " / ".join(f"{ratio(last[kind], last['sgmv']):.1f}" for kind in COMPARED[1:])
            over = f"{what}, {' / '.join(COMPARED[1:])} over sgmv, batch {last['batch']}"
            lines.append(Row(over, "", times, how))
    return lines


def rows_of_ranks(results: Results) -> list[Row]:
    how, lines, ranks = real(results), [], _ranks(results)
    for width in results["widths"]:
        at_paper = width == str(PAPER_HIDDEN)
        for rank in ranks:
            of_cell = rows_of_cells(results, width, "distinct", rank)
            first, last = of_cell[0], of_cell[-1]
            lines.append(
                Row(
                    f"{width} wide, distinct, rank {rank}, "
                    f"batch {first['batch']} to {last['batch']}, us",
                    f"{PAPER_FIRST_US} to {PAPER_RANK_US[rank]}" if at_paper else "",
                    f"{1e3 * first['sgmv']:.0f} to {1e3 * last['sgmv']:.0f}",
                    how,
                )
            )
        for name in POPULARITIES:
            if name == "distinct":
                continue
            us = [
                1e3 * row["sgmv"]
                for rank in ranks
                for row in rows_of_cells(results, width, name, rank)
            ]
            paper = PAPER_SHARED_US if at_paper else ""
            what = f"{width} wide, {name}, all ranks and batches, us"
            lines.append(Row(what, paper, f"{min(us):.0f} to {max(us):.0f}", how))
    return lines


def _ranks(results: Results) -> list[int]:
    first = next(iter(results["widths"].values()))
    return sorted({row["ranks"][0] for row in first["rows"]})


_ABOUT = (
    "One projection with as many inputs as outputs, its weights out of a gigabyte, so that no call "
    "finds them in a cache (`bench sgmv`)."
)
FIGURE_8 = Figure(
    "8",
    "Figure 8: the adapters' operator beside torch's products",
    measure,
    draw_operators,
    rows_of_operators,
    f"{_ABOUT} Rank 16. `loop` and `gather_bmm` are the paper's baselines; `bmm` has its weights "
    "gathered before. The paper's times are of an A100, and of a width that its text does not "
    "give: they stand beside 4096.",
)
FIGURE_9 = Figure(
    "9",
    "Figure 9: the adapters' operator by rank",
    measure_ranks,
    draw_ranks,
    rows_of_ranks,
    f"{_ABOUT} The paper's times are of an A100.",
)
