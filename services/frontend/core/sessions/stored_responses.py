"""Responses that are kept, so that one can be continued, read and deleted by its id.

Until one that is made in the background is complete, a mark is stored beside it: while it is made,
the time of its frontend's last heartbeat, in seconds; afterwards, how it ended instead.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from shared.ids import SessionId, new_id
from shared.wire.sessions import MARK_CHARS, session_mark

PREFIX = "resp"
OWN_SESSION = "conv"  # begins the names of sessions that their clients did not name
RESPONSE_BYTES_MAX = 4 * 1024 * 1024  # as it is stored
CHAIN_BYTES_MAX = 8 * 1024 * 1024  # of a response and those before it
CHAIN_MAX = 4096
_STORED_ID = re.compile(rf"{PREFIX}-([0-9a-f]{{{MARK_CHARS}}})-[0-9a-f]{{24}}")


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """Attributes:
    response: as it was answered, but for its output.
    input: items that it was asked with, without those of responses before.
    output: items that it answered.
    """

    response: dict[str, Any]
    input: list[dict[str, Any]]
    output: list[dict[str, Any]]

    @property
    def items(self) -> list[dict[str, Any]]:
        """What was said in it, by both."""
        return [*self.input, *self.output]

    def whole(self) -> dict[str, Any]:
        """As it was answered."""
        return {**self.response, "output": self.output}


@dataclass(frozen=True, slots=True)
class Past:
    """What a response goes on from.

    Attributes:
        session_id: of all of it.
        response_id: the latest; None: it goes on from nothing.
        items: everything that was said.
    """

    session_id: SessionId | None = None
    response_id: str | None = None
    items: Sequence[dict[str, Any]] = ()


def new_response_id(session_id: SessionId | None) -> str:
    """A new id, which contains where a response of this session is stored."""
    return new_id(PREFIX if session_id is None else f"{PREFIX}-{session_mark(session_id)}")


def mark_in(response_id: str) -> str | None:
    """Of which session's mark it is; None: of none that is stored.

    >>> mark_in("resp-ff0f0a8b656f0b44c26933ac-000000000000000000000001")
    'ff0f0a8b656f0b44c26933ac'
    >>> mark_in("resp-000000000000000000000001")
    """
    match = _STORED_ID.fullmatch(response_id)
    return match and match[1]


def new_session() -> SessionId:
    """A name for a conversation whose client gives none."""
    return SessionId(new_id(OWN_SESSION))


def is_own_session(session_id: SessionId) -> bool:
    """Whether it may be one of those, which hold nothing but responses."""
    return session_id.startswith(f"{OWN_SESSION}-")


def encode_stored(stored: StoredResponse) -> tuple[bytes, bytes]:
    """To the bytes stored in Redis: of the response, and of its items."""
    items = {"input": stored.input, "output": stored.output}
    return orjson.dumps(stored.response), orjson.dumps(items)


def decode_stored(response: bytes, items: bytes) -> StoredResponse | None:
    """Bytes from Redis to a response; None: they are of no release that is known."""
    try:
        answered = orjson.loads(response)
    except ValueError:
        return None
    decoded = decode_items(items)
    if decoded is None or not isinstance(answered, dict):
        return None
    return StoredResponse(answered, *decoded)


def decode_items(data: bytes) -> tuple[list[dict[str, Any]], list[dict[str, Any]]] | None:
    """Items of a response's input and output; None as above."""
    try:
        fields = orjson.loads(data)
        given, said = fields["input"], fields["output"]
    except (ValueError, KeyError, TypeError):
        return None
    is_whole = isinstance(given, list) and isinstance(said, list)
    return (given, said) if is_whole else None


BEAT_S = 2.0  # between heartbeats of a frontend that makes one
WORD_BYTES_MAX = 2048
LEASE_S = 60.0  # after which it is lost: its frontend is gone
CANCELLED: Final = b"cancelled"
_FAILED: Final = b"failed "


def failed(code: str, message: str) -> bytes:
    """The mark of one that failed."""
    word = _FAILED + orjson.dumps({"code": code, "message": message})
    if len(word) <= WORD_BYTES_MAX:
        return word
    # A character takes at most six bytes in JSON.
    short = message[: (WORD_BYTES_MAX - len(_FAILED) - len(code) - 32) // 6]
    return _FAILED + orjson.dumps({"code": code, "message": short})


LOST: Final = failed("frontend_lost", "the frontend that made it is gone: ask again")


def as_shown(stored: StoredResponse, word: bytes | None, now_s: float) -> StoredResponse:
    """A response as it is answered now.

    Args:
        word: its mark; None: it is complete.

    >>> begun = StoredResponse({"status": "in_progress"}, [], [])
    >>> as_shown(begun, b"100", 103.0).response["status"]
    'in_progress'
    >>> as_shown(begun, b"100", 203.0).response["status"]
    'failed'
    """
    if word is None:
        return stored
    if not word.startswith((CANCELLED, _FAILED)):
        if now_s - float(word) <= LEASE_S:
            return stored
        word = LOST
    if word == CANCELLED:
        return replace(stored, response={**stored.response, "status": "cancelled"})
    error = orjson.loads(word.removeprefix(_FAILED))
    return replace(stored, response={**stored.response, "status": "failed", "error": error})
