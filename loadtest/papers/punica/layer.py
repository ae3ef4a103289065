"""Figure 10: one transformer layer of large models with adapters."""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure as Drawing

from kernels.sgmv.interface import NO_ADAPTER
from loadtest.bench.sgmv.popularity import POPULARITIES
from loadtest.bench.steps import PlannedSteps, make_llama, medians
from loadtest.models import LlamaShape
from loadtest.papers.base import Effort, Figure, Results, Row, Work, label, new_drawing, ratio
from loadtest.papers.real import DTYPES, here, real
from loadtest.papers.shapes import LAYER_7B, LAYER_13B, TINY_LLAMA

RANK = 16
BASE = "base"
# Section 7.1: batch 1 to 32 with 512 tokens makes a layer's step that much longer.
PAPER_LONGER = {512: "+72%"}


class Part(NamedTuple):
    """Steps of one shape, all of them with one length."""

    shape: LlamaShape
    context: int


def measure(work: Work, effort: Effort) -> Results:
    """Milliseconds of a decode step, by shape, context, popularity and batch."""
    shapes = effort.pick((TINY_LLAMA,), (LAYER_7B, LAYER_13B), (LAYER_7B, LAYER_13B))
    contexts = effort.pick((64,), (512,), (512, 2048))
    batches = effort.pick((1, 3), (1, 8, 32), (1, 2, 4, 8, 16, 32))
    rounds = effort.pick(1, 2, 5)
    results = here()

    def cells_of(part: Part) -> list[dict[str, Any]]:
        model = make_llama(part.shape, DTYPES[results["dtype"]])
        steps = PlannedSteps(model, max(batches), part.context, [RANK] * max(batches))
        cells = []
        for batch in batches:
            rows_on = {BASE: [NO_ADAPTER] * batch}
            for name, rows_of in POPULARITIES.items():
                counts = rows_of(batch)
                rows_on[name] = np.repeat(np.arange(len(counts)), counts).tolist()
            works = {name: partial(steps.ms, on, part.context) for name, on in rows_on.items()}
            ms = {name: round(each, 3) for name, each in medians(works, rounds).items()}
            cells.append(
                {"model": part.shape.name, "context": part.context, "batch": batch, "ms": ms}
            )
        steps.close()
        return cells

    parts = [Part(shape, context) for shape in shapes for context in contexts]
    cells = [cell for of_part in work.map(cells_of, parts) for cell in of_part]
    return results | {"cells": cells}


def draw(results: Results) -> Drawing:
    """A plot for each shape and context: milliseconds by batch, a line for each popularity."""
    lines = _lines(results)
    num_columns = min(len(lines), 2)
    num_rows = -(-len(lines) // num_columns)
    drawing = new_drawing(num_columns, num_rows)
    for number, ((model, context), cells) in enumerate(lines.items()):
        axes = drawing.add_subplot(num_rows, num_columns, number + 1)
        for name in cells[0]["ms"]:
            axes.plot(
                [cell["batch"] for cell in cells],
                [cell["ms"][name] for cell in cells],
                marker=".",
                ls="--" if name == BASE else "-",
                color="k" if name == BASE else None,
                label="no adapters" if name == BASE else name,
            )
        axes.set_ylim(bottom=0)
        label(axes, f"one layer of {model}, context of {context}", "batch", "ms a step")
        axes.legend(fontsize=7)
    return drawing


def rows(results: Results) -> list[Row]:
    how, lines = real(results), []
    for (model, context), cells in _lines(results).items():
        first, last = cells[0], cells[-1]
        what = f"{model}, context of {context}"
        for name in POPULARITIES:
            before, after = first["ms"][name], last["ms"][name]
            lines.append(
                Row(
                    f"{what}, {name}, batch {first['batch']} to {last['batch']}, ms",
                    PAPER_LONGER.get(context, "") if name == "distinct" else "",
                    f"{before:.1f} to {after:.1f} ({100 * (ratio(after, before) - 1):+.0f}%)",
                    how,
                )
            )
        slowest = max(last["ms"][name] for name in POPULARITIES)
        fastest = min(last["ms"][name] for name in POPULARITIES)
        same = f"{what}, batch {last['batch']}: slowest over fastest popularity"
        lines.append(Row(same, "about 1", f"{ratio(slowest, fastest):.2f}", how))
        over = f"{what}, batch {last['batch']}: distinct over no adapters"
        distinct = ratio(last["ms"]["distinct"], last["ms"][BASE])
        lines.append(Row(over, "", f"{distinct:.2f}", how))
    return lines


def _lines(results: Results) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """Cells by shape and context, in order of batches."""
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for cell in results["cells"]:
        found.setdefault((cell["model"], cell["context"]), []).append(cell)
    return found


FIGURE_10 = Figure(
    "10",
    "Figure 10: one transformer layer with adapters",
    measure,
    draw,
    rows,
    "One decoder layer of the 7B and of the 13B shape, random weights, adapters of rank 16 on all "
    "its linear layers; a decode step of the worker's executor, whose history is random numbers. "
    "In bf16 where the processor multiplies it, else in float32. The paper's 72% is of its "
    "popularities together. On a CPU, arithmetic is not free beside reading the weights, and a "
    "batch of 32 shows it.",
)
