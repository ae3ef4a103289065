"""Figure 1: what batching does to prefills and to decodes."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib.figure import Figure as Drawing

from kernels.sgmv.interface import NO_ADAPTER
from loadtest.bench.steps import PlannedSteps, make_llama, medians
from loadtest.models import LLAMA_125M
from loadtest.papers.base import Effort, Figure, Results, Row, Work, label, new_drawing, ratio
from loadtest.papers.real import DTYPES, here, real
from loadtest.papers.shapes import TINY_LLAMA
from loadtest.plots import doubling_x, log_y

# Section 2.1: from batch 1 to 32, of short and of long sequences.
PAPER_DECODE_MS = ("11 to 13", "17 to 34")


class Point(NamedTuple):
    """A step: prompts of `context` tokens, or one token behind as many."""

    stage: str
    context: int
    batch: int


def measure(work: Work, effort: Effort) -> Results:
    """Milliseconds of a step, by length and batch."""
    shape = effort.pick(TINY_LLAMA, LLAMA_125M, LLAMA_125M)
    contexts = effort.pick((64, 128), (128, 1024), (128, 512, 2048))
    batches = effort.pick((1, 2), (1, 8, 32), (1, 2, 4, 8, 16, 32))
    prompt_tokens_max = effort.pick(128, 1024, 4096)
    rounds = effort.pick(1, 3, 7)
    results = here()
    model = make_llama(shape, DTYPES[results["dtype"]])
    steps = PlannedSteps(model, max(batches), max(contexts))
    each = [(context, batch) for context in contexts for batch in batches]
    points = [Point("decode", *at) for at in each]
    points += [Point("prefill", *at) for at in each if at[0] * at[1] <= prompt_tokens_max]

    def step_ms(point: Point) -> dict[str, Any]:
        rows = [NO_ADAPTER] * point.batch
        is_prefill = point.stage == "prefill"
        new = point.context if is_prefill else 1
        ms = medians({"": lambda: steps.ms(rows, point.context, new)}, 1 if is_prefill else rounds)
        return {**point._asdict(), "ms": round(ms[""], 2)}

    results |= {"shape": shape.name, "points": work.map(step_ms, points)}
    steps.close()
    return results


def draw(results: Results) -> Drawing:
    """Left prefills, right decodes: milliseconds by batch, a line for each length."""
    drawing = new_drawing()
    for index, stage in enumerate(("prefill", "decode")):
        axes = drawing.add_subplot(1, 2, index + 1)
        for context in _contexts(results):
            points = _line(results, stage, context)
            axes.plot(*zip(*points, strict=True), marker=".", label=f"{context} tokens")
        doubling_x(axes)
        if stage == "prefill":
            log_y(axes)
        else:
            axes.set_ylim(bottom=0)
        label(axes, stage, "batch", "ms a step")
        axes.legend(fontsize=7)
    return drawing


def rows(results: Results) -> list[Row]:
    how, lines, contexts = real(results), [], _contexts(results)
    for context in contexts:
        points = _line(results, "decode", context)
        paper = {contexts[0]: PAPER_DECODE_MS[0], contexts[-1]: PAPER_DECODE_MS[-1]}
        lines.append(
            Row(
                f"decode, context of {context}, batch 1 to {points[-1][0]}, ms",
                paper.get(context, ""),
                f"{points[0][1]:.0f} to {points[-1][1]:.0f}",
                how,
            )
        )
    for context in contexts:
        points = _line(results, "prefill", context)
        (batch, ms), first_ms = points[-1], points[0][1]
        if batch > 1:
            what = f"prefill of {context}, batch {batch} over {batch} times batch 1"
            lines.append(Row(what, "proportional", f"{ratio(ms, batch * first_ms):.2f}", how))
    return lines


def _contexts(results: Results) -> list[int]:
    return sorted({point["context"] for point in results["points"]})


def _line(results: Results, stage: str, context: int) -> Sequence[tuple[int, float]]:
    """Batches, and milliseconds of each."""
    return [
        (point["batch"], point["ms"])
        for point in results["points"]
        if (point["stage"], point["context"]) == (stage, context)
    ]


FIGURE_1 = Figure(
    "1",
    "Figure 1: what batching does to prefill and decode",
    measure,
    draw,
    rows,
    "The base model of 125 M parameters instead of 7B, one step of the worker's executor. "
    "The paper's numbers are of the shortest and of the longest sequences. A CPU has far less "
    "arithmetic for each byte that it reads than a GPU, so decodes stop being free sooner.",
)
