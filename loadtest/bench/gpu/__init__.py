"""``symphony bench gpu``: what a GPU gives, beside what it could give.

First it checks that kernels, recorded launches and the executor give right results; if one is wrong
it says which, and no figure. Then it measures the ceilings (memory copy, matrix product, link) and
what comes near them: attention, page copies, adapters alone, and turns through the worker's engine,
without HTTP and NATS. The model has the shape of an 8B Llama (1B on a card with less than 60 GiB),
takes adapters, and is made on the device from a seed. ``table`` has each figure beside its bound
and, on a card that vLLM was measured on, vLLM's and the aim. Needs neither NATS nor Redis. Without
a GPU it runs a tiny shape on the CPU, to be known to work; its figures mean nothing then.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from loadtest.bench.gpu.agreement import check_recorded
from loadtest.bench.gpu.ceilings import measure_ceilings, rounded
from loadtest.bench.gpu.checks import check_all
from loadtest.bench.gpu.engine import BenchEngine
from loadtest.bench.gpu.kernels import measure_attention, measure_copies, measure_sgmv
from loadtest.bench.gpu.models import bench_device, bench_shape, make_model
from loadtest.bench.gpu.returning import measure_returning
from loadtest.bench.gpu.table import bounds, make_table, print_table
from loadtest.bench.lora.made import make_adapters
from shared.errors import SymphonyError

SHARED_MEMORY = Path("/dev/shm")
COMPARED_ADAPTERS = 3


class WrongResults(SymphonyError):
    """A check failed: no figure is worth anything."""


def run(argv: list[str]) -> dict[str, Any]:
    """Check, measure, and return every figure by name.

    Raises:
        WrongResults: a result is wrong; nothing is measured then.
    """
    parser = argparse.ArgumentParser(prog="symphony bench gpu", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="of each figure (default 5)")
    args = parser.parse_args(argv)
    device = bench_device()
    shape = bench_shape(device)
    started = time.monotonic()
    figures: dict[str, Any] = {"hardware": _hardware(device), "shape": shape.name}
    parent = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
    with ThreadPoolExecutor(1) as thread, tempfile.TemporaryDirectory(dir=parent) as name:
        folder = Path(name)
        try:
            checked = check_all(device)
            model = make_model(device, shape)
            assert model.lora is not None, "the model takes no adapters"
            adapters = make_adapters(folder, model.lora, "all", [shape.lora_rank], shape.adapters)
            bench = BenchEngine(model, shape, adapters, thread)
            compared = adapters[:COMPARED_ADAPTERS]
            checked |= check_recorded(model, bench.executor, bench.moves, shape, compared)
        except (AssertionError, ExceptionGroup) as error:  # the second from within an engine
            raise WrongResults(f"nothing is measured: {_reason(error)}") from error
        figures["checks"] = _shown("checks", checked)
        figures |= _measure(bench, device, folder, args.rounds)
        bench.close()
    figures["took_s"] = round(time.monotonic() - started, 1)
    return figures


def _measure(bench: BenchEngine, device: torch.device, folder: Path, rounds: int) -> dict[str, Any]:
    shape = bench.shape
    ceilings = _shown("ceilings", measure_ceilings(device, shape, rounds))
    attention = _shown("attention", measure_attention(device, shape, ceilings, rounds))
    copies = _shown("copies", measure_copies(device, shape, ceilings, folder, rounds))
    turns: dict[str, float] = {}
    parts: list[Callable[[], dict[str, float]]] = [
        lambda: bench.turns(rounds),
        lambda: bench.prompts(rounds),
        lambda: measure_returning(bench, folder),
        lambda: bench.write_behind(folder),
        bench.host_share,
        lambda: measure_sgmv(device, shape, ceilings, rounds),
    ]
    for part in parts:
        turns |= _shown("engine", rounded(part()))
    bound = bounds(
        shape, ceilings, bench.adapters[0].weight_bytes, int(turns["returning_sessions"])
    )
    table = make_table(_hardware(device), shape, turns, bound)
    print_table(table)
    return {"ceilings": ceilings, "attention": attention, "copies": copies, "table": table}


def _reason(error: Exception) -> str:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type(error).__name__


def _hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return "none: a CPU, with a tiny shape"


def _shown(name: str, figures: dict[str, Any]) -> dict[str, Any]:
    """Progress: a run that is cut short has shown so much at least."""
    print(name, figures, file=sys.stderr, flush=True)
    return figures
