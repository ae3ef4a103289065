"""``symphony bench sgmv``: what adapters add to a step, beside what others do (Punica, 7.1).

One projection of `--hidden` inputs and outputs, for every size of batch, popularity of adapters and
rank, and for adapters of different ranks. Each repetition reads other weights, from more memory
than the caches hold. `sgmv` is the kernel that serves. `loop`, `gather_bmm` and `bmm` (whose
weights were gathered before) are torch's products over plain tensors, and `padded` is the serving
kernel with every adapter filled up to the largest rank. The bound is reading each adapter's weights
once at the streaming rate, which is measured in between.
"""

import argparse
import sys
from collections.abc import Iterable
from typing import Any

import torch

from loadtest.bench.sgmv.agreement import refuse_if_wrong
from loadtest.bench.sgmv.cells import NAMES, Cell, Measurer
from loadtest.bench.sgmv.popularity import POPULARITIES
from loadtest.bench.sgmv.step_models import fit_models
from loadtest.options import numbers
from shared.errors import InvalidRequest

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def run(argv: list[str]) -> dict[str, Any]:
    """Check, then measure: ``stream_gb_per_s``, ``rows`` and ``models``.

    Raises:
        InvalidRequest: an option is wrong.
        AssertionError: a kernel does not agree with the reference; nothing is measured then.
    """
    args = _parser().parse_args(argv)
    popularities = args.popularity.split(",")
    if unknown := [each for each in popularities if each not in POPULARITIES]:
        raise InvalidRequest(f"--popularity {unknown[0]}: use some of {', '.join(POPULARITIES)}")
    dtype = DTYPES[args.dtype]
    mixtures: list[tuple[int, ...]] = [(rank,) for rank in tuple(numbers("ranks", args.ranks))]
    if args.mixed:
        mixtures.append(tuple(numbers("mixed", args.mixed)))
    cells = [
        Cell(batch, popularity, ranks)
        for ranks in mixtures
        for popularity in popularities
        for batch in tuple(numbers("batch", args.batch))
    ]
    refuse_if_wrong(dtype)
    measurer = Measurer(args.hidden, dtype, args.memory_mb << 20, args.rounds)
    measured = measure_cells(measurer, cells)
    return {**measured, "models": fit_models(measured["rows"])}


def measure_cells(measurer: Measurer, cells: Iterable[Cell]) -> dict[str, Any]:
    """``stream_gb_per_s``, and ``rows``: each cell beside its bound."""
    rows = []
    for cell in cells:
        rows.append(measurer.measure(cell))
        _tell(rows[-1])
    rate = measurer.stream_gb_per_s()
    for row in rows:
        bound_ms = row["adapter_bytes"] / rate / 1e6
        row["bound_ms"] = round(bound_ms, 5)
        row["share_of_bound"] = round(bound_ms / row["sgmv"], 3)
    return {"stream_gb_per_s": round(rate, 2), "rows": rows}


def _tell(row: dict[str, Any]) -> None:
    times = "  ".join(f"{name} {row[name]:8.3f}" for name in NAMES if name in row)
    ranks = ",".join(map(str, row["ranks"]))
    print(
        f"{row['popularity']:9} batch {row['batch']:3} ranks {ranks:9} ms: {times}",
        file=sys.stderr,
        flush=True,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="symphony bench sgmv", description=__doc__)
    parser.add_argument("--batch", default="1,8,32,64", help="rows, one a request")
    parser.add_argument("--ranks", default="8,16,32,64", help="the same for all adapters")
    parser.add_argument("--mixed", default="8,8,8,64", help="ranks that adapters have in turn")
    parser.add_argument("--popularity", default="distinct,uniform,skewed,identical")
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--memory-mb", type=int, default=1024, help="that hold the weights")
    parser.add_argument("--rounds", type=int, default=40, help="of each figure, the median counts")
    return parser
