"""The event stream of a completion, without the connection that it comes from."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from cli.chat.sanitise import one_line
from shared.errors import PeerUnavailable, SymphonyError


@dataclass(slots=True)
class Reply:
    """What a turn's stream has said so far.

    Attributes:
        text: as it came, not sanitised.
        is_complete: the stream has come to its end.
    """

    text: str = ""
    usage: dict[str, Any] = field(default_factory=dict)
    is_complete: bool = False

    @property
    def is_worth_keeping(self) -> bool:
        """Whether the turn took place: a refused one has no text."""
        return bool(self.text) or self.is_complete


def pieces(chunks: Iterable[bytes], reply: Reply) -> Iterator[str]:
    """The answer's text, piece by piece, from the stream's bytes; fills `reply`.

    Raises:
        SymphonyError: the server's error in the stream, or what is no event.
        PeerUnavailable: the stream ended before its last event.
    """
    for line in _lines(chunks):
        if not line.startswith(b"data:"):
            continue
        data = line.removeprefix(b"data:").strip()
        if data == b"[DONE]":
            reply.is_complete = True
            return
        try:
            piece = _piece(json.loads(data), reply)
        except (ValueError, LookupError, TypeError, AttributeError):
            raise SymphonyError("the server sent an event that is none of a chat") from None
        if piece:
            reply.text += piece
            yield piece
    raise PeerUnavailable("the stream ended without its last event")


def error_text(body: bytes) -> str:
    """An error's message, as a line that can be printed."""
    try:
        text = _message(json.loads(body)["error"])
    except (ValueError, LookupError, TypeError):
        text = body[:1000].decode(errors="replace")
    return one_line(text) or "an error without words"


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    # Not httpx's iter_lines: it ends a line at U+2028 and U+0085 too, which JSON text may hold.
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines


def _piece(event: dict[str, Any], reply: Reply) -> str:
    if "error" in event:
        raise SymphonyError(one_line(_message(event["error"])) or "an error without words")
    reply.usage = event.get("usage") or reply.usage
    deltas = [choice.get("delta") or {} for choice in event.get("choices") or ()]
    return encodable("".join(delta.get("content") or "" for delta in deltas))


def _message(error: Any) -> str:
    return str(error["message"] if isinstance(error, dict) else error)


def encodable(text: str) -> str:
    """`text` without half characters (lone surrogates), which could not be sent or written."""
    return text.encode(errors="replace").decode()
