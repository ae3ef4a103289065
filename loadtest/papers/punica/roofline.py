"""Figure 7: the kernel under the roofline."""

from typing import Any

from matplotlib.figure import Figure as Drawing

from loadtest.bench.sgmv.popularity import POPULARITIES
from loadtest.papers.base import Figure, Results, Row, label, new_drawing, ratio
from loadtest.papers.punica.operators import RANK, measure, rows_of_cells
from loadtest.papers.real import real
from loadtest.plots import log_x, log_y

NEAREST = 0.25  # FLOP/byte at which the roofs begin


def intensity(row: dict[str, Any], hidden: int, element_bytes: int) -> tuple[float, float]:
    """FLOP/byte and FLOP of both products of a cell (section 7.1, where a
    product reads inputs and weights once and writes its outputs).

    >>> row = {"batch": 2, "ranks": [16], "adapter_bytes": 2 * 64 * 16 * 2 * 2}
    >>> intensity(row, 64, 2)
    (0.927536231884058, 8192)
    """
    rank, batch = row["ranks"][0], row["batch"]
    operations = 2 * batch * rank * 2 * hidden
    num_bytes = batch * 2 * (hidden + rank) * element_bytes + row["adapter_bytes"]
    return operations / num_bytes, operations


def _points(results: Results, width: str, popularity: str) -> list[tuple[float, float]]:
    """FLOP/byte and GFLOP/s, by batch."""
    points = []
    for row in rows_of_cells(results, width, popularity):
        per_byte, operations = intensity(row, int(width), results["element_bytes"])
        points.append((per_byte, operations / row["sgmv"] / 1e6))
    return points


def draw(results: Results) -> Drawing:
    """A plot for each width: what was reached, under the memory's and the arithmetic's roofs."""
    drawing = new_drawing()
    for index, (width, found) in enumerate(results["widths"].items()):
        axes = drawing.add_subplot(1, len(results["widths"]), index + 1)
        reached = {name: _points(results, width, name) for name in POPULARITIES}
        for name, points in reached.items():
            axes.plot(*zip(*points, strict=True), marker=".", label=name)
        furthest = 4 * max(per_byte for points in reached.values() for per_byte, _ in points)
        rate, peak = found["stream_gb_per_s"], results["peak_gflops"]
        roof = [(x, min(rate * x, peak)) for x in (NEAREST, peak / rate, furthest)]
        axes.plot(*zip(*sorted(roof), strict=True), "k--", lw=0.8, label="roofs")
        log_x(axes)
        log_y(axes)
        label(axes, f"{width} wide, rank {RANK}", "FLOP/byte", "GFLOP/s")
        axes.legend(fontsize=7)
    return drawing


def rows(results: Results) -> list[Row]:
    how, lines = real(results), []
    for width, found in results["widths"].items():
        for name in POPULARITIES:
            of_cell, points = rows_of_cells(results, width, name), _points(results, width, name)
            (first_intensity, first_speed), (intensity_there, speed) = points[0], points[-1]
            roof = min(found["stream_gb_per_s"] * intensity_there, results["peak_gflops"])
            what = f"{width} wide, {name}, batch {of_cell[0]['batch']} to {of_cell[-1]['batch']}"
            lines += [
                Row(
                    f"{what}, FLOP/byte",
                    "unchanged" if name == "distinct" else "",
                    f"{first_intensity:.2g} to {intensity_there:.2g}",
                    how,
                ),
                Row(
                    f"{what}, GFLOP/s (share of the roof at the end)",
                    "",
                    f"{first_speed:.3g} to {speed:.3g} ({ratio(speed, roof):.2f})",
                    how,
                ),
            ]
    return lines


FIGURE_7 = Figure(
    "7",
    "Figure 7: the kernel under the roofline",
    measure,
    draw,
    rows,
    "The runs of Figure 8. Both products together, where the paper shows the second one alone (16 "
    "inputs, 4096 outputs). The roofs are measured in the same run: reading a gigabyte with all "
    "threads, and torch's product of large matrices.",
)
