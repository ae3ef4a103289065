"""Figure 17: ours without one of its parts."""

from matplotlib.figure import Figure as Drawing

from loadtest.papers.base import Effort, Figure, Results, Row, Work, ratio
from loadtest.papers.symphony.skipping import unless_skipped
from loadtest.papers.symphony.sweeps import (
    draw_sweep,
    how,
    rows_of_values,
    series,
    sweep,
)

PARTS: dict[str, str] = {
    "cooperative": "over 7 times slower",
    "priority": "throughput -21.7%",
    "layerwise": "throughput -18.4%",
    "balance": "",
}
SHOWN = ["tpot_ms", "ttft_ms", "requests_per_s"]


def measure(work: Work, effort: Effort) -> Results:
    """Ours, whole and without each part."""
    users = effort.pick([64], [1024], [256, 1024, 1536])
    systems = ["symphony", *(f"without {part}" for part in PARTS)]
    return sweep(work, effort, systems, users, coarse=effort.level == "tiny")


def draw(results: Results) -> Drawing:
    """TPOT, TTFT and throughput by users."""
    return draw_sweep(results, SHOWN)


@unless_skipped
def rows(results: Results) -> list[Row]:
    lines = []
    for part, paper in PARTS.items():
        for metric, name in (
            ("tpot_ms", "TPOT"),
            ("ttft_ms", "TTFT"),
            ("requests_per_s", "requests"),
        ):
            values = [
                ratio(mine, whole)
                for mine, whole in zip(
                    series(results, f"without {part}", metric),
                    series(results, "symphony", metric),
                    strict=True,
                )
            ]
            is_told = metric == ("tpot_ms" if part == "cooperative" else "requests_per_s")
            lines.append(
                Row(
                    f"{name} without {part} over {name} with it",
                    paper if is_told else "",
                    " / ".join(f"{each:.3f}" for each in values),
                    how(results),
                )
            )
    return [*lines, *rows_of_values(results, SHOWN)]


FIGURE_17 = Figure(
    "17",
    "Figure 17: without one part",
    measure,
    draw,
    rows,
    "The switches are those of the production code. *Balance* is not in the paper's figure.",
)
