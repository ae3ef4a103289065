"""`symphony test`: style, types, behaviour; the exit code of the first that fails."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from cli.base.called import VARIABLE as CALLED_AS
from cli.base.children import ROOT, python_path
from cli.base.reporting import out

# A file's tests share a deployment, so they stay together. Files start by name, but for those that
# tests/conftest.py puts first: the long ones, of whole deployments, come before the short ones.
# Those wait more than they work, so there is a process more than there are cores; each may hold a
# deployment in memory.
PROCESSES = min((os.cpu_count() or 1) + 1, 4)
PARALLEL = ("--numprocesses", str(PROCESSES), "--dist", "loadfile", "--no-loadscope-reorder")
# Threads of several processes that wait for one another by spinning keep one another from working.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
QUICK: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("style", ("ruff", "check", ".")),
    ("format", ("ruff", "format", "--check", ".")),
)
TYPES = ("mypy",)
SLOWEST = ("--durations", "30", "--durations-min", "5")
BEHAVIOUR = ("pytest", "-m", "not slow", "-q", *SLOWEST, *PARALLEL)

Result = tuple[int, float]  # exit code, seconds


def run_checks(pytest_args: Sequence[str]) -> int:
    """Run every step, or pytest alone with `pytest_args`; every step runs though one fails."""
    if pytest_args:
        return _report([("behaviour", _run(("pytest", *pytest_args)))])
    results = [(name, _run(command)) for name, command in QUICK]
    # Types take a core for a minute, and tests often wait: side by side both are over sooner.
    with ThreadPoolExecutor(1) as beside:
        types = beside.submit(_run_silently, TYPES)
        behaviour = _run(BEHAVIOUR)
        said, checked = types.result()
    _announce(TYPES)
    print(said, end="", flush=True)
    return _report([*results, ("types", checked), ("behaviour", behaviour)])


def _report(results: Sequence[tuple[str, Result]]) -> int:
    out.print()
    for name, (code, seconds) in results:
        verdict = "[green]passed[/green]" if code == 0 else f"[red]failed[/red] (status {code})"
        out.print(f"{name:<10} {verdict} in {seconds:.1f} s")
    return next((code for _, (code, _) in results if code), 0)


def _run(command: Sequence[str]) -> Result:
    """Run it on the terminal."""
    _announce(command)
    start = time.monotonic()
    code = subprocess.run(_line(command), cwd=ROOT, env=_environment(), check=False).returncode
    return code, time.monotonic() - start


def _run_silently(command: Sequence[str]) -> tuple[str, Result]:
    """Run it while something else has the terminal: what it said, and the result."""
    start = time.monotonic()
    done = subprocess.run(
        _line(command), cwd=ROOT, env=_environment(), check=False, text=True, errors="replace",
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return done.stdout, (done.returncode, time.monotonic() - start)


def _announce(command: Sequence[str]) -> None:
    out.print(f"[bold]{' '.join(command)}[/bold]")


def _line(command: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", *command]


def _environment() -> dict[str, str]:
    """Tests start hundreds of processes: each would compile all of our modules again where Python
    writes none. Nor does the output that they expect depend on how this command was called.
    """
    own = {**os.environ, "PYTHONPATH": python_path(os.environ)}
    for name in ("PYTHONDONTWRITEBYTECODE", CALLED_AS):
        own.pop(name, None)
    return {**ENVIRONMENT, **own}
