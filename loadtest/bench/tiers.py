"""``symphony bench tiers``: many more sessions than a worker's pages hold, and none computed twice.

Sessions that together have `--fill` times the KV of the worker's pool have a turn each; then each,
in an order that nobody could guess, has another. The arena holds `ARENA_FILL` pools, the disk
`DISK_FILL`, the object store (a server of S3 on this machine) all the rest. A turn is counted for
the lowest tier that it needed, and as recomputed if a token of its history was computed again: a
worker computes the end of a history itself where that is sooner. With `--fetch-all` it does not, so
that whatever is computed then had been lost.
"""

import argparse
import asyncio
import os
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from loadtest.bench.lab import EAGER_WORKER, Lab, Trace, open_lab
from loadtest.models import add_model_options, model_source, shape_of
from loadtest.s3_server import NoServer, S3Server, s3_server
from shared.blocks import BLOCK_TOKENS
from shared.errors import PeerUnavailable
from shared.ids import SessionId

POOL_SESSIONS = 5
ARENA_FILL, DISK_FILL = 2, 8
SPARE_BLOCKS = 4  # of a session: what its turns add
TIERS = ("arena", "disk", "peer", "objects")  # from the highest to the lowest
POLL_S = 0.2
SAVE_TIMEOUT_S = 600.0


def run(argv: list[str]) -> dict[str, Any]:
    """Measure and return ``{"sessions", "recomputed_turns", "hits_by_tier", ...}``."""
    parser = argparse.ArgumentParser(prog="symphony bench tiers", description=__doc__)
    parser.add_argument("--fill", type=float, default=20.0, help="KV of all sessions, in pools")
    parser.add_argument("--session-tokens", type=int, default=640)
    parser.add_argument("--new-tokens", type=int, default=20)
    parser.add_argument("--dtype", default="bfloat16", help="of random weights")
    parser.add_argument("--fetch-all", action="store_true", help="all there is, always")
    add_model_options(parser)
    args = parser.parse_args(argv)
    model = model_source(args, args.dtype)
    with tempfile.TemporaryDirectory(prefix="symphony-s3-") as folder:
        try:
            with s3_server(Path(folder) / "s3.log") as server:
                os.environ.update(server.environment)
                return asyncio.run(_measure(args, model, server))
        except NoServer as error:
            raise PeerUnavailable(str(error)) from None


async def _measure(args: argparse.Namespace, model: str, server: S3Server) -> dict[str, Any]:
    shape = shape_of(model)
    blocks = args.session_tokens // BLOCK_TOKENS + SPARE_BLOCKS
    session_bytes = blocks * BLOCK_TOKENS * shape.token_bytes
    pool_bytes = POOL_SESSIONS * session_bytes
    num_sessions = round(args.fill * pool_bytes / (args.session_tokens * shape.token_bytes))
    async with open_lab(models=f'["{model}"]', kv_bytes=str(pool_bytes)) as lab:
        await lab.start(
            "kvstore",
            arena_bytes=str(ARENA_FILL * pool_bytes),
            disk_bytes_max=str(DISK_FILL * pool_bytes),
            objects_url=server.url,
            objects_rest_s="0.5",
        )
        await lab.start("worker", module=EAGER_WORKER if args.fetch_all else "")
        await lab.wait_connected()
        bench = _Tiers(lab, args, shape.vocab_size)
        figures = await bench.measure(num_sessions)
    session_gb = num_sessions * args.session_tokens * shape.token_bytes / 1e9
    return {
        "sessions": num_sessions,
        **figures,
        "kv_gb": round(session_gb, 2),
        "pool_gb": round(pool_bytes / 1e9, 3),
        "fill": round(session_gb * 1e9 / pool_bytes, 1),
    }


class _Tiers:
    def __init__(self, lab: Lab, args: argparse.Namespace, vocab_size: int) -> None:
        self._lab = lab
        self._args = args
        self._vocab_size = vocab_size
        self._rng = random.Random(1)

    async def measure(self, num_sessions: int) -> dict[str, Any]:
        histories = [self._tokens(self._args.session_tokens) for _ in range(num_sessions)]
        first_ms = []
        for number, history in enumerate(histories):
            trace = await self._lab.turn(history, session_id=SessionId(f"s{number}"))
            first_ms.append(trace.ttft_ms)
            _say(f"filling: {number + 1} of {num_sessions} sessions")
        await self._wait_saved()
        order = list(range(num_sessions))
        self._rng.shuffle(order)
        ttft_ms: dict[str, list[float]] = defaultdict(list)
        num_recomputed = num_tokens = 0
        for at, number in enumerate(order):
            before = (await self._lab.kv_stats()).staged_pages
            trace = await self._come_back(number, histories[number])
            tier = _lowest(before, (await self._lab.kv_stats()).staged_pages)
            ttft_ms[tier].append(trace.ttft_ms)
            lost = len(histories[number]) - trace.cached_tokens
            num_recomputed += lost > 0
            num_tokens += max(lost, 0)
            _say(f"back: {at + 1} of {num_sessions}, from {tier}, {max(lost, 0)} tokens computed")
        stats = await self._lab.kv_stats()
        return {
            "recomputed_turns": num_recomputed,
            "recomputed_tokens": num_tokens,
            "hits_by_tier": {tier: len(values) for tier, values in ttft_ms.items()},
            "ttft_ms_by_tier": {
                tier: round(statistics.median(values), 1) for tier, values in ttft_ms.items()
            },
            "first_turn_ms": round(statistics.median(first_ms), 1),
            "tier_gb": {
                "arena": round(stats.arena_bytes / 1e9, 2),
                "disk": round(stats.disk_bytes / 1e9, 2),
                "objects": round(stats.objects_bytes / 1e9, 2),
            },
        }

    async def _come_back(self, number: int, history: list[int]) -> Trace:
        tokens = history + self._tokens(self._args.new_tokens)
        session_id = SessionId(f"s{number}")
        return await self._lab.turn(tokens, session_id=session_id, num_history=len(history))

    async def _wait_saved(self) -> None:
        """Until everything that rests on the disk is in the object store, too."""
        await self._lab.wait_written()
        deadline = time.monotonic() + SAVE_TIMEOUT_S
        num_settled, before = 0, -1
        while num_settled < 10:  # what is being written below is not known yet
            stats = await self._lab.kv_stats()
            is_settled = not stats.sessions_unsaved and stats.objects_bytes == before
            num_settled, before = num_settled + 1 if is_settled else 0, stats.objects_bytes
            if time.monotonic() > deadline:
                raise PeerUnavailable(
                    f"{stats.sessions_unsaved} sessions did not reach the object store"
                )
            await asyncio.sleep(POLL_S)

    def _tokens(self, num: int) -> list[int]:
        return [self._rng.randrange(self._vocab_size) for _ in range(num)]


def _lowest(before: dict[str, int], after: dict[str, int]) -> str:
    """The lowest tier that gave a page; without any it was the pool.

    >>> _lowest({"arena": 1, "disk": 0}, {"arena": 2, "disk": 0})
    'arena'
    """
    used = [tier for tier in TIERS if after.get(tier, 0) > before.get(tier, 0)]
    return used[-1] if used else "pool"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
