"""One streamed answer, read as lightly as can be: the clients share the deployment's cores."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

import httptools
import orjson

from loadtest.fuzz.plain_http import request_bytes
from shared.errors import reason

PATH = "/v1/chat/completions"
SILENCE_MAX_S = 180.0  # a stream that says nothing for so long is given up
READ_BYTES = 65_536
EVENT = b"data: "
DONE = b"[DONE]"
OK = 200


@dataclass(slots=True, eq=False)
class Stream:
    """What one client saw of one stream. Instants are monotonic seconds.

    Attributes:
        client: whose it is.
        body: which of the client's bodies.
        pieces_at: when something came.
        prompt, tokens: ids.
        trouble: why it did not come to its end; empty: it did.
        was_refused: it never began: another status than 200, or nobody accepted the connection.
        cached_tokens: of its prompt, as its usage says.
        comes_back: the client's stream before it broke.
        is_tie: it went another way than expected where it may, by rounding.
    """

    client: int
    body: int
    sent_at: float
    ended_at: float = 0.0
    pieces_at: list[float] = field(default_factory=list)
    prompt: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    trouble: str = ""
    was_refused: bool = False
    cached_tokens: int = 0
    comes_back: bool = False
    is_tie: bool = False


async def stream_chat(port: int, content: bytes, stream: Stream, path: str = PATH) -> None:
    """Send `content` to the frontend at loopback `port`; fill `stream` until it ends, somehow.

    Args:
        path: of chats, or of completions.
    """
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError as error:
        stream.trouble, stream.was_refused = reason(error), True
        stream.ended_at = time.monotonic()
        return
    reply = _Reply(stream)
    try:
        writer.write(request_bytes("POST", path, port, content, b"Connection: close"))
        while not reply.is_over:
            async with asyncio.timeout(SILENCE_MAX_S):
                data = await reader.read(READ_BYTES)
            if not data:
                break
            reply.feed(data)
    except (OSError, httptools.HttpParserError) as error:  # a timeout is an OSError
        stream.trouble = stream.trouble or reason(error)
    finally:
        writer.close()
    stream.ended_at = time.monotonic()
    reply.conclude()


class _Reply:
    """Takes a response apart; the parser calls its ``on_`` methods."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._parser = httptools.HttpResponseParser(self)
        self._rest = b""
        self._is_done = False
        self._status = 0
        self.is_over = False

    def feed(self, data: bytes) -> None:
        """Bytes of the response came."""
        self._parser.feed_data(data)

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines if self._status == OK else ():
            if line == EVENT + DONE:
                self._is_done = True
            elif line.startswith(EVENT):
                self._on_event(orjson.loads(line[len(EVENT) :]))

    def on_message_complete(self) -> None:
        self.is_over = True

    def conclude(self) -> None:
        """No more comes: say what is missing, if anything is."""
        stream = self._stream
        if self._status not in (0, OK):
            stream.was_refused = True
            stream.trouble = f"{self._status} {self._rest[:200].decode(errors='replace')}"
        elif not self._is_done and not stream.trouble:
            stream.trouble = "the connection ended"

    def _on_event(self, event: dict[str, Any]) -> None:
        stream = self._stream
        if error := event.get("error"):
            stream.trouble = str(error)
            return
        if usage := event.get("usage"):
            stream.cached_tokens = usage["prompt_tokens_details"]["cached_tokens"] or 0
        stream.prompt = event.get("prompt_token_ids") or stream.prompt
        for choice in event["choices"]:
            if tokens := choice.get("token_ids"):
                stream.tokens += tokens
                stream.pieces_at.append(time.monotonic())
