"""`symphony bench capacity`: how much of prompts is found again, by how much is kept of them.

Replays a trace of prompts as blocks with equal prefixes, one after the other, through memories of
several sizes: plain LRU, the orders in which our arenas give pages (the code that serves), and one
that knows all that comes. Hints are not in it: one comes seconds before its turn, when what to keep
was decided minutes ago.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

from cli.base.reporting import out
from loadtest.bench.capacity.memories import Clairvoyant, Memory, Ordered, PlainLru, Prompt
from loadtest.workloads import mooncake
from loadtest.workloads.registry import why_absent
from shared.errors import InvalidRequest
from shared.profiles import PROFILES

TB = 1e12
SIZES = "0.1,0.5,1,4,inf"
BYTES_A_TOKEN = PROFILES["a100-llama3-8b"].kv_bytes_per_token


def run(argv: list[str]) -> dict[str, Any]:
    """Replay: ``{"hit_percent": {memory: {size: percent}}, ...}``.

    Raises:
        InvalidRequest: a size is no number above 0.
    """
    args = _parser().parse_args(argv)
    sizes = {text: _size(text) for text in args.tb.split(",")}
    if why := why_absent(args.trace):
        return {"skipped": why}
    requests = mooncake.load_requests()[: args.requests]
    prompts = [request.blocks for request in requests]
    # Requests of the trace's one instant (of 3 s) come one after the other.
    times = [request.at_ns + number for number, request in enumerate(requests)]
    block_bytes = mooncake.BLOCK_TOKENS * args.bytes_per_token
    distinct = {block for prompt in prompts for block in prompt}
    found: dict[str, dict[str, float]] = {}
    for text, size_bytes in sizes.items():
        num_blocks = len(distinct) if size_bytes == float("inf") else int(size_bytes / block_bytes)
        for name, make in _memories(num_blocks, args.layers, prompts).items():
            begin_s = time.perf_counter()
            percent = replay(make(), prompts, times)
            found.setdefault(name, {})[text] = round(percent, 1)
            out.print(f"{text} TB, {name}: {percent:.1f}% ({time.perf_counter() - begin_s:.1f} s)")
    return {
        "trace": args.trace,
        "requests": len(prompts),
        "distinct_tokens": len(distinct) * mooncake.BLOCK_TOKENS,
        "bytes_per_token": args.bytes_per_token,
        "layers": args.layers,
        "hit_percent": found,
    }


def replay(memory: Memory, prompts: list[tuple[int, ...]], times: list[int]) -> float:
    """Percent of all blocks that were there."""
    found = sum(memory.ask(prompt, at_ns) for prompt, at_ns in zip(prompts, times, strict=True))
    return 100 * found / sum(map(len, prompts))


def _memories(
    num_blocks: int, num_layers: int, prompts: Sequence[Prompt]
) -> dict[str, Callable[[], Memory]]:
    return {
        "plain-lru": lambda: PlainLru(num_blocks),
        "lru": lambda: Ordered("lru", num_blocks, num_layers),
        "session": lambda: Ordered("session", num_blocks, num_layers),
        "layer": lambda: Ordered("layer", num_blocks, num_layers),
        "clairvoyant": lambda: Clairvoyant(num_blocks, prompts),
    }


def _size(text: str) -> float:
    """Bytes of so many TB.

    >>> _size("0.5"), _size("inf")
    (500000000000.0, inf)
    """
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not found > 0:
        raise InvalidRequest(f"--tb {text}: use numbers above 0, or inf, with commas between")
    return found * TB


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="symphony bench capacity", description=__doc__)
    parser.add_argument("--trace", choices=["mooncake"], default="mooncake")
    parser.add_argument("--tb", default=SIZES, help=f"sizes of memory (default {SIZES})")
    parser.add_argument(
        "--bytes-per-token",
        type=int,
        default=BYTES_A_TOKEN,
        help=f"of KV (default {BYTES_A_TOKEN})",
    )
    parser.add_argument(
        "--layers", type=int, default=4, help="in which blocks leave our memories (default 4)"
    )
    parser.add_argument(
        "--requests", type=int, default=None, help="the first so many (default all)"
    )
    return parser
