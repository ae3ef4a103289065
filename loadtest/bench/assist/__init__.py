"""``symphony bench assist``: what it takes to have helper processes compute what adapters add
(CaraServe, section 7.4).

`handoff_ms`: rows of one input to 1, 2 or 4 processes and what they give back, through memory that
they share and words in it (`shm`, as helpers are told), and through Unix sockets (`socket`).
`tokens_per_core`: what one helper takes for all that an adapter adds to one layer, by rows.
`processes_over_threads`: the same by a crew, beside torch's own threads over plain matrices
(`torch`) and the serving kernel's threads over the same pages (`kernel`). Nothing is measured if a
crew does not agree with the reference.
"""

import argparse
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from loadtest.bench.assist.handoff import measure_handoff
from loadtest.bench.assist.layer import Adapters, measure_beside_threads, measure_one_core
from loadtest.bench.options import numbers

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def run(argv: list[str]) -> dict[str, Any]:
    """Check, then measure: milliseconds, medians.

    Raises:
        InvalidRequest: an option is wrong.
        AssertionError: a crew does not agree with the reference; nothing is measured then.
    """
    args = _parser().parse_args(argv)
    dtype, tokens = DTYPES[args.dtype], tuple(numbers("tokens", args.tokens))
    ranks, receivers = (
        tuple(numbers("ranks", args.ranks)),
        tuple(numbers("receivers", args.receivers)),
    )
    handed_over = tuple(numbers("handoff-tokens", args.handoff_tokens))
    num_helpers = args.helpers or len(os.sched_getaffinity(0))
    with TemporaryDirectory(prefix="symphony-assist-") as folder:
        adapters = Adapters(Path(folder), args.hidden, dtype, ranks)
        adapters.refuse_if_wrong(max(tokens))
        return {
            "helpers": num_helpers,
            "threads": torch.get_num_threads(),
            "handoff_ms": measure_handoff(handed_over, receivers, args.hidden, dtype, args.rounds),
            "tokens_per_core": measure_one_core(adapters, tokens, args.rounds),
            "processes_over_threads": measure_beside_threads(
                adapters, num_helpers, tokens, args.rounds
            ),
        }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="symphony bench assist", description=__doc__)
    parser.add_argument("--hidden", type=int, default=768, help="inputs of a layer")
    parser.add_argument("--ranks", default="8,16,32,64")
    parser.add_argument("--tokens", default="1,4,16,64,128,256,512", help="rows of one adapter")
    parser.add_argument("--helpers", type=int, default=0, help="of the crew; 0: one a core")
    parser.add_argument("--handoff-tokens", default="16,512", help="rows that are handed over")
    parser.add_argument("--receivers", default="1,2,4", help="who share those rows")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--rounds", type=int, default=40, help="of each figure, the median counts")
    return parser
