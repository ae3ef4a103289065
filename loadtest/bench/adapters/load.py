"""Streamed completions on adapters and their base: at Poisson arrivals, or as fast as it goes."""

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import orjson

from loadtest.chaos.sse import Stream, stream_chat
from loadtest.popularity import Shares
from loadtest.simulator.arrivals import renewal

PATH = "/v1/completions"
BASE = -1  # in place of an adapter's number


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Tokens of every request."""

    prompt: int
    max_tokens: int


@dataclass(slots=True)
class Clients:
    """Attributes:
    base: the model's name.
    names: of adapters by number.
    base_share: of requests that go to the base.
    """

    port: int
    base: str
    names: Sequence[str]
    lengths: Lengths
    vocab_size: int
    base_share: float
    seed: int
    _rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)

    async def ask(self, name: str, number: int = BASE, due_at: float | None = None) -> Stream:
        """One request with a prompt of its own, until it ends somehow.

        Args:
            due_at: monotonic seconds; None: now. Times count from then.
        """
        at = time.monotonic() if due_at is None else due_at
        stream = Stream(client=number, body=0, sent_at=at)
        await stream_chat(self.port, self.body(name), stream, PATH)
        return stream

    async def open_loop(self, shares: Shares, rate: float, seconds: float) -> list[Stream]:
        """Requests at `rate` a second, whatever becomes of earlier ones; returns when all ended."""
        rates = [*(shares * (1 - self.base_share) * rate), self.base_share * rate]
        arrivals = renewal(rates, seconds, self.seed)
        begun_at = time.monotonic()
        tasks = []
        async with asyncio.TaskGroup() as group:
            for at_ns, number in zip(arrivals.at_ns.tolist(), arrivals.model.tolist(), strict=True):
                due_at = begun_at + at_ns / 1e9
                if (left_s := due_at - time.monotonic()) > 0:
                    await asyncio.sleep(left_s)
                tasks.append(group.create_task(self._ask_number(number, due_at)))
        return [task.result() for task in tasks]

    async def closed_loop(
        self, shares: Shares, concurrency: int, seconds: float
    ) -> tuple[list[Stream], float]:
        """Keep so many requests in flight, and let the last ones end.

        Returns:
            all of them, and how many a second ended well.
        """
        begun_at = time.monotonic()
        of_all = np.append(shares * (1 - self.base_share), self.base_share)
        draw = np.random.default_rng(self.seed)
        found: list[Stream] = []

        async def go_on() -> None:
            while time.monotonic() < begun_at + seconds:
                number = int(draw.choice(len(of_all), p=of_all))
                found.append(await self._ask_number(number))

        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(go_on())
        num_well = sum(not stream.trouble for stream in found)
        return found, num_well / (time.monotonic() - begun_at)

    def body(self, name: str) -> bytes:
        """A request with a new prompt."""
        lengths, rng = self.lengths, self._rng
        return orjson.dumps(
            {
                "model": name,
                "prompt": [rng.randrange(self.vocab_size) for _ in range(lengths.prompt)],
                "max_tokens": lengths.max_tokens,
                "temperature": 0,
                "ignore_eos": True,
                "return_token_ids": True,
                "stream": True,
            }
        )

    async def _ask_number(self, number: int, due_at: float | None = None) -> Stream:
        if number == len(self.names):  # behind all adapters
            return await self.ask(self.base, due_at=due_at)
        return await self.ask(self.names[number], number, due_at)
