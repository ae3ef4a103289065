"""``symphony bench figures SET``: draws a paper's figures again, those of `deferred` and `symphony`
by simulators, others by measuring on this machine, one thing at a time.

Pictures and numbers go to docs/figures, the page that shows them beside the paper's numbers to
docs/SET-figures.md. ``--quick`` takes minutes; without it `deferred` takes half an hour, `symphony`
longer, and others some twenty minutes each, in which the machine should do nothing else.
"""

import argparse
import importlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from loadtest.papers.base import FULL, QUICK, Alone, Effort, Figure, FigureSet, Shared, Work
from loadtest.papers.report import Report
from shared.errors import InvalidRequest

DOCS = Path(__file__).resolve().parents[2] / "docs"
PROCESSES_MAX = 16
SETS = {
    "deferred": "loadtest.papers.deferred",
    "punica": "loadtest.papers.punica",
    "caraserve": "loadtest.papers.caraserve",
    "symphony": "loadtest.papers.symphony",
}
"""Modules, each with its `SET`; only that of the wanted one is imported."""


def run(argv: list[str]) -> dict[str, Any]:
    """Measure and draw: ``{"figures": {key: rows}, "page": path}``.

    Raises:
        InvalidRequest: there is no such set, or no such figure in it; lists those there are.
    """
    args = _parser().parse_args(argv)
    figures = figure_set(args.set)
    chosen = choose(figures, args.only)
    page = args.docs / f"{figures.name}-figures.md"
    report = Report(figures, args.docs / "figures", page)
    if args.redraw:
        return {"figures": report.redraw(), "page": str(page)}
    with _progress() as progress, workplace(figures, args.processes) as work_of:
        rows = _measure(chosen, QUICK if args.quick else FULL, report, progress, work_of)
    return {"figures": rows, "page": str(page)}


def figure_set(name: str) -> FigureSet:
    """The set of this name.

    Raises:
        InvalidRequest: there is none; lists those there are.
    """
    if name not in SETS:
        raise InvalidRequest(f"no set of figures {name!r}: use one of {', '.join(SETS)}")
    found: FigureSet = importlib.import_module(SETS[name]).SET
    return found


def choose(figures: FigureSet, only: str | None) -> list[Figure]:
    """The figures of these keys, with commas between; all without any.

    Raises:
        InvalidRequest: a key is not known.
    """
    if only is None:
        return list(figures.figures)
    known = {figure.key: figure for figure in figures.figures}
    keys = [key.strip().removeprefix("figure") for key in only.split(",")]
    if wrong := [key for key in keys if key not in known]:
        raise InvalidRequest(f"--only {','.join(wrong)}: use some of {', '.join(known)}")
    return [known[key] for key in keys]


OnProgress = Callable[[int, int], None]


@contextmanager
def workplace(figures: FigureSet, num_processes: int) -> Iterator[Callable[[OnProgress], Work]]:
    """Makes the work of a figure: here and alone where times are measured, else in processes."""
    if figures.is_timed:
        yield Alone
        return
    with ProcessPoolExecutor(num_processes, mp_context=get_context("spawn")) as pool:
        yield lambda on_progress: Shared(pool, on_progress)


def _measure(
    figures: Sequence[Figure],
    effort: Effort,
    report: Report,
    progress: Progress,
    work_of: Callable[[OnProgress], Work],
) -> dict[str, Any]:
    done: dict[str, Any] = {}
    shared: dict[object, dict[str, Any]] = {}
    for figure in figures:
        begin = time.perf_counter()
        if figure.measure not in shared:  # some figures are views of the same runs
            on_progress = _Bar(progress, progress.add_task(figure.title, total=0))
            shared[figure.measure] = figure.measure(work_of(on_progress), effort)
        results = shared[figure.measure]
        report.add(figure, results, effort.level, time.perf_counter() - begin)
        report.write()  # now, so that what was measured is not lost
        done[figure.key] = [row.as_dict() for row in figure.rows(results)]
    return done


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    )


class _Bar:
    """Moves one bar."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task
        self._total = 0

    def __call__(self, num_added: int, num_done: int) -> None:
        self._total += num_added
        self._progress.update(self._task, total=self._total, advance=num_done)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="symphony bench figures", description=__doc__)
    parser.add_argument("set", metavar="SET", help=f"one of {', '.join(SETS)}")
    parser.add_argument("--quick", action="store_true", help="short runs, fewer points")
    parser.add_argument("--only", metavar="KEY,KEY", help="as 1,7,10")
    parser.add_argument("--redraw", action="store_true", help="from the numbers kept, no run")
    parser.add_argument("--docs", type=Path, default=DOCS, help="folder to write to")
    parser.add_argument(
        "--processes",
        type=int,
        default=min(os.cpu_count() or 1, PROCESSES_MAX),
        help="for what is simulated; the others take one",
    )
    return parser
