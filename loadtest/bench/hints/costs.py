"""What hints cost that are wrong or missing, and what keeping KV costs a turn that nobody foresaw.

A few users at once have turn after turn on the near host, each of a session whose history is on the
far one: more sessions than the near host has room for, on its disk, too, so that each comes back to
where nothing of it is. The hint of a user's next turn comes as the turn before it begins. Rounds
without a fault and rounds with one take turns:

- spurious: for every 100 turns there are 60 hints more, of sessions that do not come (as in the
  paper's Figure 20), each with a history to fetch. Throughput counts.
- missed: a tenth of the turns has no hint (Figure 19). The mean latency of a token counts, of the
  whole reply, from when its turn came.

Never seen: prompts that are nowhere, on a host that keeps KV, and on one that keeps none.
"""

import asyncio
import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Literal

from loadtest.bench.hints.house import (
    ARENA_SESSIONS,
    FAR,
    POOL_SESSIONS,
    House,
    Session,
    wait_settled,
)
from loadtest.bench.lab import Trace, open_labs
from shared.blocks import BLOCK_TOKENS
from shared.errors import PeerUnavailable
from shared.ids import HostId, SessionId, new_id

Fault = Literal["none", "spurious", "missed"]
FAULTS: tuple[Fault, ...] = ("none", "spurious", "missed")

SPURIOUS = 0.6  # hints a turn, besides its own
MISSED = 0.1  # of the turns
USERS = 2
NEW_TOKENS = 20
LEAD_TRANSFERS = 2.0  # before a round begins
REAL_SESSIONS = POOL_SESSIONS + ARENA_SESSIONS + 1
SPURIOUS_SESSIONS = POOL_SESSIONS + 1
SEED = 1
KEEPS, BARE = HostId("keeps"), HostId("bare")


@dataclass(frozen=True, slots=True)
class Round:
    """What was seen of some turns.

    Attributes:
        seconds: from the first one's begin to the last one's end.
        cached_share: of their histories, that was not computed.
    """

    seconds: float
    ttft_ms: list[float]
    token_ms: list[float]
    cached_share: float

    @property
    def turns_per_s(self) -> float:
        return len(self.ttft_ms) / self.seconds


class Costs:
    """Args:
    session_bytes: of one session's KV.
    num_turns: of a round.
    reply_tokens: of a turn.
    transfer_s: that a history takes.
    say: told what happens.
    """

    def __init__(
        self,
        house: House,
        session_bytes: int,
        num_turns: int,
        reply_tokens: int,
        transfer_s: float,
        say: Callable[[str], None],
    ) -> None:
        self._house = house
        self._session_bytes = session_bytes
        self._num_turns = num_turns
        self._reply_tokens = reply_tokens
        self._lead_s = LEAD_TRANSFERS * transfer_s
        self._say = say
        self._num_tokens = 0
        self._spurious_due = 0.0

    async def measure(self, history_tokens: int, num_rounds: int) -> dict[str, Any]:
        """``spurious_cost_percent``, ``missed_cost_percent``, and what they are made of."""
        self._num_tokens = history_tokens
        self._say("histories for turns with wrong and missing hints")
        await self._house.keep_little(self._session_bytes)
        self._real = cycle([await self._stored() for _ in range(REAL_SESSIONS)])
        self._others = cycle([await self._stored() for _ in range(SPURIOUS_SESSIONS)])
        rounds: dict[Fault, list[Round]] = {fault: [] for fault in FAULTS}
        await self._round("none")  # warms up
        for number in range(num_rounds):
            for fault in FAULTS if number % 2 == 0 else reversed(FAULTS):
                rounds[fault].append(await self._round(fault))
                last = rounds[fault][-1]
                self._say(
                    f"hints {fault}: {last.turns_per_s:.2f} turns/s,"
                    f" {statistics.mean(last.token_ms):.1f} ms a token"
                )
        return summary(rounds)

    async def _stored(self) -> Session:
        session = self._house.session(self._num_tokens)
        await self._house.store(self._house.far, session)
        return session

    async def _round(self, fault: Fault) -> Round:
        """Turns of all users, from when their first ones' hints have done what they were to do."""
        turns = [next(self._real) for _ in range(self._num_turns)]
        has_hint = [fault != "missed" or not is_missed(at) for at in range(len(turns))]
        waiting = list(zip(turns, has_hint, strict=True))[::-1]
        self._spurious_due = 0.0
        firsts = []
        for _ in range(min(USERS, len(waiting))):
            firsts.append(waiting.pop())
            await self._hint(*firsts[-1], fault)
        await asyncio.sleep(self._lead_s)
        began_s = asyncio.get_running_loop().time()

        async def use(session: Session) -> list[Trace]:
            traces = []
            while True:
                following = waiting.pop() if waiting else None
                if following is not None:
                    await self._hint(*following, fault)
                traces.append(await self._turn(session))
                if following is None:
                    return traces
                session = following[0]

        found = await asyncio.gather(*(use(session) for session, _ in firsts))
        seconds = asyncio.get_running_loop().time() - began_s
        await self._house.wait_settled()
        return _round_of([trace for each in found for trace in each], self._num_tokens, seconds)

    async def _hint(self, session: Session, has_hint: bool, fault: Fault) -> None:
        if has_hint:
            await self._house.hint(session, self._lead_s)
        if fault == "spurious":
            self._spurious_due += SPURIOUS
            while self._spurious_due >= 1.0:
                self._spurious_due -= 1.0
                await self._house.hint(next(self._others), self._lead_s)

    async def _turn(self, session: Session) -> Trace:
        kv_at = {FAR: session.num_blocks}
        trace, _ = await self._house.come(session, NEW_TOKENS, kv_at, self._reply_tokens)
        return trace


