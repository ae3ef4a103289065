"""One client's conversations: what was said in them, what was announced, what was seen."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from loadtest.users.client import THROTTLED, ApiError, Streamed
from loadtest.users.life import Answer
from loadtest.users.measures import Turn, places_of

CAME = ("used", "late")
COMING = ("expected", "placed")
# By the deployment; its outcome is hidden by the announcement of the next.
ANNOUNCED = "announced"


class Api(Protocol):
    """What of `client.Client` is needed here."""

    def hint(self, body: dict[str, Any]) -> str: ...
    def take_back(self, session: str) -> None: ...
    def state_of(self, session: str) -> str: ...
    def turn(self, body: dict[str, Any]) -> Streamed: ...


@dataclass(slots=True)
class _Conversation:
    messages: list[dict[str, Any]] = field(default_factory=list)
    num_context: int = 0
    hinted_at: float | None = None
    hint: str = ""


class Speaker:
    """Args:
    on_turn: called with each turn that ended, well or not.
    hints: this client announces turns.
    is_announced: its requests say which agent works on what, so that the deployment announces turns
        by itself.
    """

    def __init__(
        self,
        api: Api,
        on_turn: Callable[[Turn], None],
        began_at: float,
        *,
        hints: bool,
        is_announced: bool = False,
    ) -> None:
        self._api = api
        self._on_turn = on_turn
        self._began_at = began_at
        self._hints = hints
        self._is_announced = is_announced
        self._conversations: dict[str, _Conversation] = {}

    def num_context(self, session: str) -> int:
        """Tokens of its messages so far."""
        return self._of(session).num_context

    def forget(self, session: str) -> None:
        """It will not be gone on with."""
        self._conversations.pop(session, None)

    def hint(self, session: str, model: str, expected_in_s: float | None) -> None:
        """Announce its next turn."""
        body: dict[str, Any] = {"session_id": session, "model_id": model}
        if expected_in_s is not None:
            body["expected_arrival"] = round(expected_in_s, 3)
        conversation = self._of(session)
        hinted_at = time.monotonic()
        try:
            conversation.hint = self._api.hint(body)
        except ApiError as error:
            self._fail(hinted_at, "hinted", f"hint: {error}")
            return
        conversation.hinted_at = hinted_at

    def take_back(self, session: str) -> None:
        """No turn comes."""
        conversation = self._of(session)
        conversation.hinted_at, conversation.hint = None, ""
        try:
            self._api.take_back(session)
        except ApiError as error:
            self._fail(time.monotonic(), "hinted", f"hint taken back: {error}")

    def say(
        self, session: str, model: str, text: str, num_answer: int, *, system: str = "", **more: Any
    ) -> Answer:
        """Send a message after all that was said, and stream the answer to its end.

        Args:
            system: what the conversation begins with, if it is new.
            more: fields of the request.
        """
        conversation = self._of(session)
        hinted_at, hint = conversation.hinted_at, conversation.hint
        conversation.hinted_at, conversation.hint = None, ""
        is_first = not conversation.messages
        new: list[dict[str, Any]] = []
        if system and is_first:
            new.append({"role": "system", "content": system})
        new.append({"role": "user", "content": text})
        body = {
            "model": model, "session_id": session, "messages": [*conversation.messages, *new],
            "max_tokens": num_answer, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True}, "return_cached_tokens_details": True, **more,
        }  # fmt: skip
        sent_at = time.monotonic()
        is_coming = False
        try:
            if self._is_announced and not is_first:
                is_coming = self._api.state_of(session) in COMING
                sent_at = time.monotonic()
            streamed = self._api.turn(body)
            outcome = self._outcome(session, hinted_at, hint, is_coming)
        except ApiError as error:
            self._fail(sent_at, self._kind(is_first, hinted_at, hint), str(error))
            return Answer(0, conversation.num_context, is_whole=False)
        lead_ms = 0.0 if hinted_at is None else _ms(sent_at - hinted_at)
        turn = self._seen(streamed, self._kind(is_first, hinted_at, outcome), outcome, lead_ms)
        conversation.messages += [*new, {"role": "assistant", "content": streamed.reply.text}]
        conversation.num_context = turn.num_prompt + turn.num_output
        self._on_turn(turn)
        return Answer(turn.num_output, conversation.num_context)

    def _seen(self, streamed: Streamed, kind: str, outcome: str, lead_ms: float) -> Turn:
        reply, usage, sent_at = streamed.reply, streamed.reply.usage, streamed.sent_at
        first_at = streamed.ended_at if reply.first_at is None else reply.first_at
        return Turn(
            at_s=round(sent_at - self._began_at, 3),
            kind=kind,
            ttft_ms=_ms(first_at - sent_at),
            tpot_ms=None if reply.tpot_s is None else _ms(reply.tpot_s),
            total_ms=_ms(streamed.ended_at - sent_at),
            num_prompt=int(usage.get("prompt_tokens") or 0),
            num_output=int(usage.get("completion_tokens") or 0),
            cached=places_of(usage),
            outcome=outcome,
            lead_ms=lead_ms,
        )

    def _outcome(self, session: str, hinted_at: float | None, hint: str, is_coming: bool) -> str:
        if hint == THROTTLED:
            return hint
        if hinted_at is None and not is_coming:
            return ""
        state = self._api.state_of(session)
        return ANNOUNCED if self._is_announced and state not in CAME else state

    def _kind(self, is_first: bool, hinted_at: float | None, outcome: str) -> str:
        if is_first:
            return "first"
        if outcome in (*CAME, ANNOUNCED) or (hinted_at is not None and outcome != THROTTLED):
            return "hinted"
        return "missed" if self._hints else "unhinted"

    def _fail(self, at: float, kind: str, why: str) -> None:
        self._on_turn(Turn(at_s=round(at - self._began_at, 3), kind=kind, trouble=why[:300]))

    def _of(self, session: str) -> _Conversation:
        return self._conversations.setdefault(session, _Conversation())


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)
