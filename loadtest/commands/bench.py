"""`symphony bench`: finds the benchmark and hands the rest of the command line to it.

A benchmark is a module with ``run(argv) -> dict``: it prints what people read while it runs, and
returns what machines read. ``violations`` in it, if there are any, make the exit status 1.
"""

import importlib
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from typing import Any

import orjson

from cli.reporting import out
from services.worker.device.openmp import share_cores
from shared.errors import InvalidRequest, SymphonyError

BENCHES = {
    "resume": "loadtest.bench.resume",
    "engine": "loadtest.bench.engine",
    "grammar": "loadtest.bench.grammar",
    "gpu": "loadtest.bench.gpu",
    "core": "loadtest.bench.core",
    "http": "loadtest.bench.http",
    "writeback": "loadtest.bench.writeback",
    "admission": "loadtest.bench.admission",
    "goodput": "loadtest.bench.goodput",
    "scheduler": "loadtest.bench.scheduler",
    "figures": "loadtest.bench.figures",
    "emulated": "loadtest.bench.emulated",
    "oneshot": "loadtest.bench.oneshot",
    "takeover": "loadtest.bench.takeover",
    "fuzz": "loadtest.fuzz.command",
    "sgmv": "loadtest.bench.sgmv",
    "lora": "loadtest.bench.lora",
    "coldstart": "loadtest.bench.coldstart",
    "assist": "loadtest.bench.assist",
    "adapters": "loadtest.bench.adapters",
    "chaos": "loadtest.bench.chaos",
    "hosts": "loadtest.bench.hosts",
    "disk": "loadtest.bench.disk",
    "hints": "loadtest.bench.hints",
    "tiers": "loadtest.bench.tiers",
    "agents": "loadtest.bench.agents",
    "flood": "loadtest.bench.flood",
    "cluster": "loadtest.bench.cluster",
    "capacity": "loadtest.bench.capacity",
    "scale": "loadtest.bench.scale",
    "compress": "loadtest.bench.compress",
    "quantize": "loadtest.bench.quantize",
    "families": "loadtest.bench.families",
}

Run = Callable[[list[str]], dict[str, Any]]


def run_bench(name: str, argv: Sequence[str], *, as_json: bool) -> None:
    """Run benchmark `name`. With `as_json` its result is the only line on stdout.

    Raises:
        InvalidRequest: there is none of this name; lists the names.
        SymphonyError: it ran, and a guarantee did not hold.
    """
    if name == "list":
        for known in BENCHES:
            print(known)
        return
    if name not in BENCHES:
        raise InvalidRequest(f"no benchmark {name!r}: use one of {', '.join(BENCHES)}")
    share_cores()  # as the worker does, for both sides of a comparison
    run: Run = importlib.import_module(BENCHES[name]).run
    if not as_json:
        result = run(list(argv))
        out.print_json(data=result)
    else:
        with redirect_stdout(sys.stderr):  # what people read, so that stdout is for machines
            result = run(list(argv))
        print(orjson.dumps(result).decode())
    if violations := result.get("violations"):
        raise SymphonyError(f"{len(violations)} violations")