def is_missed(at: int) -> bool:
    """Whether a turn has no hint, in rounds where so many have none: the middle one of each ten.

    >>> [at for at in range(30) if is_missed(at)]
    [5, 15, 25]
    """
    every = round(1 / MISSED)
    return at % every == every // 2


def summary(rounds: dict[Fault, list[Round]]) -> dict[str, Any]:
    """What all rounds come to. Each fault is compared with the rounds without one: throughput by
    medians, latency by the mean over all turns, for those that miss their hint are few.
    """
    per_s = {name: statistics.median(r.turns_per_s for r in each) for name, each in rounds.items()}
    token_ms = {name: _mean(r.token_ms for r in each) for name, each in rounds.items()}
    ttft_ms = {name: _mean(r.ttft_ms for r in each) for name, each in rounds.items()}
    return {
        "spurious_cost_percent": round(100 * (1 - per_s["spurious"] / per_s["none"]), 1),
        "missed_cost_percent": round(100 * (token_ms["missed"] / token_ms["none"] - 1), 1),
        "missed_ttft_cost_percent": round(100 * (ttft_ms["missed"] / ttft_ms["none"] - 1), 1),
        "turns_per_s_by_fault": {name: round(value, 3) for name, value in per_s.items()},
        "token_ms_by_fault": {name: round(value, 2) for name, value in token_ms.items()},
        "ttft_ms_by_fault": {name: round(value, 1) for name, value in ttft_ms.items()},
        "cached_share_by_fault": {
            name: round(statistics.mean(r.cached_share for r in each), 2)
            for name, each in rounds.items()
        },
    }


async def never_seen(
    settings: dict[str, str],
    *,
    session_bytes: int,
    vocab_size: int,
    num_tokens: int,
    num_pairs: int,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """``never_seen_cost_percent``: what a prompt that nobody has seen takes on a host that looks
    for its history, and keeps it, over one that does neither; medians of pairs in turns.
    """
    say("prompts that were never seen")
    sizes = {
        "kv_bytes": str(POOL_SESSIONS * session_bytes),
        "arena_bytes": str(ARENA_SESSIONS * session_bytes),
    }
    async with open_labs(KEEPS, BARE, **sizes, **settings) as (keeps, bare):
        await keeps.start("kvstore")
        await keeps.start("worker")
        await keeps.wait_connected()
        await bare.start("worker", cooperative="false", write_behind="false")
        rng = random.Random(SEED)
        kept_ms: list[float] = []
        bare_ms: list[float] = []
        for number in range(1 + num_pairs):
            for lab in (keeps, bare) if number % 2 else (bare, keeps):
                tokens = [rng.randrange(vocab_size) for _ in range(num_tokens)]
                trace = await lab.turn(tokens, session_id=SessionId(new_id("s")))
                if trace.cached_tokens:
                    raise PeerUnavailable("some of a new prompt was cached")
                if number:  # the first pair warms up
                    (kept_ms if lab is keeps else bare_ms).append(trace.ttft_ms)
                await wait_settled(keeps)
            if number:
                say(f"never seen: {kept_ms[-1]:.1f} ms, without a cache {bare_ms[-1]:.1f}")
    return never_seen_summary(kept_ms, bare_ms)


def never_seen_summary(kept_ms: Sequence[float], bare_ms: Sequence[float]) -> dict[str, Any]:
    """Of pairs, in order: the median of their ratios, so that what slows both is in neither."""
    ratios = [kept / bare for kept, bare in zip(kept_ms, bare_ms, strict=True)]
    return {
        "never_seen_cost_percent": round(100 * (statistics.median(ratios) - 1), 1),
        "never_seen_ms": round(statistics.median(kept_ms), 1),
        "no_cache_ms": round(statistics.median(bare_ms), 1),
    }


def _round_of(traces: Sequence[Trace], num_tokens: int, seconds: float) -> Round:
    num_known = num_tokens // BLOCK_TOKENS * BLOCK_TOKENS
    return Round(
        seconds,
        [trace.ttft_ms for trace in traces],
        [(t.token_at[-1] - t.started_at) * 1e3 / len(t.token_at) for t in traces],
        statistics.mean(min(trace.cached_tokens / num_known, 1.0) for trace in traces),
    )


def _mean(of_rounds: Any) -> float:
    values = [value for each in of_rounds for value in each]
    return math.fsum(values) / len(values)
