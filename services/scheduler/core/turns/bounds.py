"""Bounds of the numbers in messages that decide about placement. They are applied once, when a
message arrives, so that the core works with sane values only.
"""

from dataclasses import replace
from typing import Any, TypeVar

from shared.wire.messages import ExpectSession, TurnSubmit, WorkerReport

TOKENS_MAX = 1_000_000_000  # of one prompt, or waiting on one worker
SEATS_MAX = 1 << 20
PAGES_MAX = 1 << 40
INTERVAL_MAX_NS = 3600 * 1_000_000_000
AHEAD_MAX_NS = 30 * 24 * INTERVAL_MAX_NS  # no announcement is kept for longer

_BOUNDS: dict[type, dict[str, tuple[int, int]]] = {
    WorkerReport: {
        "num_waiting_tokens": (0, TOKENS_MAX),
        "turns_running_max": (0, SEATS_MAX),
        "num_pages_free": (0, PAGES_MAX),
        "num_pages_clean": (0, PAGES_MAX),
        "interval_ns": (0, INTERVAL_MAX_NS),
    },
    TurnSubmit: {"num_prompt_tokens": (0, TOKENS_MAX), "max_tokens": (0, TOKENS_MAX)},
    ExpectSession: {"arrives_in_ns": (0, AHEAD_MAX_NS), "expires_in_ns": (0, AHEAD_MAX_NS)},
}

M = TypeVar("M", WorkerReport, TurnSubmit, ExpectSession)


def bounded(message: M) -> M:
    """The message with its numbers clamped to their bounds.

    >>> from shared.ids import SessionId
    >>> bounded(ExpectSession(session_id=SessionId("s"), arrives_in_ns=-5)).arrives_in_ns
    0
    """
    wrong: dict[str, Any] = {}
    for name, (least, most) in _BOUNDS[type(message)].items():
        number: int = getattr(message, name)
        if not least <= number <= most:
            wrong[name] = min(max(number, least), most)
    return replace(message, **wrong) if wrong else message
