"""Pictures of a run."""

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loadtest.plots import log_x, log_y
from loadtest.users.measures import KINDS, PLACES, Turn, places

COLOURS = {"first": "0.55", "hinted": "C2", "missed": "C1", "unhinted": "C3"}
SIZE_INCHES = (6.4, 4.0)
DPI = 90

Drawer = Callable[[Axes], None]


def draw_all(turns: Sequence[Turn], hints: dict[str, int], folder: Path) -> list[Path]:
    """Write the pictures that there is anything to draw for."""
    good = [turn for turn in turns if not turn.trouble]
    if not good:
        return []
    made = [
        _save(folder / "ttft_cdf.png", lambda axes: _cdf(axes, good)),
        _save(folder / "ttft_over_time.png", lambda axes: _over_time(axes, good)),
        _save(folder / "places.png", lambda axes: _places(axes, good)),
    ]
    if hints:
        made.append(_save(folder / "hints.png", lambda axes: _hints(axes, hints)))
    return made


def _save(path: Path, draw: Drawer) -> Path:
    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    draw(figure.subplots())
    figure.savefig(path, dpi=DPI)
    return path


def _by_kind(turns: Sequence[Turn]) -> dict[str, list[Turn]]:
    found = {kind: [turn for turn in turns if turn.kind == kind] for kind in KINDS}
    return {kind: each for kind, each in found.items() if each}


def _cdf(axes: Axes, turns: Sequence[Turn]) -> None:
    for kind, each in _by_kind(turns).items():
        ttft = sorted(max(turn.ttft_ms, 1.0) for turn in each)
        share = [(place + 1) / len(ttft) for place in range(len(ttft))]
        axes.step(ttft, share, where="post", color=COLOURS[kind], label=f"{kind} ({len(ttft)})")
    log_x(axes)
    axes.set(xlabel="time to the first token, ms", ylabel="share of turns", ylim=(0, 1))
    axes.legend()


def _over_time(axes: Axes, turns: Sequence[Turn]) -> None:
    for kind, each in _by_kind(turns).items():
        at_s = [turn.at_s for turn in each]
        ttft = [max(turn.ttft_ms, 1.0) for turn in each]
        axes.plot(at_s, ttft, ".", markersize=3, color=COLOURS[kind], label=kind)
    log_y(axes)
    axes.set(xlabel="seconds from the beginning", ylabel="time to the first token, ms")
    axes.legend(markerscale=3)


def _places(axes: Axes, turns: Sequence[Turn]) -> None:
    """Of each kind's prompt tokens, where they were when the turn came."""
    by_kind = _by_kind(turns)
    found = {kind: places(each) for kind, each in by_kind.items()}
    left = dict.fromkeys(found, 0.0)
    for place in PLACES:
        shares = {
            kind: 100 * each.get(place, 0) / (sum(each.values()) or 1)
            for kind, each in found.items()
        }
        if any(shares.values()):
            colour = "0.85" if place == "computed" else None
            axes.barh(
                list(shares), list(shares.values()), left=list(left.values()), label=place,
                color=colour,
            )  # fmt: skip
            left = {kind: left[kind] + share for kind, share in shares.items()}
    axes.set(xlabel="percent of prompt tokens", xlim=(0, 100))
    axes.legend(ncols=len(PLACES), loc="upper center", bbox_to_anchor=(0.5, 1.14), frameon=False)


def _hints(axes: Axes, hints: dict[str, int]) -> None:
    bars = axes.barh(list(hints), list(hints.values()), color="C0")
    axes.bar_label(bars, padding=3)
    axes.set(xlabel="hints, by what became of them")
    axes.margins(x=0.1)
