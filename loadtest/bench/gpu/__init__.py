"""``symphony bench gpu``: what a GPU gives, beside what it could give.

First it checks that kernels, recorded steps and the executor give right results; then it measures
the ceilings (memory copy, matrix product, link) and what comes near them: attention, page copies,
decode, prefill, a returning turn, write-behind. The model has the shape of an 8B Llama and is made
on the device from a seed. One line of JSON at the end; needs neither NATS nor Redis. Without a GPU
it runs a tiny shape on the CPU, to be known to work; its figures mean nothing then.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from loadtest.bench.gpu.ceilings import measure_ceilings
from loadtest.bench.gpu.checks import check_all
from loadtest.bench.gpu.engine import measure_engine
from loadtest.bench.gpu.kernels import measure_attention, measure_copies
from loadtest.bench.gpu.models import EIGHT_B, TINY, bench_device

SHARED_MEMORY = Path("/dev/shm")


def run(argv: list[str]) -> dict[str, Any]:
    """Check, measure, and return every figure by name.

    Raises:
        AssertionError: a result is wrong; nothing is measured then.
    """
    parser = argparse.ArgumentParser(prog="symphony bench gpu", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="of each figure (default 5)")
    args = parser.parse_args(argv)
    device = bench_device()
    shape = EIGHT_B if device.type == "cuda" else TINY
    started = time.monotonic()
    figures: dict[str, Any] = {"hardware": _hardware(device), "shape": shape.name}
    figures["checks"] = _told("checks", check_all(device))
    ceilings = _told("ceilings", measure_ceilings(device, shape, args.rounds))
    figures["ceilings"] = ceilings
    figures["attention"] = _told(
        "attention", measure_attention(device, shape, ceilings, args.rounds)
    )
    folder = SHARED_MEMORY if SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir())
    figures["copies"] = _told(
        "copies", measure_copies(device, shape, ceilings, folder, args.rounds)
    )
    figures["engine"] = _told(
        "engine", measure_engine(device, shape, ceilings, folder, args.rounds)
    )
    figures["took_s"] = round(time.monotonic() - started, 1)
    return figures


def _hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return "none: a CPU, with a tiny shape"


def _told(name: str, figures: dict[str, Any]) -> dict[str, Any]:
    """Progress, for who watches; a run that is cut short has shown so much at least."""
    print(name, figures, file=sys.stderr, flush=True)
    return figures
