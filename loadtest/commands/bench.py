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
        "http": "requests and tokens a second of a deployment, beside bare FastAPI",
        "resume": "first token of a returning turn, by where its history is",
        "kv": "how fast KV pages come from a peer and from disk",
        "hints": "what a hint is worth when the history is on another host",
        "engine": "decode and prefill beside transformers",
        "gpu": "a GPU's kernels, copies and turns beside the hardware's ceilings and vLLM",
        "vllm": "our worker on vLLM beside vLLM alone",
        "lora": "what adapters cost, beside PEFT",
        "capacity": "how much of real prompts is found again, by memory",
        "families": "which model families are served right",
    },
    "papers": {  # claims of papers, measured again
        "figures": "figures of four papers, drawn again",
        "cluster": "chats and agents on a simulated cluster",
        "sgmv": "the adapter kernel beside torch's products",
    },
    "developers": {  # what a change costs, or breaks
        "core": "what each service's decisions cost",
        "chaos": "faults on purpose, in simulation and in real processes",
        "fuzz": "bad input of all kinds",
    },
}
BENCHES = {name: f"loadtest.bench.{name}" for group in GROUPS.values() for name in group}

Run = Callable[[list[str]], dict[str, Any]]


def listing(*, as_json: bool) -> str:
    """All benchmarks with a line each, in groups of readers."""
    if as_json:
        return orjson.dumps(GROUPS).decode()
    width = max(map(len, BENCHES))
    return "\n".join(
        line
        for group, names in GROUPS.items()
        for line in (f"for {group}", *(f"  {n.ljust(width)}  {names[n]}" for n in names))
    )


def run_bench(name: str, argv: Sequence[str], *, as_json: bool) -> None:
    """Run benchmark `name`. With `as_json` its result is the only line on stdout.

    Raises:
        InvalidRequest: no benchmark has this name; the error lists the names.
        SymphonyError: it ran, and a guarantee did not hold.
    """
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
