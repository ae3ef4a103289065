"""Turns of sessions at Poisson arrivals that do not wait for answers, and how many keep a target.

People at their screens ask less of a slow server, so with them a server that is overloaded looks
merely slow. Here turns come at a rate, whatever becomes of those before: a turn is due when it is
due. It goes on a session that has its answer, if there is one, and else begins another. Goodput is
the rate of turns whose first token and whose tokens' pace were in time; it is always reported with
the share of those that were not.
"""

import asyncio
import ssl
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

import httpx
import orjson

from loadtest.users.life import Said
from loadtest.users.measures import Turn, places_of
from loadtest.users.stream import Reply, message_of

PATH = "/v1/chat/completions"
SILENCE_MAX_S = 120.0
CONNECT_S = 10.0
OK, ACCEPTED = 200, 202
BAD_SHARE_MAX = 0.01
LEAD_S = (3.0, 0.8)  # median and spread of how long before its turn a hint goes out
NUM_RATES_MAX = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a turn has to keep, ms."""

    ttft_ms: float
    tpot_ms: float

    def is_met(self, turn: Turn) -> bool:
        """By this turn; a failed one met nothing."""
        if turn.trouble or turn.ttft_ms > self.ttft_ms:
            return False
        return turn.tpot_ms is None or turn.tpot_ms <= self.tpot_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What is asked of the deployment.

    Attributes:
        rate: turns a second.
        seconds: in which they come.
        hints: share of turns that are announced.
        faster: divides how long before that is.
        turns_max: of a session.
    """

    rate: float
    seconds: float
    hints: float
    faster: float = 1.0
    turns_max: int = 8
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Arrival:
    """Attributes:
    lead_s: so long before it is announced; None: it is not.
    """

    due_s: float
    lead_s: float | None


def arrivals(offer: Offer) -> list[Arrival]:
    """The same for the same seed, in the order of their announcements and arrivals."""
    rng = Random(f"{offer.seed}/open")
    found: list[Arrival] = []
    due_s = rng.expovariate(offer.rate)
    while due_s < offer.seconds:
        lead_s = LEAD_S[0] * rng.lognormvariate(0.0, LEAD_S[1]) / offer.faster
        is_hinted = rng.random() < offer.hints
        found.append(Arrival(due_s, min(lead_s, due_s) if is_hinted else None))
        due_s += rng.expovariate(offer.rate)
    return sorted(found, key=lambda each: each.due_s - (each.lead_s or 0.0))


def verdict(turns: Sequence[Turn], offer: Offer, target: Target) -> dict[str, Any]:
    """Goodput and bad share of a run."""
    num_good = sum(target.is_met(turn) for turn in turns)
    num = len(turns)
    return {
        "rate": round(offer.rate, 3),
        "turns": num,
        "goodput_turns_per_s": round(num_good / offer.seconds, 3),
        "bad_share": round(1 - num_good / num, 4) if num else 0.0,
        "failures": sum(bool(turn.trouble) for turn in turns),
        "slo_ttft_ms": target.ttft_ms,
        "slo_tpot_ms": target.tpot_ms,
    }


class Search:
    """The highest rate with at most 1 % of bad turns: doubled until it is too much, then halved.

    >>> search = Search(1.0)
    >>> while (rate := search.rate) is not None:
    ...     search.on_result(is_good=rate <= 5.0)
    >>> search.best
    5.0
    """

    def __init__(self, first: float, tolerance: float = 0.05) -> None:
        self._low, self._high = 0.0, float("inf")
        self._tolerance = tolerance
        self._least = first / 64
        self._next = first
        self._num = 0

    @property
    def best(self) -> float:
        """The highest that was good; 0: none was."""
        return self._low

    @property
    def rate(self) -> float | None:
        """The next one to try; None: it is known well enough."""
        is_known = (
            self._high < float("inf") and self._high - self._low <= self._tolerance * self._high
        )
        if is_known or self._num >= NUM_RATES_MAX or self._high <= self._least:
            return None
        return self._next

    def on_result(self, *, is_good: bool) -> None:
        """What came of `rate`."""
        self._num += 1
        if is_good:
            self._low = self._next
        else:
            self._high = self._next
        is_bounded = self._high < float("inf")
        self._next = (self._low + self._high) / 2 if is_bounded else 2 * self._low


@dataclass(slots=True)
class _Session:
    name: str
    messages: list[dict[str, str]] = field(default_factory=list)
    num_turns: int = 0


