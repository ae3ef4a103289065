"""`symphony chat`: a chat in the terminal that streams, and announces each turn before it comes."""

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx

from cli.reporting import complain, out
from shared.errors import NotFound, PeerUnavailable, SymphonyError
from shared.ids import new_id

CONNECT_TIMEOUT_S = 5.0
ADVISORY_TIMEOUT_S = 2.0
LEAVING = ("/exit", "/quit")

Message = dict[str, str]


@dataclass(slots=True)
class Reply:
    """What a turn's stream says besides its text; complete when the stream has ended."""

    text: str = ""
    usage: dict[str, Any] = field(default_factory=dict)


def chat(url: str, model: str | None, session: str | None, api_key: str) -> None:
    """Talk until end of input or ``/exit``.

    Raises:
        PeerUnavailable: the frontend cannot be reached.
        NotFound: it serves no model.
    """
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    timeout = httpx.Timeout(None, connect=CONNECT_TIMEOUT_S)
    with httpx.Client(base_url=url, headers=headers, timeout=timeout) as client:
        conversation = Conversation(client, model or _first_model(client), session)
        out.print(
            f"[dim]{conversation.model} · session {conversation.session_id} · "
            "Ctrl-D or /exit leaves[/dim]"
        )
        while (text := _ask(conversation)) is not None:
            if text:
                _turn(conversation, text)


class Conversation:
    """A session's messages and the client that sends them."""

    def __init__(self, client: httpx.Client, model: str, session: str | None) -> None:
        self.model = model
        self.session_id = session or new_id("chat")
        self.messages: list[Message] = []
        self._client = client

    def announce(self) -> None:
        """Send the advisory of the next turn, in the background; nothing depends on it."""
        body = {"session_id": self.session_id, "model_id": self.model}

        def send() -> None:
            with suppress(
                httpx.HTTPError, RuntimeError
            ):  # a hint may be lost; the client may close
                self._client.post("/v1/advisories", json=body, timeout=ADVISORY_TIMEOUT_S)

        threading.Thread(target=send, daemon=True).start()

    def say(self, text: str, reply: Reply) -> Iterator[str]:
        """Stream the answer to `text`, piece by piece, and fill `reply`.

        Raises:
            SymphonyError: the server's error, or a stream that broke off.
        """
        self.messages.append({"role": "user", "content": text})
        body = {
            "model": self.model,
            "messages": self.messages,
            "session_id": self.session_id,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        try:
            with self._client.stream("POST", "/v1/chat/completions", json=body) as response:
                if response.status_code != httpx.codes.OK:
                    raise SymphonyError(_error_text(response.read()))
                yield from _pieces(response.iter_lines(), reply)
        except httpx.HTTPError as error:
            raise PeerUnavailable(f"the stream broke off: {error}") from None
        finally:
            self.messages.append({"role": "assistant", "content": reply.text})


def _pieces(lines: Iterator[str], reply: Reply) -> Iterator[str]:
    for line in lines:
        data = line.removeprefix("data: ")
        if data == line:
            continue
        if data == "[DONE]":
            return
        event = json.loads(data)
        if "error" in event:
            raise SymphonyError(event["error"]["message"])
        reply.usage = event.get("usage") or reply.usage
        for choice in event["choices"]:
            piece = choice["delta"].get("content") or ""
            reply.text += piece
            yield piece
    raise PeerUnavailable("the stream ended without its last event")


def _ask(conversation: Conversation) -> str | None:
    """The user's next line; None at the end of input."""
    conversation.announce()
    if sys.stdin.isatty():
        out.print("[bold]you>[/bold] ", end="")
    line = sys.stdin.readline()
    text = line.strip()
    return None if not line or text in LEAVING else text


def _turn(conversation: Conversation, text: str) -> None:
    reply = Reply()
    pieces = conversation.say(text, reply)
    try:
        for piece in pieces:
            print(piece, end="", flush=True)
    except SymphonyError as error:
        print()
        complain(error.message)
        return
    except KeyboardInterrupt:  # hanging up stops the turn; the chat goes on
        pieces.close()  # type: ignore[attr-defined]  # a generator
        out.print("\n[dim]stopped[/dim]")
        return
    print()
    if reply.usage:
        cached = (reply.usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        out.print(
            f"[dim]{reply.usage['prompt_tokens']} prompt tokens, {cached} of them cached; "
            f"{reply.usage['completion_tokens']} new[/dim]"
        )


def _first_model(client: httpx.Client) -> str:
    try:
        response = client.get("/v1/models")
    except httpx.HTTPError as error:
        raise PeerUnavailable(f"{client.base_url} cannot be reached: {error}") from None
    if response.status_code != httpx.codes.OK:
        raise SymphonyError(_error_text(response.content))
    models = response.json()["data"]
    if not models:
        raise NotFound(f"{client.base_url} serves no model yet")
    return str(models[0]["id"])


def _error_text(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace") or "an error without words"
