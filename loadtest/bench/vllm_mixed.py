"""A mixed load for `symphony bench vllm`: sessions whose KV exceeds vLLM's cache twice come back,
and short prompts come between their turns.

Turns come when they are due, however long earlier ones take: a server that is slower has a queue,
and its first tokens are measured from when they were due. Every way has the same turns.
"""

import asyncio
import random
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from loadtest.bench.lab import Lab, Trace
from loadtest.users.measures import percentile
from shared.ids import SessionId

SHORT_SHARE = 0.25  # of the turns: prompts of no session
SHORT_TOKENS, USER_TOKENS, REPLY_TOKENS = 64, 20, 16
HINTED_S = 1.0  # so long before its turn

Hint = Callable[[SessionId, list[int]], Awaitable[None]]


@dataclass(frozen=True)
class DueTurn:
    """Attributes:
    at_s: when it is due, from the start.
    session: by number; None: a short prompt.
    """

    at_s: float
    session: int | None
    tokens: list[int]


@dataclass
class Load:
    """Attributes:
    histories: of the sessions, before the first turn that is measured.
    turns: in order.
    """

    histories: list[list[int]]
    turns: list[DueTurn]


def make_load(
    num_sessions: int, history_tokens: int, turns_per_s: float, seconds: float, vocab_size: int
) -> Load:
    """Turns come at random, at this rate; each session's are as probable as another's."""
    rng = random.Random(3)

    def tokens(number: int) -> list[int]:
        return [rng.randrange(3, vocab_size) for _ in range(number)]

    turns, at_s = [], rng.expovariate(turns_per_s)
    while at_s < seconds:
        if rng.random() < SHORT_SHARE:
            turns.append(DueTurn(at_s, None, tokens(SHORT_TOKENS)))
        else:
            turns.append(DueTurn(at_s, rng.randrange(num_sessions), tokens(USER_TOKENS)))
        at_s += rng.expovariate(turns_per_s)
    return Load([tokens(history_tokens) for _ in range(num_sessions)], turns)


@dataclass
class _Session:
    session_id: SessionId
    history: list[int]
    free: asyncio.Lock = field(default_factory=asyncio.Lock)  # has no turn


class MixedRun:
    """One way of serving a load.

    Args:
        hint: announces a session's turn, which has this history; None: none is.
    """

    def __init__(self, lab: Lab, load: Load, name: str, hint: Hint | None = None) -> None:
        self._lab = lab
        self._load = load
        self._hint = hint
        self._sessions = [
            _Session(SessionId(f"{name}{number}"), list(history))
            for number, history in enumerate(load.histories)
        ]
        self._ttft_ms: list[float] = []
        self._cached: list[int] = []

    async def run(self, target_ms: float) -> dict[str, Any]:
        """First tokens, ms; turns a second whose first token came within `target_ms`."""
        for session in self._sessions:
            await self._lab.turn(session.history, session_id=session.session_id)
        start = time.monotonic()
        await asyncio.gather(*(self._turn(start, due) for due in self._load.turns))
        seconds = time.monotonic() - start
        num_good = sum(ms <= target_ms for ms in self._ttft_ms)
        return {
            "ttft_p50_ms": round(percentile(self._ttft_ms, 50), 1),
            "ttft_p99_ms": round(percentile(self._ttft_ms, 99), 1),
            "good_turns_per_s": round(num_good / seconds, 3),
            "cached_tokens_mean": round(statistics.mean(self._cached)),
        }

    async def _turn(self, start: float, due: DueTurn) -> None:
        if due.session is None:
            await _sleep_until(start + due.at_s)
            self._note(await self._lab.turn(due.tokens, REPLY_TOKENS), start + due.at_s)
            return
        session = self._sessions[due.session]
        if self._hint is not None:
            await _sleep_until(start + due.at_s - HINTED_S)
            await self._hint(session.session_id, session.history)
        await _sleep_until(start + due.at_s)
        async with session.free:  # a user has its reply before the next turn
            prompt = session.history + due.tokens
            trace = await self._lab.turn(prompt, REPLY_TOKENS, session_id=session.session_id)
            session.history = prompt + trace.generated
        self._note(trace, start + due.at_s)
        self._cached.append(trace.cached_tokens)

    def _note(self, trace: Trace, due_at: float) -> None:
        self._ttft_ms.append((trace.token_at[0] - due_at) * 1e3)


async def _sleep_until(at: float) -> None:
    await asyncio.sleep(max(at - time.monotonic(), 0.0))
