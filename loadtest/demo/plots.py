"""Pictures of the demonstration: each pair of turns, and the shares of turns by their wait."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loadtest.demo.script import SIDES, Part, Side
from loadtest.demo.seen import Seen, of_side, pairs
from loadtest.plots import log_x
from loadtest.users.plots import COLOURS, DPI

SIZE_INCHES = (9.6, 4.0)
OURS: dict[Side, str] = {"without": COLOURS["unhinted"], "with": COLOURS["hinted"]}
LEAST_MS = 1.0


def draw(seen: Sequence[Seen], part: Part, title: str, folder: Path) -> Path | None:
    """One part's picture; None: there is nothing to draw."""
    if not pairs(seen, part):
        return None
    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    left, right = figure.subplots(1, 2)
    _pairs(left, seen, part)
    _shares(right, seen, part)
    figure.suptitle(title)
    path = folder / f"{part}.png"
    figure.savefig(path, dpi=DPI)
    return path


def _pairs(axes: Axes, seen: Sequence[Seen], part: Part) -> None:
    """Each pair is a line between the turn without a hint and the one with it; colours are those of
    the other half.
    """
    found = pairs(seen, part)
    places = range(1, len(found) + 1)
    bare = [max(each.ttft_ms, LEAST_MS) for each, _ in found]
    hinted = [max(each.ttft_ms, LEAST_MS) for _, each in found]
    axes.hlines(places, bare, hinted, color="0.8", linewidth=1)
    axes.plot(bare, places, "o", markersize=4, color=OURS["without"])
    axes.plot(hinted, places, "o", markersize=4, color=OURS["with"])
    log_x(axes)
    axes.invert_yaxis()
    axes.set(xlabel="time to the first token, ms", ylabel="pairs of the same turn")


def _shares(axes: Axes, seen: Sequence[Seen], part: Part) -> None:
    for side in SIDES:
        ttft = sorted(max(each.ttft_ms, LEAST_MS) for each in of_side(seen, part, side))
        share = [(place + 1) / len(ttft) for place in range(len(ttft))]
        axes.step(ttft, share, where="post", color=OURS[side], label=f"{side} hints ({len(ttft)})")
    log_x(axes)
    axes.set(xlabel="time to the first token, ms", ylabel="share of turns", ylim=(0, 1))
    axes.legend()
