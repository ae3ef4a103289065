"""`symphony test`: style, types, behaviour; the exit code of the first that fails."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence

from cli.reporting import out
from cli.start.plan import ROOT, python_path

# A file's tests share a house, so they stay together. Every process may hold one in memory.
PARALLEL = ("--numprocesses", "logical", "--maxprocesses", "4", "--dist", "loadfile")
# Threads of several processes that wait for one another by spinning keep one another from working.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
STEPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("style", ("ruff", "check", ".")),
    ("format", ("ruff", "format", "--check", ".")),
    ("types", ("mypy",)),
    ("behaviour", ("pytest", "-m", "not slow", "-q", *PARALLEL)),
)


def run_checks(pytest_args: Sequence[str]) -> int:
    """Run every step, or pytest alone with `pytest_args`; every step runs though one fails."""
    steps = [("behaviour", ("pytest", *pytest_args))] if pytest_args else list(STEPS)
    results = [(name, *_run(command)) for name, command in steps]
    out.print()
    for name, code, seconds in results:
        verdict = "[green]passed[/green]" if code == 0 else f"[red]failed[/red] (status {code})"
        out.print(f"{name:<10} {verdict} in {seconds:.1f} s")
    return next((code for _, code, _ in results if code), 0)


def _run(command: Sequence[str]) -> tuple[int, float]:
    out.print(f"[bold]{' '.join(command)}[/bold]")
    start = time.monotonic()
    code = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env={**ENVIRONMENT, **os.environ, "PYTHONPATH": python_path(os.environ)},
        check=False,
    ).returncode
    return code, time.monotonic() - start
