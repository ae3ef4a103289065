"""`symphony bench capacity`: how much of prompts is found again, by how much is kept of them.

Replays traces of prompts as blocks with equal prefixes, one prompt after the other, through
memories of several sizes: plain LRU, the orders in which our tiers give pages (the code that
serves), and one that knows all that comes. Hints are not in it: one comes seconds before its turn,
when what to keep was decided minutes ago. The last column is what the order costs, in microseconds
of CPU a block of 64 tokens that is touched.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

from cli.base.reporting import out
from loadtest.bench.capacity.memories import Clairvoyant, Memory, Ordered, PlainLru
from loadtest.bench.capacity.traces import TRACES, Ask, trace, why_no_trace
from loadtest.workloads.mooncake import BLOCK_TOKENS
from shared.errors import InvalidRequest
from shared.profiles import PROFILES

TB = 1e12
SIZES = "0.1,0.5"
BYTES_A_TOKEN = PROFILES["a100-llama3-8b"].kv_bytes_per_token


def run(argv: list[str]) -> dict[str, Any]:
    """Replay: ``{"hit_percent": {trace: {memory: {size: percent}}}, ...}``.

    Raises:
        InvalidRequest: a size is no number above 0.
    """
    args = _parser().parse_args(argv)
    sizes = {text: _size(text) for text in args.tb.split(",")}
    found: dict[str, dict[str, dict[str, float]]] = {}
    skipped: dict[str, str] = {}
    for name in args.trace or TRACES:
        if why := why_no_trace(name):
            skipped[name] = why
            continue
        asks = trace(name)[: args.requests]
        found[name] = _replay_all(name, asks, sizes, args)
    return {
        "bytes_per_token": args.bytes_per_token,
        "layers": args.layers,
        "hit_percent": found,
        "skipped": skipped,
    }


def _replay_all(
    name: str, asks: Sequence[Ask], sizes: dict[str, float], args: argparse.Namespace
) -> dict[str, dict[str, float]]:
    block_bytes = BLOCK_TOKENS * args.bytes_per_token
    distinct = {block for ask in asks for block in ask.blocks}
    found: dict[str, dict[str, float]] = {}
    for text, size_bytes in sizes.items():
        num_blocks = len(distinct) if size_bytes == float("inf") else int(size_bytes / block_bytes)
        for memory, make in _memories(num_blocks, args.layers, asks).items():
            begin_s = time.process_time()
            percent = replay(make(), asks)
            cpu_us = (time.process_time() - begin_s) * 1e6
            found.setdefault(memory, {})[text] = round(percent, 1)
            touched = sum(len(ask.blocks) for ask in asks) * (BLOCK_TOKENS // 64)
            out.print(f"{name}, {text} TB, {memory}: {percent:.1f}%, {cpu_us / touched:.2f} us")
    return found


def replay(memory: Memory, asks: Sequence[Ask]) -> float:
    """Percent of all blocks that were there."""
    found = sum(memory.ask(ask.blocks, ask.at_ns) for ask in asks)
    return 100 * found / sum(len(ask.blocks) for ask in asks)


def _memories(
    num_blocks: int, num_layers: int, asks: Sequence[Ask]
) -> dict[str, Callable[[], Memory]]:
    return {
        "lru": lambda: PlainLru(num_blocks),
        "layer": lambda: Ordered("layer", num_blocks, num_layers),
        "predicted": lambda: Ordered("predicted", num_blocks, num_layers),
        "belady": lambda: Clairvoyant(num_blocks, [ask.blocks for ask in asks]),
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
    parser.add_argument(
        "--trace", choices=list(TRACES), action="append", help="may be given several times"
    )
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
