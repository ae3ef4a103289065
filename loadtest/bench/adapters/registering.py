"""Adding adapters over HTTP, as their owners do."""

import asyncio
import shutil
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson

from cli.adapters.client import AdapterClient
from loadtest.adapters import Recipe, write_adapter
from loadtest.bench.adapters.load import Clients
from loadtest.bench.adapters.summary import trouble_of, ttft_ms
from loadtest.bench.lora.made import FILE_DTYPES, layer_modules, written_in_turn
from loadtest.fuzz.plain_http import ask, request_bytes
from shared.errors import PeerUnavailable
from shared.messages import LoraCard

LOAD = "/v1/load_lora_adapter"
SAY_EVERY = 100
ADDED_RANK = 16
ADDED_SEED = 1_000_000  # other weights than those of all that are there
NAMES_AT_ONCE = 8


async def register_all(
    port: int, names: Sequence[str], card: LoraCard, targets: str, ranks: Sequence[int], into: Path
) -> dict[str, Any]:
    """Have a house take an adapter for each name, one after another, ranks in turn. Each is written
    when its turn is there, and removed when the house has its copy.

    Args:
        into: a folder that the house may read from.

    Returns:
        what additions took.

    Raises:
        PeerUnavailable: one was refused.
    """
    written = written_in_turn(
        into, layer_modules(card), card.dtype, targets, ranks, range(len(names))
    )
    took_ms = []
    for number, name in enumerate(names):
        folder = await asyncio.to_thread(next, written)
        took_ms.append(await register(port, name, folder))
        await asyncio.to_thread(shutil.rmtree, folder)
        if (number + 1) % SAY_EVERY == 0:
            print(f"{number + 1} adapters registered", file=sys.stderr, flush=True)
    p50, p99 = np.percentile(took_ms, [50, 99])
    return {
        "num": len(names),
        "seconds": round(sum(took_ms) / 1e3, 1),
        "p50_ms": round(float(p50), 1),
        "p99_ms": round(float(p99), 1),
    }


async def register(port: int, name: str, folder: Path) -> float:
    """Have a house take the adapter in a folder; the milliseconds it took.

    Raises:
        PeerUnavailable: it was refused.
    """
    body = orjson.dumps({"lora_name": name, "lora_path": str(folder)})
    begun_at = time.monotonic()
    answer = await ask(port, request_bytes("POST", LOAD, port, body, b"Connection: close"))
    if answer.status != 200:
        told = answer.body[:200].decode(errors="replace")
        raise PeerUnavailable(f"adding {name}: {answer.status} {told}")
    return (time.monotonic() - begun_at) * 1e3


async def register_names(port: int, names: Iterable[str], folder: Path) -> float:
    """Give one adapter many names, some at once; seconds.

    Raises:
        PeerUnavailable: one was refused.
    """
    left: Iterator[str] = iter(names)
    begun_at = time.monotonic()

    async def go_on() -> None:
        for name in left:
            await register(port, name, folder)

    async with asyncio.TaskGroup() as group:
        for _ in range(NAMES_AT_ONCE):
            group.create_task(go_on())
    return time.monotonic() - begun_at


async def first_tokens(clients: Clients, card: LoraCard, num: int, into: Path) -> dict[str, Any]:
    """From sending an adapter of rank 16 on all linear layers, as `adapters add` does, to its first
    token: the median of `num`.

    Raises:
        PeerUnavailable: one was refused, or not served.
    """
    numbers = range(ADDED_SEED, ADDED_SEED + num)
    modules = layer_modules(card)
    written = written_in_turn(into, modules, card.dtype, "all", [ADDED_RANK], numbers)
    took_ms, added_ms, num_bytes = [], [], 0
    with httpx.Client(base_url=f"http://127.0.0.1:{clients.port}") as http:
        client = AdapterClient(http)
        for number in range(num):
            folder = await asyncio.to_thread(next, written)
            name = f"added-{number}"
            begun_at = time.monotonic()
            record = await asyncio.to_thread(client.add, name, folder)
            added_ms.append((time.monotonic() - begun_at) * 1e3)
            stream = await clients.ask(name, due_at=begun_at)
            if trouble := trouble_of(stream, clients.lengths.max_tokens):
                raise PeerUnavailable(f"{name}, which was just added: {trouble}")
            took_ms.append(ttft_ms(stream))
            num_bytes = record["num_bytes"]
            shutil.rmtree(folder)
    return {
        "first_token_after_add_ms": round(statistics.median(took_ms), 1),
        "first_token_after_add_max_ms": round(max(took_ms), 1),
        "add_ms": round(statistics.median(added_ms), 1),
        "added_mb": round(num_bytes / 1e6, 2),
    }


def write_tiny(folder: Path, card: LoraCard) -> Path:
    """A small adapter of a model: one target of its first layer."""
    target = card.targets[0].name
    recipe = Recipe(rank=4, targets=(target,), layers=(0,), dtype=FILE_DTYPES[card.dtype])
    return write_adapter(folder, layer_modules(card), recipe)
