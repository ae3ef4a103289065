"""A chat's turns: what comes, what is kept, and what is taken back."""

import json
from contextlib import closing

import httpx
import pytest

from cli.chat.conversation import Conversation, Message
from cli.chat.events import Reply
from cli.chat.server import Server
from shared.errors import PeerUnavailable, SymphonyError
from tests.unit.cli.chat.fake_server import DONE, error, event


def conversation(body: bytes, status: int = 200) -> tuple[Conversation, list[httpx.Request]]:
    requests: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return httpx.Response(status, content=body)

    client = httpx.Client(base_url="http://house", transport=httpx.MockTransport(answer))
    return Conversation(Server(client), "m", "s-1"), requests


def test_a_turn_streams_and_is_kept() -> None:
    usage = {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}
    last = b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\r\n\r\n"
    talk, requests = conversation(event("Hel") + b": comment\n\n" + event("lo") + last + DONE)
    reply = Reply()
    assert list(talk.say("hi", reply)) == ["Hel", "lo"]
    assert reply.usage == usage
    sent = json.loads(requests[0].content)
    assert (sent["session_id"], sent["model"], sent["stream"]) == ("s-1", "m", True)
    assert sent["messages"] == [{"role": "user", "content": "hi"}]
    assert talk.messages == [Message("user", "hi"), Message("assistant", "Hello")]


@pytest.mark.parametrize(
    ("body", "status", "complaint"),
    [
        (error("too\nlong \x1b[2J"), 400, "too long ␛"),
        (b"<html>bad gateway</html>", 502, "bad gateway"),
        (b"", 500, "without words"),
        (b'data: {"error": {"message": "lost"}}\n\n', 200, "lost"),
        (b"", 200, "last event"),
        (b"data: {nonsense\n\n", 200, "none of a chat"),
        (b"data: []\n\n", 200, "none of a chat"),
    ],
)
def test_a_refused_message_is_taken_back(body: bytes, status: int, complaint: str) -> None:
    talk, _ = conversation(body, status)
    with pytest.raises(SymphonyError, match=complaint) as raised:
        list(talk.say("hi", Reply()))
    assert "\x1b" not in raised.value.message
    assert talk.messages == []


def test_what_was_said_before_a_break_is_kept() -> None:
    for body in (event("a"), event("a") + b'data: {"error": "worker lost"}\n\n'):
        talk, _ = conversation(body)
        with pytest.raises(SymphonyError):
            list(talk.say("hi", Reply()))
        assert talk.messages == [Message("user", "hi"), Message("assistant", "a")]


def test_what_was_said_before_a_stop_is_kept() -> None:
    talk, _ = conversation(event("a") + event("b") + DONE)
    with closing(talk.say("hi", Reply())) as pieces:
        assert next(pieces) == "a"
    assert talk.messages == [Message("user", "hi"), Message("assistant", "a")]


def test_an_answer_without_text_is_an_answer() -> None:
    talk, _ = conversation(event("") + DONE)
    assert list(talk.say("hi", Reply())) == []
    assert talk.messages == [Message("user", "hi"), Message("assistant", "")]


def test_line_separators_of_unicode_are_text() -> None:
    talk, _ = conversation(event("a\u2028b\u0085c") + DONE)
    assert list(talk.say("hi", Reply())) == ["a\u2028b\u0085c"]


def test_half_a_character_can_be_sent_again() -> None:
    half = b'data: {"choices": [{"delta": {"content": "\\ud83d"}}]}\n\n'
    talk, requests = conversation(half + DONE)
    list(talk.say("hi", Reply()))
    list(talk.say("again", Reply()))
    assert json.loads(requests[1].content)["messages"][1]["content"] == "?"


def test_a_server_that_is_not_there() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    client = httpx.Client(base_url="http://house", transport=httpx.MockTransport(refuse))
    talk = Conversation(Server(client), "m", "s-1")
    with pytest.raises(PeerUnavailable, match="refused"):
        list(talk.say("hi", Reply()))
    assert talk.messages == []
    with pytest.raises(PeerUnavailable, match=r"http://house cannot be reached"):
        Server(client).models()


@pytest.mark.parametrize("session_id", ["fox", "..", "a/b?c", "ü"])
def test_a_session_is_looked_up_by_its_whole_name(session_id: str) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        assert request.url.path == f"/v1/sessions/{session_id}"
        return httpx.Response(200, json={})

    client = httpx.Client(base_url="http://house", transport=httpx.MockTransport(answer))
    assert Server(client).knows_session(session_id)
