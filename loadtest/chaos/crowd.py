"""People who stream all the time: each asks again when an answer has ended, in a session of their
own, and knows what the answer must be.
"""

import asyncio
import itertools
import random
import string
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
import orjson

from loadtest.chaos.judge import Toll, has_strayed, met_by, take_toll
from loadtest.chaos.sse import Stream, stream_chat
from loadtest.chaos.ties import TEMPERATURE, TOP_K, may_choose
from shared.errors import PeerUnavailable

REPLY_TOKENS = (100, 400)
TEMPLATE_TOKENS = 40  # of a chat's prompt, beside its texts
PROBE_TOKENS = 32
RETRY_S = 0.1
CANDIDATES = 20  # whose log-probabilities are asked for
CHECK_WITHIN_S = 60.0
LETTERS = string.ascii_lowercase + "     "


@dataclass(frozen=True, slots=True)
class Lengths:
    """Characters of prompts; of the demo model as many tokens.

    Attributes:
        opening: in common to a client's prompts.
        question: at least, and at most.
        bodies: of a client, in turn.
    """

    opening: int
    question: tuple[int, int]
    bodies: int = 2

    @property
    def turn_tokens(self) -> int:
        """Of the longest turn."""
        return self.opening + self.question[1] + TEMPLATE_TOKENS + REPLY_TOKENS[1]


USUAL = Lengths(200, (20, 150))  # three blocks of KV that a client comes back to
MIXED = Lengths(200, (20, 150), bodies=4)  # more KV and adapters than a pool keeps
SHORT = Lengths(70, (5, 15), bodies=4)  # one block, and no more new tokens than helpers take


def make_bodies(
    models: Sequence[str], num_clients: int, seed: int, lengths: Lengths = USUAL
) -> list[list[bytes]]:
    """Requests of each client, on these models in turn; the same for the same seed. Replies are
    drawn, each with a seed.
    """
    rng = random.Random(seed)
    bodies, in_turn = [], itertools.cycle(models)
    for client in range(num_clients):
        opening, session_id = _words(rng, lengths.opening), session_of(client)
        bodies.append(
            [
                _body(next(in_turn), session_id, opening, lengths.question, rng)
                for _ in range(lengths.bodies)
            ]
        )
    return bodies


