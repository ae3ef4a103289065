"""The chat: everybody asks about a document of their own, again and again, on both sides."""

import asyncio
import time
from collections.abc import Callable
from random import Random

from loadtest.demo.script import PEOPLE, Message, Side, Sizes, questions, sides_in_turns
from loadtest.demo.seen import Seen, Which, seen_of
from loadtest.users.client import ApiError, Client
from loadtest.users.texts import Texts
from shared.errors import PeerUnavailable

TEXTS = Texts(1.0)  # an emulated model counts characters


class Person:
    """One person's conversation, on one side.

    Args:
        on_seen: called with each turn.
    """

    def __init__(
        self, url: str, model: str, who: str, side: Side, on_seen: Callable[[Seen], None]
    ) -> None:
        self._api = Client(url)
        self._model = model
        self._who = who
        self._side: Side = side
        self._on_seen = on_seen
        self._session = f"chat/{side}/{who}"
        self._messages: list[dict[str, str]] = []
        self._num_context = 0

    async def say(self, message: Message, reply_tokens: int) -> None:
        """Begin to type when it is time, and send it when it is typed. A page that hints does so
        with the first letter.

        Raises:
            PeerUnavailable: the deployment did not answer as it should.
        """
        await asyncio.sleep(message.comes_s)
        began_at = time.monotonic()
        is_hinted = self._side == "with" and message.number > 0
        try:
            if is_hinted:
                hint = {"session_id": self._session, "model_id": self._model}
                await asyncio.to_thread(self._api.hint, hint)
            await asyncio.sleep(max(began_at + message.typing_s - time.monotonic(), 0.0))
            lead_s = time.monotonic() - began_at if is_hinted else None
            seen = await asyncio.to_thread(self._turn, message, reply_tokens, lead_s)
        except ApiError as error:
            raise PeerUnavailable(f"{self._who}, {self._side} hints: {error}") from None
        self._on_seen(seen)

    async def leave(self) -> None:
        """The conversation is over, and takes no room any more.

        Raises:
            PeerUnavailable: the deployment did not answer as it should.
        """
        try:
            await asyncio.to_thread(self._api.forget, self._session)
        except ApiError as error:
            raise PeerUnavailable(f"{self._who}, {self._side} hints: {error}") from None

    def _turn(self, message: Message, reply_tokens: int, lead_s: float | None) -> Seen:
        self._messages.append({"role": "user", "content": message.text})
        streamed = self._api.turn({
            "model": self._model, "session_id": self._session, "messages": self._messages,
            "cache_salt": self._session, "max_tokens": reply_tokens, "ignore_eos": True,
            "stream": True, "stream_options": {"include_usage": True},
            "return_cached_tokens_details": True,
        })  # fmt: skip
        reply = streamed.reply
        self._messages.append({"role": "assistant", "content": reply.text})
        first_at = streamed.ended_at if reply.first_at is None else reply.first_at
        which = Which("chat", 0, self._who, message.number)
        ttft_ms = (first_at - streamed.sent_at) * 1e3
        seen = seen_of(which, self._side, ttft_ms, reply.usage, self._num_context, lead_s)
        self._num_context = seen.num_prompt + int(reply.usage.get("completion_tokens") or 0)
        return seen


async def play_chat(
    url: str, model: str, sizes: Sizes, rng: Random, on_seen: Callable[[Seen], None]
) -> dict[Side, list[float]]:
    """Play all of it; how long each round took, by side.

    Raises:
        PeerUnavailable: the deployment did not answer as it should.
    """
    rounds_s: dict[Side, list[float]] = {"without": [], "with": []}
    texts = {
        0: [
            Message(
                who, 0, TEXTS.fill(f"{who}/{rng.random()}", sizes.document_tokens),
                place * sizes.stagger_s, 0.0,
            )
            for place, who in enumerate(PEOPLE[: sizes.num_people])
        ]
    }  # fmt: skip
    texts |= {number: questions(sizes, number, rng) for number in range(1, 1 + sizes.num_questions)}
    people: dict[tuple[Side, str], Person] = {}
    for number, side in sides_in_turns(len(texts), rng):
        began_at = time.monotonic()
        acts = []
        for message in texts[number]:
            key = (side, message.who)
            if key not in people:
                people[key] = Person(url, model, message.who, side, on_seen)
            acts.append(people[key].say(message, sizes.reply_tokens))
        await asyncio.gather(*acts)
        if number:
            rounds_s[side].append(time.monotonic() - began_at)
    await asyncio.gather(*(each.leave() for each in people.values()))
    return rounds_s
