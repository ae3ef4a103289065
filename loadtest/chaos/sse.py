"""One streamed answer as a client sees it, on a connection of its own."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

import orjson

from loadtest.raw_http import events, read_head, read_pieces, request_bytes, sent
from shared.errors import reason

PATH = "/v1/chat/completions"
SILENCE_MAX_S = 180.0  # the longest wait for the next event
DONE = b"[DONE]"
OK = 200


@dataclass(slots=True, eq=False)
class Stream:
    """What one client saw of one stream. Instants are monotonic seconds.

    Attributes:
        client: its number.
        body: which of the client's bodies.
        pieces_at: when something came.
        prompt, tokens: ids.
        trouble: why it did not come to its end; empty: it did.
        was_refused: it never began: another status than 200, or a refused connection.
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


async def stream_chat(port: int, content: bytes, stream: Stream) -> None:
    """Send `content` to the frontend at loopback `port`; fill `stream` until it ends, somehow."""
    request = request_bytes("POST", PATH, port, content, b"Connection: close")
    try:
        async with asyncio.timeout(SILENCE_MAX_S) as patience, sent(port, request) as reader:
            status, headers = await read_head(reader)
            if status != OK:
                stream.was_refused = True
                body = b"".join([piece async for piece in read_pieces(reader, headers)])
                stream.trouble = f"{status} {body[:200].decode(errors='replace')}"
                return
            is_done = False
            async for data in events(reader, headers):
                patience.reschedule(asyncio.get_running_loop().time() + SILENCE_MAX_S)
                is_done = data == DONE
                if not is_done:
                    _on_event(stream, orjson.loads(data))
            if not is_done:
                stream.trouble = stream.trouble or "the connection ended"
    except OSError as error:  # a timeout is an OSError
        stream.trouble = stream.trouble or reason(error)
        stream.was_refused = isinstance(error, ConnectionRefusedError)
    except (EOFError, ValueError, IndexError):
        stream.trouble = stream.trouble or "the connection ended"
    finally:
        stream.ended_at = time.monotonic()


def _on_event(stream: Stream, event: dict[str, Any]) -> None:
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