class OpenLoop:
    """One run.

    Args:
        url: of the frontend.
        said: the next message whenever it is called.
        name: begins the names of sessions; no other sessions' do so.
    """

    def __init__(
        self,
        url: str,
        model: str,
        offer: Offer,
        said: Callable[[], Said],
        name: str,
        *,
        api_key: str = "",
        cert: str = "",
    ) -> None:
        self._http = _Http(url, api_key, cert)
        self._model = model
        self._offer = offer
        self._said = said
        self._name = name
        self._idle: deque[_Session] = deque()
        self._numbers = count()
        self._turns: list[Turn] = []
        self._began_at = 0.0

    async def run(self) -> list[Turn]:
        """Until every turn has its answer."""
        self._began_at = time.monotonic()
        try:
            async with asyncio.TaskGroup() as tasks:
                for arrival in arrivals(self._offer):
                    await self._sleep_until(arrival.due_s - (arrival.lead_s or 0.0))
                    tasks.create_task(self._turn(arrival))
        finally:
            await self._http.close()
        return self._turns

    async def _sleep_until(self, at_s: float) -> None:
        await asyncio.sleep(max(self._began_at + at_s - time.monotonic(), 0.0))

    async def _turn(self, arrival: Arrival) -> None:
        session = self._idle.popleft() if self._idle else None
        if session is None:
            session = _Session(f"{self._name}/{next(self._numbers)}")
        kind = "first" if not session.messages else "unhinted"
        if arrival.lead_s is not None:
            kind = kind if kind == "first" else "hinted"
            await self._hint(session, arrival.lead_s)
            await self._sleep_until(arrival.due_s)
        said = self._said()
        text = said.text if session.messages else f"({session.name}) {said.text}"
        messages = [*session.messages, {"role": "user", "content": text}]
        body = {
            "model": self._model,
            "session_id": session.name,
            "messages": messages,
            "max_tokens": said.num_answer,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_cached_tokens_details": True,
        }
        due_at = self._began_at + arrival.due_s
        reply, trouble = await self._http.stream(PATH, body)
        self._turns.append(_seen(kind, arrival, due_at, reply, trouble))
        session.num_turns += 1
        if not trouble and session.num_turns < self._offer.turns_max:
            session.messages = [*messages, {"role": "assistant", "content": reply.text}]
            self._idle.append(session)

    async def _hint(self, session: _Session, lead_s: float) -> None:
        body = {
            "session_id": session.name, "model_id": self._model, "expected_arrival": lead_s,
        }  # fmt: skip
        # A hint is never needed: what is answered is not looked at.
        await self._http.stream("/v1/advisories", body)


def _seen(kind: str, arrival: Arrival, due_at: float, reply: Reply, trouble: str) -> Turn:
    """Times count from when the turn was due, so that lateness counts."""
    if trouble:
        return Turn(at_s=arrival.due_s, kind=kind, trouble=trouble[:300])
    first_at = due_at if reply.first_at is None else reply.first_at
    last_at = first_at if reply.last_at is None else reply.last_at
    return Turn(
        at_s=arrival.due_s,
        kind=kind,
        ttft_ms=round((first_at - due_at) * 1e3, 3),
        tpot_ms=None if reply.tpot_s is None else round(reply.tpot_s * 1e3, 3),
        total_ms=round((last_at - due_at) * 1e3, 3),
        num_prompt=int(reply.usage.get("prompt_tokens") or 0),
        num_output=int(reply.usage.get("completion_tokens") or 0),
        cached=places_of(reply.usage),
        lead_ms=round((arrival.lead_s or 0.0) * 1e3, 3),
    )


class _Http:
    """POSTs whose answers are streamed."""

    def __init__(self, url: str, api_key: str, cert: str) -> None:
        self._client = httpx.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            verify=ssl.create_default_context(cafile=cert) if cert else True,
            trust_env=False,
            timeout=httpx.Timeout(SILENCE_MAX_S, connect=CONNECT_S),
            limits=httpx.Limits(max_connections=None),  # no turn waits for another's connection
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def stream(self, path: str, body: dict[str, Any]) -> tuple[Reply, str]:
        """The reply, and what went wrong, if anything did."""
        reply = Reply()
        try:
            async with self._client.stream("POST", path, json=body) as answer:
                if answer.status_code not in (OK, ACCEPTED):
                    return reply, f"{answer.status_code} {_refusal(await answer.aread())}".rstrip()
                async for data in answer.aiter_raw():
                    reply.feed(data, time.monotonic())
        except httpx.HTTPError as error:
            return reply, f"the connection failed: {type(error).__name__}"
        if answer.status_code == ACCEPTED or reply.trouble or reply.is_done:
            return reply, reply.trouble
        return reply, "the stream ended early"


def _refusal(content: bytes) -> str:
    try:
        return message_of(orjson.loads(content)["error"])
    except (ValueError, KeyError, TypeError):
        return ""
