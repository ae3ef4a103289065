"""Figure 17: ours without one of its parts."""

from matplotlib.figure import Figure as Drawing

from loadtest.papers.base import Effort, Figure, Results, Row, Work, ratio
from loadtest.papers.symphony.evidence import mark, shares_text
from loadtest.papers.symphony.skipping import unless_skipped
from loadtest.papers.symphony.sweeps import (
    METRICS,
    draw_sweep,
    how,
    row_of_load,
    rows_of_values,
    sweep,
)

# What the paper says of each part, and how many times worse that is without it.
PARTS: dict[str, tuple[str, str, float | None]] = {
    "cooperative": ("tpot_ms", "over 7 times slower", 7.0),
    "priority": ("requests_per_s", "throughput -21.7%", 1 / (1 - 0.217)),
    "layerwise": ("requests_per_s", "throughput -18.4%", 1 / (1 - 0.184)),
    "balance": ("tpot_ms", "", None),
}
SHOWN = ["tpot_ms", "ttft_ms", "requests_per_s"]


def measure(work: Work, effort: Effort) -> Results:
    """Ours, whole and without each part."""
    users = effort.pick([64], [256, 384], [256, 384])
    systems = ["symphony", *(f"without {part}" for part in PARTS)]
    return sweep(work, effort, systems, users)


def draw(results: Results) -> Drawing:
    """TPOT, TTFT and throughput by users."""
    return draw_sweep(results, SHOWN)


@unless_skipped
def rows(results: Results) -> list[Row]:
    lines, whole = [row_of_load(results)], results["runs"]["symphony"]
    for part, (metric, paper, least) in PARTS.items():
        without = results["runs"][f"without {part}"]
        for each_metric in SHOWN:
            values = [
                ratio(mine[each_metric], ours[each_metric])
                for mine, ours in zip(without, whole, strict=True)
            ]
            worse = [
                1 / value if metric == "requests_per_s" else value for value in values if value
            ]
            is_compared = each_metric == metric and least is not None
            name = METRICS[each_metric].removesuffix(", ms")
            lines.append(
                Row(
                    f"{name} without {part} over {name} with it",
                    paper if is_compared else "",
                    " / ".join(f"{each:.3f}" for each in values),
                    how(results),
                    shares_text(without[-1]),
                    mark(whole, [each >= (least or 0) for each in worse]) if is_compared else "",
                )
            )
    return [*lines, *rows_of_values(results, SHOWN)]


FIGURE_17 = Figure(
    "17",
    "Figure 17: without one part",
    measure,
    draw,
    rows,
    "People with documents, as in Figure 11. Without *cooperative* memory, prefetched KV is pinned "
    "until its turn is there or its hint expires: running turns cannot take its pages. Without "
    "*priority* eviction is by least recent use, without *layerwise* a pass begins when all of its "
    "history is there. Who pauses for long asks no "
    "less often for a longer TTFT, so requests a second tell parts apart only where GPUs are full; "
    "TTFT is in the JSON file. *Balance* is not in the paper's figure.",
)
