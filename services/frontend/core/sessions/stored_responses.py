"""Responses that are kept, so that one can be continued, read and deleted by its id.

Until one that is made in the background is complete, a mark is stored beside it: while it is made,
the time of its frontend's last heartbeat, in seconds; afterwards, how it ended instead.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from shared.errors import SymphonyError
from shared.ids import SessionId, public_id
from shared.wire.sessions import MARK_CHARS, session_mark

PREFIX = "resp"
ITEM_PREFIXES = {
    "message": "msg", "reasoning": "rs", "function_call": "fc", "function_call_output": "fco",
    "custom_tool_call": "ctc", "custom_tool_call_output": "ctco", "compaction": "cmp",
}  # fmt: skip
OWN_SESSION = "conv"  # begins the names of sessions that their clients did not name
RESPONSE_BYTES_MAX = 4 * 1024 * 1024  # as it is stored
EVENTS_BYTES_MAX = 4 * 1024 * 1024  # of one that is streamed in the background, compressed
CHAIN_BYTES_MAX = 8 * 1024 * 1024  # of a response and those before it
CHAIN_MAX = 4096
_STORED_ID = re.compile(rf"{PREFIX}[_-]([0-9a-f]{{{MARK_CHARS}}})-?[0-9a-f]{{24}}")  # - in earlier
# Of items of responses with their number in it, and of others of conversations without.
_ITEM_ID = re.compile(rf"[a-z]+_(([0-9a-f]{{{MARK_CHARS}}})[0-9a-f]{{24}})([0-9a-f]{{4}})?")


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
        is_conversation: the session is a conversation, which what is said is added to.
    """

    session_id: SessionId | None = None
    response_id: str | None = None
    items: Sequence[dict[str, Any]] = ()
    is_conversation: bool = False


@dataclass(frozen=True, slots=True)
class EventsPart:
    """Events of a response as they are stored.

    Attributes:
        has_events: of it there are some, these or others.
        is_being_made: more may come.
    """

    parts: list[bytes]
    has_events: bool
    is_being_made: bool


def new_response_id(session_id: SessionId | None) -> str:
    """A new id, which contains where a response of this session is stored."""
    mark = "" if session_id is None else session_mark(session_id)
    return public_id(PREFIX, mark)


def mark_in(response_id: str) -> str | None:
    """Of which session's mark it is; None: of none that is stored.

    >>> mark_in("resp_ff0f0a8b656f0b44c26933ac000000000000000000000001")
    'ff0f0a8b656f0b44c26933ac'
    >>> mark_in("resp_000000000000000000000001")
    """
    match = _STORED_ID.fullmatch(response_id)
    return match and match[1]


def item_id(prefix: str, response_id: str, number: int) -> str:
    """The id of a response's item, counted from the first of its input.

    >>> item_id("msg", "resp_ff0f", 10)
    'msg_ff0f000a'
    """
    return f"{prefix}_{response_id.removeprefix(f'{PREFIX}_')}{number:04x}"


def new_item_id(kind: str, session_id: SessionId) -> str:
    """The id of an item of this type that is put into a conversation."""
    return public_id(ITEM_PREFIXES[kind], session_mark(session_id))


@dataclass(frozen=True, slots=True)
class ItemPlace:
    """Where an item with an id is: in a response, or else in a conversation."""

    mark: str
    response_id: str | None = None
    number: int = 0


def place_of_item(item: str) -> ItemPlace | None:
    """Where the item with this id is, if it was stored.

    >>> place_of_item("msg_ff0f0a8b656f0b44c26933ac000000000000000000000001000a").number
    10
    """
    match = _ITEM_ID.fullmatch(item)
    if match is None:
        return None
    of_response, mark, number = match.groups()
    if number is None:
        return ItemPlace(mark)
    return ItemPlace(mark, f"{PREFIX}_{of_response}", int(number, 16))


def new_session() -> SessionId:
    """A name for a conversation whose client gives none."""
    return SessionId(public_id(OWN_SESSION))


def is_own_session(session_id: SessionId) -> bool:
    """Whether it may be one of those, which hold nothing but responses and conversations."""
    return session_id.startswith(f"{OWN_SESSION}_")


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


def response_error(error: SymphonyError) -> dict[str, str]:
    """What a failed response says of an error. OpenAI has few codes: `reason` is ours.

    >>> response_error(SymphonyError("it broke"))
    {'code': 'server_error', 'message': 'it broke', 'reason': 'internal_error'}
    """
    code = {429: "rate_limit_exceeded", 400: "invalid_prompt"}.get(error.http_status)
    return {"code": code or "server_error", "message": error.message, "reason": error.code}


def failed(error: SymphonyError) -> bytes:
    """The mark of one that failed."""
    fields = response_error(error)
    word = _FAILED + orjson.dumps(fields)
    if len(word) <= WORD_BYTES_MAX:
        return word
    # A character takes at most six bytes in JSON.
    room = (WORD_BYTES_MAX - len(_FAILED) - len(fields["code"] + fields["reason"]) - 64) // 6
    return _FAILED + orjson.dumps({**fields, "message": fields["message"][:room]})


class ResponseLost(SymphonyError):
    """A response was not made to its end, or not stored."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


LOST: Final = failed(ResponseLost("frontend_lost", "the frontend that made it is gone: ask again"))


def is_being_made(word: bytes, now_s: float) -> bool:
    """Whether a response with this mark is made now, as far as is known.

    >>> is_being_made(b"100", 103.0), is_being_made(b"100", 203.0), is_being_made(b"", 103.0)
    (True, False, False)
    """
    return word[:1].isdigit() and now_s - float(word) <= LEASE_S


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
    if is_being_made(word, now_s):
        return stored
    if not word.startswith((CANCELLED, _FAILED)):
        word = LOST
    if word == CANCELLED:
        return replace(stored, response={**stored.response, "status": "cancelled"})
    error = orjson.loads(word.removeprefix(_FAILED))
    return replace(stored, response={**stored.response, "status": "failed", "error": error})
