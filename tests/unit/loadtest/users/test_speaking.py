"""Conversations of a client, against a deployment that says what it is told to."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from loadtest.users.client import ApiError, Streamed
from loadtest.users.measures import Turn
from loadtest.users.speaking import Speaker
from loadtest.users.stream import Reply, message_of

EVENTS = (
    b'data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}\n\n',
    b'data: {"choices": [{"delta": {"content": "Good"}}]}\n\n',
    b'data: {"choices": [{"delta": {"content": " day"}, "finish_reason": "length"}]}\n\n',
    b'data: {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3, '
    b'"prompt_tokens_details": {"cached_tokens": 2, "cached_tokens_details": {"host": 2}}}}\n\n',
    b"data: [DONE]\n\n",
)


def reply() -> Reply:
    """Events that come a second apart, each in two pieces."""
    found = Reply()
    for number, event in enumerate(EVENTS):
        found.feed(event[:9], number - 0.5)
        found.feed(event[9:], float(number))
    return found


@dataclass
class Told:
    """Answers as its attributes say, and keeps what it was asked."""

    states: list[str] = field(default_factory=list)
    hint_state: str = "placed"
    trouble: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    hints: list[dict[str, Any]] = field(default_factory=list)

    def hint(self, body: dict[str, Any]) -> str:
        self.hints.append(body)
        return self.hint_state

    def take_back(self, session: str) -> None:
        self.hints.append({"taken_back": session})

    def state_of(self, session: str) -> str:
        return self.states.pop(0)

    def turn(self, body: dict[str, Any]) -> Streamed:
        self.bodies.append(body)
        if self.trouble:
            raise ApiError(self.trouble)
        return Streamed(reply(), 0.0, 4.0)


def speaker(
    api: Told, *, hints: bool = True, is_announced: bool = False
) -> tuple[Speaker, list[Turn]]:
    seen: list[Turn] = []
    return Speaker(api, seen.append, 0.0, hints=hints, is_announced=is_announced), seen


def test_a_reply_is_timed_from_its_first_text_to_its_last() -> None:
    found = reply()
    assert (found.text, found.is_done) == ("Good day", True)
    assert (found.first_at, found.last_at, found.tpot_s) == (1.0, 2.0, 0.5)


def test_calls_of_tools_are_put_together() -> None:
    found = Reply()
    for piece in (
        b'{"index": 0, "id": "c1", "function": {"name": "pytest", "arguments": "{"}}',
        b'{"index": 0, "function": {"arguments": "}"}}',
    ):
        found.feed(b'data: {"choices": [{"delta": {"tool_calls": [' + piece + b"]}}]}\n", 1.0)
    function = {"name": "pytest", "arguments": "{}"}
    assert found.tool_calls == [{"id": "c1", "type": "function", "function": function}]


def test_a_stream_that_tells_an_error_has_failed() -> None:
    found = Reply()
    found.feed(b'data: {"error": {"code": "worker_lost", "message": "gone"}}\n\n', 1.0)
    assert (found.trouble, found.is_done) == ("worker_lost: gone", False)
    assert message_of("gone") == "gone" and message_of({"message": "gone"}) == "gone"


def test_history_is_what_was_really_said() -> None:
    api = Told(states=["used"])
    client, seen = speaker(api)
    client.say("fox", "m", "Hello", 5, system="Be kind")
    client.hint("fox", "m", 1.5)
    answer = client.say("fox", "m", "And?", 6, agent="a")
    assert (answer.num_tokens, answer.num_context, answer.is_whole) == (3, 10, True)
    assert [message["content"] for message in api.bodies[1]["messages"]] == [
        "Be kind", "Hello", "Good day", "And?",
    ]  # fmt: skip
    assert api.bodies[1]["max_tokens"] == 6 and api.bodies[1]["agent"] == "a"
    assert api.hints == [{"session_id": "fox", "model_id": "m", "expected_arrival": 1.5}]
    first, second = seen
    assert (first.kind, first.outcome) == ("first", "")
    assert (second.kind, second.outcome, second.cached) == ("hinted", "used", {"host": 2})
    assert (second.ttft_ms, second.tpot_ms, second.total_ms) == (1000, 500, 4000)
    assert client.num_context("fox") == 10
    client.forget("fox")
    assert client.num_context("fox") == 0


@pytest.mark.parametrize(
    ("hints", "act", "kind", "outcome"),
    [
        (True, "hint", "hinted", "late"),
        (True, "", "missed", ""),
        (True, "throttled", "missed", "throttled"),
        (True, "taken back", "missed", ""),
        (False, "", "unhinted", ""),
    ],
)
def test_turns_are_told_apart_by_their_hints(
    hints: bool, act: str, kind: str, outcome: str
) -> None:
    api = Told(states=["late"], hint_state="throttled" if act == "throttled" else "placed")
    client, seen = speaker(api, hints=hints)
    client.say("fox", "m", "Hello", 5)
    if act:
        client.hint("fox", "m", None)
    if act == "taken back":
        client.take_back("fox")
    client.say("fox", "m", "And?", 5)
    assert (seen[-1].kind, seen[-1].outcome) == (kind, outcome)
    client.say("fox", "m", "And then?", 5)  # a hint is for one turn
    assert seen[-1].kind == ("missed" if hints else "unhinted")


@pytest.mark.parametrize(
    ("before", "after", "kind", "outcome"),
    [
        ("placed", "used", "hinted", "used"),
        ("placed", "placed", "hinted", "announced"),
        ("none", "", "missed", ""),
        ("used", "", "missed", ""),  # of the turn before
    ],
)
def test_what_the_deployment_announces_is_seen(
    before: str, after: str, kind: str, outcome: str
) -> None:
    api = Told(states=[before, after])
    client, seen = speaker(api, is_announced=True)
    client.say("fox", "m", "Hello", 5)
    client.say("fox", "m", "And?", 5)
    assert [turn.kind for turn in seen] == ["first", kind]
    assert seen[1].outcome == outcome


def test_a_failure_is_told_and_not_remembered() -> None:
    api = Told(trouble="503 overloaded: later")
    client, seen = speaker(api)
    assert not client.say("fox", "m", "Hello", 5).is_whole
    assert (seen[0].trouble, seen[0].kind) == ("503 overloaded: later", "first")
    api.trouble = ""
    client.say("fox", "m", "Hello", 5)
    assert len(api.bodies[-1]["messages"]) == 1
