"""Figure 12: how unevenly functions are called, and what that is for adapters."""

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure as Drawing

from loadtest.functions_trace import TRACE, calls_in
from loadtest.papers.base import Effort, Figure, Results, Row, Work, label, new_drawing
from loadtest.plots import doubling_x, log_x
from loadtest.simulator.arrivals import popularity

MAF, ZIPF = "maf", "zipf"
LABELS = {MAF: "Azure Functions 2019", ZIPF: "1 / place"}
HOW = {
    MAF: "real: calls of one day, a public sample of the paper's trace",
    ZIPF: "simulated: shares like 1 / place",
}
NUM_FUNCTIONS = 1250  # of the sample
ROOMS = (8, 16, 32, 64, 128, 256, 512)
SEED = 12


def measure(work: Work, effort: Effort) -> Results:
    """Shares of calls, the most popular first, and how many find what was called not long ago."""
    shares = {ZIPF: popularity("zipf:1", NUM_FUNCTIONS)}
    if TRACE.is_file():
        shares = {MAF: shares_in(TRACE), **shares}
    num_requests = effort.pick(200, 20_000, 200_000)
    hits = work.map(lambda each: hit_shares(each, ROOMS, num_requests), shares.values())
    return {
        name: {
            "shares": [float(f"{share:.4g}") for share in shares[name]],
            "hits": [round(hit, 4) for hit in found],
        }
        for name, found in zip(shares, hits, strict=True)
    }


def shares_in(trace: Path) -> list[float]:
    """Of all calls, those of each function, the most called first."""
    calls = calls_in(trace)
    shares: list[float] = (np.sort(calls)[::-1] / calls.sum()).tolist()
    return shares


def hit_shares(shares: Sequence[float], rooms: Sequence[int], num_requests: int) -> list[float]:
    """Of requests drawn by these shares, those whose adapter is among the `room` asked for last.

    >>> hit_shares([1.0, 0.0], [1], 4)
    [0.75]
    """
    rng = np.random.default_rng(SEED)
    drawn = rng.choice(len(shares), num_requests, p=np.array(shares) / sum(shares)).tolist()
    return [_hits(drawn, room) / num_requests for room in rooms]


def _hits(requests: Sequence[int], room: int) -> int:
    """
    >>> _hits([0, 1, 0, 2, 0, 1], 2)
    2
    """
    resident: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for adapter in requests:
        if adapter in resident:
            hits += 1
            resident.move_to_end(adapter)
            continue
        resident[adapter] = None
        if len(resident) > room:
            resident.popitem(last=False)
    return hits


def draw(results: Results) -> Drawing:
    """Left each function's share; right how many requests find their adapter, by room."""
    drawing = new_drawing()
    axes = drawing.add_subplot(1, 2, 1)
    for name, found in results.items():
        shares = [share for share in found["shares"] if share > 0]
        axes.plot(range(1, len(shares) + 1), shares, label=LABELS[name])
    log_x(axes)
    axes.set_yscale("log")
    label(axes, "popularity", "function, the most called first", "share of calls")
    axes.legend(fontsize=7)
    axes = drawing.add_subplot(1, 2, 2)
    for name, found in results.items():
        axes.plot(ROOMS, [100 * hit for hit in found["hits"]], marker=".", label=LABELS[name])
    doubling_x(axes)
    axes.set_ylim(0, 100)
    label(axes, "found in a pool", "adapters that it has room for", "% of requests")
    axes.legend(fontsize=7)
    return drawing


def rows(results: Results) -> list[Row]:
    lines = []
    for name, found in results.items():
        for count in (1, 10, 32, 125):
            share = 100 * sum(found["shares"][:count])
            most = "function" if count == 1 else f"{count} functions"
            what = f"{LABELS[name]}, calls of the {most} called most of {len(found['shares'])}"
            lines.append(Row(what, "", f"{share:.0f}%", HOW[name]))
        for room, hit in zip(ROOMS, found["hits"], strict=True):
            if room in {32, 128, 512}:
                what = f"{LABELS[name]}, requests that find theirs among the last {room}"
                how = "simulated: requests drawn by these shares"
                lines.append(Row(what, "", f"{100 * hit:.0f}%", how))
    return lines


FIGURE_12 = Figure(
    "12",
    "Figure 12: popularity",
    measure,
    draw,
    rows,
    "Calls of functions, each taken for an adapter: a public sample of 1,250 functions of the "
    "trace that the paper uses, read from `../shared/traces`; left out where that is not there. "
    "Right, what it means for a pool that lets go of what was unused for longest: requests drawn "
    "by these shares, without the bursts that the trace has.",
)