def _body(
    model: str, session_id: str, opening: str, lengths: tuple[int, int], rng: random.Random
) -> bytes:
    question = _words(rng, rng.randint(*lengths))
    body = {
        "model": model,
        "session_id": session_id,
        "messages": [
            {"role": "system", "content": opening},
            {"role": "user", "content": question},
        ],
        "max_tokens": rng.randint(*REPLY_TOKENS),
        "seed": rng.randrange(2**31),
        "temperature": TEMPERATURE,
        "top_k": TOP_K,
        "ignore_eos": True,
        "return_token_ids": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return orjson.dumps(body)


def _words(rng: random.Random, num_chars: int) -> str:
    return "".join(rng.choices(LETTERS, k=num_chars))


def session_of(client: int) -> str:
    """The session of a client."""
    return f"chaos-{client}"


class Crowd:
    """The clients of one deployment.

    Attributes:
        expected: tokens of each client's bodies, on a good day.
        ended: streams that are over, in the order in which they ended.
    """

    def __init__(self, port: int, bodies: Sequence[Sequence[bytes]]) -> None:
        self._port = port
        self._url = f"http://127.0.0.1:{port}"
        self._bodies = bodies
        self._open: set[int] = set()  # clients whose stream runs
        self._sent_at = [0.0] * len(bodies)
        self._one_ended = asyncio.Event()
        self.expected: list[list[list[int]]] = []
        self.ended: list[Stream] = []

    async def learn(self) -> None:
        """Ask for everything once, undisturbed.

        Raises:
            PeerUnavailable: an answer did not come to its end.
        """

        async def ask_all(client: int) -> list[Stream]:
            return [await self._ask(client, body) for body in range(len(self._bodies[client]))]

        found = await asyncio.gather(*(ask_all(client) for client in range(len(self._bodies))))
        for stream in (one for streams in found for one in streams):
            if stream.trouble:
                raise PeerUnavailable(f"nothing is disturbed yet: {stream.trouble}")
        self.expected = [[stream.tokens for stream in streams] for streams in found]

    async def tell_apart(self, models: Sequence[str]) -> None:
        """See that no two of these models answer the same.

        Raises:
            PeerUnavailable: two do, or one does not answer.
        """
        body = orjson.loads(self._bodies[0][0]) | {"max_tokens": PROBE_TOKENS}
        del body["session_id"]
        streams = [Stream(0, 0, time.monotonic()) for _ in models]
        await asyncio.gather(
            *(
                stream_chat(self._port, orjson.dumps(body | {"model": model}), stream)
                for model, stream in zip(models, streams, strict=True)
            )
        )
        by_answer: dict[tuple[int, ...], str] = {}
        for model, stream in zip(models, streams, strict=True):
            if stream.trouble:
                raise PeerUnavailable(f"{model}: {stream.trouble}")
            other = by_answer.setdefault(tuple(stream.tokens), model)
            if other != model:
                raise PeerUnavailable(f"{other} and {model} answer the same: nothing can be shown")

    @asynccontextmanager
    async def streaming(self) -> AsyncIterator[None]:
        """Everybody streams all the time; in the end they hang up."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._go_on(client)) for client in range(len(self._bodies))]
            yield
            for task in tasks:
                task.cancel()

    async def toll_since(self, begun_at: float) -> Toll:
        """What streams met that were open at some time from then until now. Returns at their end.

        Args:
            begun_at: monotonic seconds.
        """
        over_at = time.monotonic()
        while any(self._sent_at[client] < over_at for client in self._open):
            self._one_ended.clear()
            await self._one_ended.wait()
        met = met_by(self.ended, begun_at, over_at)
        async with httpx.AsyncClient(base_url=self._url, timeout=CHECK_WITHIN_S) as http:
            for stream in met:
                if not stream.is_tie and has_strayed(stream, self._expected_of(stream)):
                    stream.is_tie = await self._is_tie(http, stream)
        return take_toll(met, self._expected_of, begun_at, over_at)

    def broken_since(self, begun_at: float) -> set[int]:
        """Clients whose streams have broken since then."""
        return {
            stream.client
            for stream in self.ended
            if stream.trouble and not stream.was_refused and stream.ended_at > begun_at
        }

    def back_since(self, begun_at: float) -> list[Stream]:
        """Whole streams, sent since then, of clients whose stream before had broken."""
        return [s for s in self.ended if s.comes_back and s.sent_at >= begun_at and not s.trouble]

    async def _is_tie(self, http: httpx.AsyncClient, stream: Stream) -> bool:
        """Whether the first token that is another than expected may be, by rounding: asks the
        deployment how likely the tokens were there.
        """
        expected = self._expected_of(stream)
        num_pairs = min(len(stream.tokens), len(expected))
        pairs = zip(stream.tokens[:num_pairs], expected[:num_pairs], strict=True)
        at = next((index for index, (one, other) in enumerate(pairs) if one != other), num_pairs)
        is_cut = bool(stream.trouble) and len(stream.tokens) < len(expected)
        if at == num_pairs or not (is_cut or len(stream.tokens) == len(expected)):
            return False  # tokens are missing, or too many
        body = orjson.loads(self._bodies[stream.client][stream.body])
        question = {
            "model": body["model"],
            "prompt": [*stream.prompt, *stream.tokens[:at]],
            "max_tokens": 1,
            "temperature": 0,
            "logprobs": CANDIDATES,
            "return_tokens_as_token_ids": True,
        }
        try:
            answer = (await http.post("/v1/completions", json=question)).raise_for_status()
        except httpx.HTTPError as error:
            print(f"unknown whether a stream was wrong: {error!r}", file=sys.stderr)
            return False
        (scores,) = answer.json()["choices"][0]["logprobs"]["top_logprobs"]
        likely = {int(name.partition(":")[2]): score for name, score in scores.items()}
        may = may_choose(likely, body["seed"], at)
        return {stream.tokens[at], expected[at]} <= may

    def _expected_of(self, stream: Stream) -> list[int]:
        return self.expected[stream.client][stream.body]

    async def _go_on(self, client: int) -> None:
        broke, body = False, 0
        while True:
            stream = await self._ask(client, body, comes_back=broke)
            self.ended.append(stream)
            if stream.was_refused:
                await asyncio.sleep(RETRY_S)
                continue  # it still comes back
            broke = bool(stream.trouble)
            body = body if broke else (body + 1) % len(self._bodies[client])

    async def _ask(self, client: int, body: int, *, comes_back: bool = False) -> Stream:
        stream = Stream(client, body, time.monotonic(), comes_back=comes_back)
        self._open.add(client)
        self._sent_at[client] = stream.sent_at
        try:
            await stream_chat(self._port, self._bodies[client][body], stream)
        finally:
            self._open.discard(client)
            self._one_ended.set()
        return stream
