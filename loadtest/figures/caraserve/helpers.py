"""Figures 16, 17 and 18: what adapters cost that other processes compute."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from matplotlib.figure import Figure as Drawing

from loadtest.bench.assist.handoff import measure_handoff
from loadtest.bench.assist.layer import Adapters, measure_beside_threads, measure_one_core
from loadtest.figures.base import Effort, Figure, Results, Row, Work, label, new_drawing, ratio
from loadtest.figures.plots import doubling_x, log_y
from loadtest.figures.real import DTYPES, here, real

WAYS = {"shm": "shared memory", "socket": "Unix socket"}
SHARED_TOKENS = 128  # that several receivers, or cores, share (section 7.4)
RANKS = (16, 64)
# Section 4.2: the handoff through shared memory, whatever the number of receivers.
PAPER_SHM_MS = "below 1"


def measure_handoffs(work: Work, effort: Effort) -> Results:
    """Milliseconds there and back, by tokens to one receiver, and by receivers who share some."""
    hidden = effort.pick(64, 4096, 4096)
    tokens = effort.pick((4, 8), (16, 128, 512), (16, 32, 64, 128, 256, 512))
    receivers = effort.pick((1, 2), (1, 2, 4), (1, 2, 4, 8))
    rounds = effort.pick(2, 20, 60)
    results = here() | {"hidden": hidden, "tokens": min(SHARED_TOKENS, max(tokens))}
    dtype = DTYPES[results["dtype"]]

    def handoffs(part: tuple[tuple[int, ...], tuple[int, ...]]) -> list[dict[str, Any]]:
        return measure_handoff(*part, hidden, dtype, rounds)

    by_tokens, by_receivers = work.map(
        handoffs, [(tokens, (1,)), ((results["tokens"],), receivers)]
    )
    return results | {"by_tokens": by_tokens, "by_receivers": by_receivers}


def measure_cores(work: Work, effort: Effort) -> Results:
    """Milliseconds of all that an adapter adds to one layer: on one core by tokens, and of some
    tokens by cores, for helper processes and for torch's threads."""
    hidden = effort.pick(64, 4096, 4096)
    tokens = effort.pick((1, 8), (1, 16, 128, 512), (1, 16, 32, 64, 128, 256, 512))
    rounds = effort.pick(1, 5, 20)
    ranks = effort.pick((4,), RANKS, RANKS)
    results = here() | {"hidden": hidden, "tokens": min(SHARED_TOKENS, max(tokens))}
    with TemporaryDirectory(prefix="symphony-assist-") as folder:
        adapters = Adapters(Path(folder), hidden, DTYPES[results["dtype"]], ranks)
        adapters.refuse_if_wrong(max(tokens))

        def by_cores(count: int) -> list[dict[str, Any]]:
            before = torch.get_num_threads()
            torch.set_num_threads(count)
            try:
                found = measure_beside_threads(adapters, count, (results["tokens"],), rounds)
            finally:
                torch.set_num_threads(before)
            return [{"cores": count, **row} for row in found]

        (results["one_core"],) = work.map(
            lambda each: measure_one_core(adapters, each, rounds), [tokens]
        )
        counted = work.map(by_cores, _core_counts(len(os.sched_getaffinity(0))))
    return results | {"by_cores": [row for rows in counted for row in rows]}


def _core_counts(most: int) -> list[int]:
    """
    >>> _core_counts(1), _core_counts(6)
    ([1], [1, 2, 4, 6])
    """
    return sorted({min(1 << bit, most) for bit in range(most.bit_length() + 1)})


def draw_tokens(results: Results) -> Drawing:
    """Milliseconds to one receiver and back, by tokens."""
    return _draw_handoffs(results["by_tokens"], "tokens", f"one receiver, {results['hidden']} wide")


def draw_receivers(results: Results) -> Drawing:
    """The same by receivers."""
    return _draw_handoffs(
        results["by_receivers"],
        "receivers",
        f"{results['tokens']} tokens, {results['hidden']} wide",
    )


def _draw_handoffs(handoffs: list[dict[str, Any]], by: str, title: str) -> Drawing:
    drawing = new_drawing(1)
    axes = drawing.add_subplot()
    for way, name in WAYS.items():
        axes.plot([row[by] for row in handoffs], [row[way] for row in handoffs], ".-", label=name)
    doubling_x(axes)
    axes.set_ylim(bottom=0)
    label(axes, title, by, "ms there and back")
    axes.legend(fontsize=7)
    return drawing


