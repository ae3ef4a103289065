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

from cli.base.reporting import out
from services.worker.device.openmp import share_cores
from shared.errors import InvalidRequest, SymphonyError

GROUPS = {
    "users": {  # what a model, a machine or a cluster gives
        "http": "loadtest.bench.http",
        "resume": "loadtest.bench.resume",
        "kv": "loadtest.bench.kv",
        "hints": "loadtest.bench.hints",
        "engine": "loadtest.bench.engine",
        "gpu": "loadtest.bench.gpu",
        "vllm": "loadtest.bench.vllm",
        "lora": "loadtest.bench.lora",
        "capacity": "loadtest.bench.capacity",
        "families": "loadtest.bench.families",
    },
    "papers": {  # claims of papers, measured again
        "figures": "loadtest.bench.figures",
        "cluster": "loadtest.bench.cluster",
        "sgmv": "loadtest.bench.sgmv",
    },
    "developers": {  # what a change costs, or breaks
        "core": "loadtest.bench.core",
        "chaos": "loadtest.bench.chaos",
        "fuzz": "loadtest.bench.fuzz",
    },
}
BENCHES = {name: module for group in GROUPS.values() for name, module in group.items()}

Run = Callable[[list[str]], dict[str, Any]]


def run_bench(name: str, argv: Sequence[str], *, as_json: bool) -> None:
    """Run benchmark `name`. With `as_json` its result is the only line on stdout.

    Raises:
        InvalidRequest: no benchmark has this name; the error lists the names.
        SymphonyError: it ran, and a guarantee did not hold.
    """
    if name == "list":
        for group, names in GROUPS.items():
            print(f"{group}: {', '.join(names)}")
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
