"""``symphony bench figures deferred``: draws the paper's figures again.

Pictures and numbers go to docs/figures, the page that shows them beside the paper's numbers to
docs/deferred-figures.md. ``--quick`` takes minutes; without it half an hour.
"""

import argparse
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
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

from loadtest.figures.base import FULL, QUICK, Effort, Figure, Shared
from loadtest.figures.deferred import DEFERRED
from loadtest.figures.report import Report
from shared.errors import InvalidRequest

DOCS = Path(__file__).resolve().parents[2] / "docs"
TITLE = "Figures of the deferred-batching paper, drawn again"
PROCESSES_MAX = 16


def run(argv: list[str]) -> dict[str, Any]:
    """Measure and draw: ``{"figures": {key: rows}, "page": path}``.

    Raises:
        InvalidRequest: there is no such set, or no such figure in it; lists those there are.
    """
    args = _parser().parse_args(argv)
    if args.set != "deferred":
        raise InvalidRequest(f"no set of figures {args.set!r}: use deferred")
    figures = choose(args.only)
    page = args.docs / "deferred-figures.md"
    report = Report("deferred", TITLE, DEFERRED, args.docs / "figures", page)
    rows = _measure(figures, QUICK if args.quick else FULL, report, args.processes)
    return {"figures": rows, "page": str(page)}


def choose(only: str | None) -> list[Figure]:
    """The figures of these keys, with commas between; all without any.

    Raises:
        InvalidRequest: a key is not known.
    """
    if only is None:
        return list(DEFERRED)
    known = {figure.key: figure for figure in DEFERRED}
    keys = [key.strip().removeprefix("figure") for key in only.split(",")]
    if wrong := [key for key in keys if key not in known]:
        raise InvalidRequest(f"--only {','.join(wrong)}: use some of {', '.join(known)}")
    return [known[key] for key in keys]


def _measure(
    figures: Sequence[Figure], effort: Effort, report: Report, num_processes: int
) -> dict[str, Any]:
    done: dict[str, Any] = {}
    shared: dict[object, dict[str, Any]] = {}
    context = get_context("spawn")
    with (
        _progress() as progress,
        ProcessPoolExecutor(num_processes, mp_context=context) as pool,
    ):
        for figure in figures:
            begin = time.perf_counter()
            if figure.measure not in shared:  # some figures are views of the same runs
                told = _Teller(progress, progress.add_task(figure.title, total=0))
                shared[figure.measure] = figure.measure(Shared(pool, told), effort)
            results = shared[figure.measure]
            report.add(figure, results, effort.level, time.perf_counter() - begin)
            report.write()  # now, so that what was measured is not lost
            done[figure.key] = [row._asdict() for row in figure.rows(results)]
    return done


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    )


class _Teller:
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
    parser.add_argument("set", help="deferred")
    parser.add_argument("--quick", action="store_true", help="short runs, fewer points")
    parser.add_argument("--only", metavar="KEY,KEY", help="as 2,13,table2")
    parser.add_argument("--docs", type=Path, default=DOCS, help="folder to write to")
    parser.add_argument("--processes", type=int, default=min(os.cpu_count() or 1, PROCESSES_MAX))
    return parser
