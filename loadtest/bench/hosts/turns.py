"""Turns whose history another host has: fetched or computed, and what becomes of one whose link is
cut while its history comes.

Three hosts on one machine, each with a kvstore and a worker: the far one has the histories; the
near one decides as workers do; the eager one always fetches. For a cut, the far kvstore is reached
through a relay that stops in the middle of a history.
"""

import argparse
import asyncio
import statistics
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from cli.supervisor.children import free_port
from loadtest.bench.hints.house import (
    ARENA_SESSIONS,
    FAR,
    NEAR,
    POOL_SESSIONS,
    SPARE_BLOCKS,
    House,
    NotAsked,
    Session,
    make_secret,
    restart_kvstore,
)
from loadtest.bench.hosts.crossover import Length, crossover_tokens, decided_tokens
from loadtest.bench.hosts.relay import Relay
from loadtest.bench.lab import EAGER_WORKER, Trace, open_labs
from loadtest.models import model_source, shape_of
from shared.blocks import BLOCK_TOKENS
from shared.errors import PeerUnavailable
from shared.ids import HostId
from shared.profiles import load_profile
from shared.redis_client import RedisClient

EAGER = HostId("eager")
NEW_TOKENS = 20
CUT_TOKENS = 16  # of the reply of a turn whose link is cut
CUT_SHARE = 0.5  # of the history that has come by then
EMULATED_VOCAB = 256
RELEARNED = 2  # turns before each cut
TRIES_MAX = 4
AVOIDED_S = 1.5  # a host that did not answer is left alone for a second, then for two, ...
REDIS_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Cut:
    """What was seen of a turn whose link was cut.

    Attributes:
        after_ms: from the cut to its first token.
        num_tokens: that it made.
    """

    after_ms: float
    num_tokens: int


async def measure_turns(args: argparse.Namespace, lengths: list[int]) -> dict[str, Any]:
    """``crossover_tokens``, ``cut_over_ms``, and what they are made of."""
    settings, token_bytes, vocab_size = _model(args)
    num_blocks = (max(lengths) + NEW_TOKENS + CUT_TOKENS) // BLOCK_TOKENS + SPARE_BLOCKS
    session_bytes = num_blocks * BLOCK_TOKENS * token_bytes
    async with _open(settings, session_bytes, vocab_size, args.link_gbit) as turns:
        await turns.warm_up(max(lengths))
        measured = [await turns.of_length(each, args.turn_rounds) for each in sorted(lengths)]
        kv_bytes = max(lengths) // BLOCK_TOKENS * BLOCK_TOKENS * token_bytes
        cuts = await turns.cut(max(lengths), kv_bytes, args.cuts)
    return summary(measured, cuts)


def summary(measured: list[Length], cuts: list[Cut]) -> dict[str, Any]:
    """What all turns come to.

    Args:
        cuts: of turns of the longest history.
    """
    found = crossover_tokens(measured)
    after_ms = statistics.median(each.after_ms for each in cuts)
    return {
        "crossover_tokens": None if found is None else round(found),
        "decided_tokens": decided_tokens(measured),
        "is_crossover_used": all(each.is_right for each in measured),
        "decided_over_best": round(max(each.over_best for each in measured), 2),
        "by_tokens": {
            str(each.num_tokens): {
                "fetch_ms": round(each.fetch_ms, 1),
                "compute_ms": round(each.compute_ms, 1),
                "decided_ms": round(each.decided_ms, 1),
                "share_fetched": round(each.share_fetched, 2),
            }
            for each in measured
        },
        "cut_over_ms": round(max(after_ms - measured[-1].compute_ms, 0.0), 1),
        "cut_to_token_ms": round(after_ms, 1),
        "cut_tokens": min(each.num_tokens for each in cuts),
    }


