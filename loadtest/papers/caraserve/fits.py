"""Figure 9: how well models of a step tell its time."""

from typing import Any, NamedTuple

from matplotlib.figure import Figure as Drawing

from loadtest.bench.sgmv import measure_cells
from loadtest.bench.sgmv.agreement import refuse_if_wrong
from loadtest.bench.sgmv.cells import Cell, Measurer
from loadtest.bench.sgmv.step_models import fit_models, numbers_of
from loadtest.papers.base import Effort, Figure, Results, Row, Work, label, new_drawing
from loadtest.papers.real import DTYPES, here, real

MIXTURES = ((8,), (16,), (32,), (64,), (8, 8, 8, 64), (8, 16, 32, 64), (8, 64))
SHARING = ("uniform", "skewed", "identical")


class View(NamedTuple):
    """A model, of which kernel, over which cells, and the paper's R^2."""

    model: str
    kernel: str
    is_distinct: bool
    paper: str
    name: str
    axis: str


# Section 5: R^2 of both. Each model is of the kernel that it was made for.
VIEWS = (
    View(
        "padded",
        "padded",
        True,
        "0.96",
        "the padded kernel by batch x largest rank",
        "batch x rank",
    ),
    View("unpadded", "sgmv", True, "0.96", "our kernel by the sum of ranks", "sum of ranks"),
    View("distinct", "sgmv", False, "", "our kernel by our model", "ms predicted"),
)


def measure(work: Work, effort: Effort) -> Results:
    """The padded and the serving kernel on distinct and on shared adapters, by batch and ranks."""
    batches = effort.pick((1, 4), (1, 8, 32), (1, 2, 4, 8, 16, 24, 32))
    popularities = ("distinct", *effort.pick(SHARING[:1], SHARING[1:2], SHARING))
    hidden = effort.pick(64, 768, 768)
    results = here() | {"hidden": hidden}
    dtype = DTYPES[results["dtype"]]
    refuse_if_wrong(dtype)
    measurer = Measurer(
        hidden,
        dtype,
        effort.pick(16, 1024, 1024) << 20,
        effort.pick(1, 10, 40),
        ("sgmv", "padded"),
    )
    mixtures = effort.pick(MIXTURES[:2], MIXTURES, MIXTURES)
    cells = [
        Cell(batch, name, ranks) for name in popularities for ranks in mixtures for batch in batches
    ]
    (measured,) = work.map(lambda each: measure_cells(measurer, each), [cells])
    return results | measured


def cells_of(results: Results, view: View) -> list[dict[str, Any]]:
    """Those that a view is of."""
    return [
        row for row in results["rows"] if not view.is_distinct or row["popularity"] == "distinct"
    ]


def draw(results: Results) -> Drawing:
    """For each view what was measured, and the model."""
    drawing = new_drawing(len(VIEWS), width=3.6)
    for index, view in enumerate(VIEWS):
        axes = drawing.add_subplot(1, len(VIEWS), index + 1)
        cells = cells_of(results, view)
        model = fit_models(cells, view.kernel)[view.model]
        numbers = numbers_of(cells)[view.model]
        predicted = [
            sum(factor * number for factor, number in zip(model["ms"], (1, *each), strict=True))
            for each in zip(*numbers, strict=True)
        ]
        places = predicted if len(numbers) > 1 else numbers[0]
        axes.plot(places, [row[view.kernel] for row in cells], ".", label="measured")
        axes.plot(*zip(*sorted(zip(places, predicted, strict=True)), strict=True), "k-", lw=0.8)
        label(axes, f"{view.name}\nR^2 {model['r2']:.2f}", view.axis, "ms a call")
    return drawing


def rows(results: Results) -> list[Row]:
    how, lines = real(results), []
    for view in VIEWS:
        r2 = fit_models(cells_of(results, view), view.kernel)[view.model]["r2"]
        which = "distinct adapters" if view.is_distinct else "distinct and shared adapters"
        lines.append(Row(f"R^2 of {view.name}, {which}", view.paper, f"{r2:.3f}", how))
    everywhere = fit_models(results["rows"])
    for name in ("padded", "unpadded"):
        what = f"R^2 of our kernel by the paper's {name} model, distinct and shared adapters"
        lines.append(Row(what, "", f"{everywhere[name]['r2']:.3f}", how))
    return lines


FIGURE_9 = Figure(
    "9",
    "Figure 9: models of a step with adapters",
    measure,
    draw,
    rows,
    "Least squares, over one projection of 768 inputs and outputs (`bench sgmv`) instead of the "
    "paper's whole decode steps: ranks 8 to 64, alike and mixed, batches up to 32. The paper's two "
    "models count the rows' ranks; ours counts the bytes of different adapters, and the rows' "
    "ranks for their products, since turns may share an adapter.",
)