def rows_of_tokens(results: Results) -> list[Row]:
    how = real(results)
    return [
        Row(
            f"{row['tokens']} tokens: shared memory / socket, ms",
            "",
            f"{row['shm']:.3f} / {row['socket']:.3f} ({row['socket_over_shm']:.1f})",
            how,
        )
        for row in results["by_tokens"]
    ]


def rows_of_receivers(results: Results) -> list[Row]:
    how, handoffs = real(results), results["by_receivers"]
    lines = [
        Row(
            f"{row['receivers']} receiver{'s' * (row['receivers'] > 1)}, {WAYS[way]}, ms",
            PAPER_SHM_MS if way == "shm" else "",
            f"{row[way]:.3f}",
            how,
        )
        for row in handoffs
        for way in WAYS
    ]
    first, last = handoffs[0], handoffs[-1]
    for way, paper in (("shm", "about 1"), ("socket", "grows with their number")):
        what = f"{WAYS[way]}, {last['receivers']} receivers over {first['receivers']}"
        lines.append(Row(what, paper, f"{ratio(last[way], first[way]):.2f}", how))
    return lines


def draw_cores(results: Results) -> Drawing:
    """Left one core by tokens, a line for each rank; right by cores."""
    drawing = new_drawing()
    axes = drawing.add_subplot(1, 2, 1)
    for rank in _ranks(results):
        cells = [row for row in results["one_core"] if row["lora_rank"] == rank]
        axes.plot(
            [row["tokens"] for row in cells],
            [row["ms"] for row in cells],
            marker=".",
            label=f"rank {rank}",
        )
    doubling_x(axes)
    log_y(axes)
    label(axes, "one core", "tokens", "ms a layer")
    axes.legend(fontsize=7)
    axes = drawing.add_subplot(1, 2, 2)
    for rank in _ranks(results):
        cells = [row for row in results["by_cores"] if row["lora_rank"] == rank]
        for way, style in (("processes", "o-"), ("torch", "s--")):
            axes.plot(
                [row["cores"] for row in cells],
                [row[way] for row in cells],
                style,
                markersize=4,
                label=f"{_CREWS[way]}, rank {rank}",
            )
    axes.set_xticks(sorted({row["cores"] for row in results["by_cores"]}))
    axes.set_ylim(bottom=0)
    label(axes, f"{results['tokens']} tokens", "cores", "ms a layer")
    axes.legend(fontsize=7)
    return drawing


def rows_of_cores(results: Results) -> list[Row]:
    how, lines = real(results), []
    for rank in _ranks(results):
        cells = [row for row in results["one_core"] if row["lora_rank"] == rank]
        first, last = cells[0], cells[-1]
        what = f"rank {rank}, one core, {first['tokens']} to {last['tokens']} tokens, ms a layer"
        lines.append(Row(what, "", f"{first['ms']:.2f} to {last['ms']:.2f}", how))
        for row in (row for row in results["by_cores"] if row["lora_rank"] == rank):
            cores = f"{row['cores']} core{'s' * (row['cores'] > 1)}"
            what = f"rank {rank}, {results['tokens']} tokens, {cores}: torch's threads over helpers"
            lines.append(Row(what, "above 1", f"{row['torch_over_processes']:.2f}", how))
    return lines


def _ranks(results: Results) -> list[int]:
    return sorted({row["lora_rank"] for row in results["one_core"]})


_CREWS = {"processes": "helpers", "torch": "torch's threads"}
FIGURE_16 = Figure(
    "16",
    "Figure 16: handing an input over",
    measure_handoffs,
    draw_tokens,
    rows_of_tokens,
    "The host's part of it: an input to one process and as many columns of float32 back, through "
    "memory with a word each way, by the code that serves, and through a socket (`bench assist`); "
    "nothing is computed. The paper's figure is of launching it from a GPU without synchronizing, "
    "which makes a prefill iteration 16% faster than PyTorch's way; that part comes with helpers "
    "beside a GPU.",
)
FIGURE_17 = Figure(
    "17",
    "Figure 17: shared memory against sockets",
    measure_handoffs,
    draw_receivers,
    rows_of_receivers,
    "The same by receivers, who share the tokens. A machine of few cores has to take turns with so "
    "many processes, which the paper's does not.",
)
FIGURE_18 = Figure(
    "18",
    "Figure 18: helpers by tokens and by cores",
    measure_cores,
    draw_cores,
    rows_of_cores,
    "All that an adapter adds to one layer of a model 4096 wide (`bench assist`), handing over "
    "included. Left one helper; right as many helpers as cores, beside torch with as many threads. "
    "The paper goes to 8 cores; here it ends with those that there are.",
)
