"""Responses that are made in the background.

Until such a response is complete, a mark is stored beside it: while it is made, the time of its
frontend's last heartbeat, in seconds; afterwards, how it ended instead.
"""

from dataclasses import replace
from typing import Final

import orjson

from services.frontend.core.sessions.stored_responses import StoredResponse

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
