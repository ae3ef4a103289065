"""Streams that run all the time while something goes on beside them, and what they notice of it.

Each asks for the same seeded reply again and again, which must be, token for token, the first one.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import orjson

from loadtest.raw_http import events, read_head, request_bytes, sent

SILENCE_MAX_S = 120.0
PING_EVERY_S = 0.05


@dataclass(slots=True)
class Seen:
    """What streams and pings showed in one phase.

    Attributes:
        gap_s: longest time between two pieces of a reply.
        gap_at_s: when that one ended, monotonic.
        first_piece_s: longest time from a request to its first piece.
        ping_s: longest time of a ``/ping``.
        lag_s: longest time that this process itself stood still: the others are no shorter for it.
        num_replies: that ended.
        failures: of replies that were not as they should be.
    """

    gap_s: float = 0.0
    gap_at_s: float = 0.0
    first_piece_s: float = 0.0
    ping_s: float = 0.0
    lag_s: float = 0.0
    num_replies: int = 0
    failures: list[str] = field(default_factory=list)


class Streams:
    """So many streams.

    Args:
        headers: more of each request.
        on_gap: called with the start and the end of every time between two pieces, s, monotonic.
    """

    def __init__(
        self,
        port: int,
        model: str,
        num: int,
        num_tokens: int,
        on_gap: Callable[[float, float], None] = lambda *_: None,
        headers: Sequence[bytes] = (),
    ) -> None:
        self._port = port
        self._requests = [
            request_bytes(
                "POST", "/v1/chat/completions", port, _body(model, index, num_tokens), *headers
            )
            for index in range(num)
        ]
        self._num_tokens = num_tokens
        self._expected: list[list[int] | None] = [None] * num
        self._on_gap = on_gap

    async def run(self, is_over: Callable[[], bool]) -> Seen:
        """Stream until it is over, to the end of each reply; the first ones are the reference."""
        seen = Seen()
        beside = [asyncio.create_task(self._ping(seen)), asyncio.create_task(_watch_lag(seen))]
        try:
            await asyncio.gather(
                *(self._stream(index, is_over, seen) for index in range(len(self._requests)))
            )
        finally:
            for task in beside:
                task.cancel()
        return seen

    async def _stream(self, index: int, is_over: Callable[[], bool], seen: Seen) -> None:
        is_first = True
        while is_first or not is_over():
            is_first = False
            tokens, trouble = await self._reply(index, seen)
            seen.num_replies += 1
            expected = self._expected[index]
            if not trouble and len(tokens) != self._num_tokens:
                trouble = f"{len(tokens)} tokens instead of {self._num_tokens}"
            if trouble:
                seen.failures.append(f"stream {index}: {trouble}")
                await asyncio.sleep(PING_EVERY_S)
            elif expected is None:
                self._expected[index] = tokens
            elif tokens != expected:
                at = next(at for at, pair in enumerate(zip(tokens, expected, strict=True))
                          if pair[0] != pair[1])  # fmt: skip
                seen.failures.append(f"stream {index}: another token at {at}")

    async def _reply(self, index: int, seen: Seen) -> tuple[list[int], str]:
        """Tokens of one reply, and what was wrong with it."""
        tokens: list[int] = []
        asked_at = last_at = time.monotonic()
        has_begun = False
        try:
            async with (
                asyncio.timeout(SILENCE_MAX_S) as patience,
                sent(self._port, self._requests[index]) as reader,
            ):
                _, headers = await read_head(reader)
                async for event in events(reader, headers):
                    if event == b"[DONE]":
                        return tokens, ""
                    chunk = orjson.loads(event)
                    if "choices" not in chunk:
                        return tokens, event.decode()[:200]
                    new = chunk["choices"][0].get("token_ids")
                    if not new:
                        continue
                    now = time.monotonic()
                    patience.reschedule(asyncio.get_running_loop().time() + SILENCE_MAX_S)
                    if has_begun:
                        self._note_gap(last_at, now, seen)
                    else:
                        seen.first_piece_s = max(seen.first_piece_s, now - asked_at)
                    has_begun, last_at = True, now
                    tokens += new
        except TimeoutError:
            return tokens, f"nothing for {SILENCE_MAX_S:.0f} s"
        except (OSError, EOFError) as error:
            return tokens, repr(error)
        return tokens, f"it broke off after {len(tokens)} tokens"

    def _note_gap(self, begun_at: float, ended_at: float, seen: Seen) -> None:
        self._on_gap(begun_at, ended_at)
        if ended_at - begun_at > seen.gap_s:
            seen.gap_s, seen.gap_at_s = ended_at - begun_at, ended_at

    async def _ping(self, seen: Seen) -> None:
        request = request_bytes("GET", "/ping", self._port, None, b"Connection: close")
        while True:
            asked_at = time.monotonic()
            try:
                async with sent(self._port, request) as reader:
                    await reader.read(-1)
            except OSError as error:
                seen.failures.append(f"/ping: {error!r}")
            seen.ping_s = max(seen.ping_s, time.monotonic() - asked_at)
            await asyncio.sleep(PING_EVERY_S)


async def _watch_lag(seen: Seen) -> None:
    while True:
        before = time.monotonic()
        await asyncio.sleep(PING_EVERY_S)
        seen.lag_s = max(seen.lag_s, time.monotonic() - before - PING_EVERY_S)


def _body(model: str, index: int, num_tokens: int) -> bytes:
    messages = [{"role": "user", "content": f"Tell me story number {index}, and all of it."}]
    return orjson.dumps(
        {
            "model": model, "messages": messages, "stream": True, "max_tokens": num_tokens,
            "ignore_eos": True, "return_token_ids": True, "seed": 1000 + index, "temperature": 1,
        }
    )  # fmt: skip