class _Turns:
    """Args:
    near, eager: each with the far host.
    """

    def __init__(self, near: House, eager: House, far_settings: dict[str, str]) -> None:
        self._near = near
        self._eager = eager
        self._far_settings = far_settings

    async def warm_up(self, num_tokens: int) -> None:
        """So that everybody knows what things cost."""
        _say("warming up")
        for house in (self._near, self._eager):
            for _ in range(2):
                await self._computed(house, num_tokens)
                await self._fetched(house, num_tokens)

    async def of_length(self, num_tokens: int, num_rounds: int) -> Length:
        """The three ways, in turns."""
        fetch_ms, compute_ms, decided_ms, shares = [], [], [], []
        num_known = num_tokens // BLOCK_TOKENS * BLOCK_TOKENS
        for _ in range(num_rounds):
            fetched = await self._fetched(self._eager, num_tokens)
            decided = await self._fetched(self._near, num_tokens)
            fetch_ms.append(fetched.ttft_ms)
            decided_ms.append(decided.ttft_ms)
            shares.append(min(decided.cached_tokens / num_known, 1.0))
            compute_ms.append((await self._computed(self._near, num_tokens)).ttft_ms)
        length = Length(
            num_tokens, statistics.median(fetch_ms), statistics.median(compute_ms),
            statistics.median(decided_ms), statistics.median(shares),
        )  # fmt: skip
        _say(
            f"{num_tokens} tokens: fetched {length.fetch_ms:.1f} ms, computed"
            f" {length.compute_ms:.1f}, decided {length.decided_ms:.1f}"
            f" ({length.share_fetched:.0%} fetched)"
        )
        return length

    async def cut(self, num_tokens: int, kv_bytes: int, num_cuts: int) -> list[Cut]:
        """Turns of the eager host whose link is cut in the middle of what they fetch: such a worker
        surely fetches, and gives up as every worker does."""
        port, far = free_port(), self._eager.far
        cuts = []
        with Relay(port) as relay:
            settings = {"peer_listen": f"127.0.0.1:{port}", "peer_address": relay.address}
            tokens = self._eager.tokens(BLOCK_TOKENS)
            await restart_kvstore(far, tokens, **self._far_settings, **settings)
            for _ in range(num_cuts):
                for _ in range(RELEARNED):  # a link that was cut is taken for a slow one at first
                    await self._fetched(self._eager, num_tokens)
                session = await self._far_session(self._eager, num_tokens)
                relay.cut_after(int(CUT_SHARE * kv_bytes))
                trace = await self._come(self._eager, session, CUT_TOKENS)
                if relay.cut_at_s is None:
                    raise PeerUnavailable("the link was not cut: the turn did not fetch so much")
                after_ms = (trace.token_at[0] - relay.cut_at_s) * 1e3
                cuts.append(Cut(after_ms, len(trace.generated)))
                _say(f"cut: {len(trace.generated)} tokens, the first {after_ms:.0f} ms after it")
                relay.mend()
                await asyncio.sleep(AVOIDED_S)  # the near host tries the far one again by then
        return cuts

    async def _computed(self, house: House, num_tokens: int) -> Trace:
        session = house.session(num_tokens)
        trace, _ = await house.come(session, NEW_TOKENS, {})
        await house.wait_settled()
        return trace

    async def _fetched(self, house: House, num_tokens: int) -> Trace:
        for number in range(TRIES_MAX):
            session = await self._far_session(house, num_tokens)
            trace = await self._come(house, session, 1)
            try:
                house.check_answered()
            except NotAsked:
                await asyncio.sleep(AVOIDED_S * 2**number)
                continue
            return trace
        raise PeerUnavailable(f"the far host's kvstore did not answer {TRIES_MAX} turns in time")

    async def _far_session(self, house: House, num_tokens: int) -> Session:
        session = house.session(num_tokens)
        await house.store(house.far, session)
        return session

    async def _come(self, house: House, session: Session, num_reply: int) -> Trace:
        kv_at = {FAR: session.num_blocks}
        trace, _ = await house.come(session, NEW_TOKENS, kv_at, num_reply)
        await house.wait_settled()
        return trace


@asynccontextmanager
async def _open(
    settings: dict[str, str], session_bytes: int, vocab_size: int, link_gbit: float | None
) -> AsyncIterator[_Turns]:
    sizes = {
        "kv_bytes": str(POOL_SESSIONS * session_bytes),
        "arena_bytes": str(ARENA_SESSIONS * session_bytes),
    }
    async with open_labs(FAR, NEAR, EAGER, **sizes, **settings) as (far, near, eager):
        peers = {"peer_secret_file": make_secret(far)}
        far_settings = peers | {"peer_bytes_per_s": str((link_gbit or 0.0) * 1e9 / 8)}
        for lab in (far, near, eager):
            await lab.start("kvstore", **(far_settings if lab is far else peers))
            module = EAGER_WORKER if lab is eager else ""
            await lab.start("worker", module=module)
            await lab.wait_connected()
        redis = RedisClient(near.redis_url, None, timeout_s=REDIS_TIMEOUT_S)
        try:
            deciding = House(far, near, redis, vocab_size, seed=1)
            fetching = House(far, eager, redis, vocab_size, seed=2)
            for house in (deciding, fetching):
                await house.listen()
            yield _Turns(deciding, fetching, far_settings)
        finally:
            await redis.aclose()


def _model(args: argparse.Namespace) -> tuple[dict[str, str], int, int]:
    """Settings of workers, bytes of a token's KV, and how many tokens there are."""
    if args.emulate:
        profile = load_profile(args.emulate)
        token_bytes = profile.num_layers * profile.page_bytes(BLOCK_TOKENS) // BLOCK_TOKENS
        return {"emulate": args.emulate, "true_pages": "true"}, token_bytes, EMULATED_VOCAB
    model = model_source(args, args.dtype)
    shape = shape_of(model)
    return {"models": f'["{model}"]'}, shape.token_bytes, shape.vocab_size


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
