"""What a compaction leaves of a conversation: what the user said, and a summary of all of it.

The summary is handed out as text that clients send back and do not read. It holds nothing that its
client did not have, so it is encoded, not encrypted.
"""

import base64
import binascii
from collections.abc import Iterable
from typing import Any, Final

from shared.errors import InvalidRequest

MARK: Final = "symphony-1:"
SUMMARIZE: Final = (
    "Summarize our conversation up to here, so that it can be continued from your summary without "
    "what came before. Keep goals, decisions, facts, names, numbers, what tools answered, and what "
    "is still to be done. Answer with the summary alone."
)
BEGINS: Final = "Summary of the conversation up to here:\n"


def compacted(summary: str) -> str:
    """What is handed out of a summary.

    >>> summary_of(compacted("Who is it? A fox."), "input[0]")
    'Summary of the conversation up to here:\\nWho is it? A fox.'
    """
    return base64.b64encode(f"{MARK}{summary}".encode()).decode()


def summary_of(content: Any, where: str) -> str:
    """What a model is to know of a compaction.

    Args:
        where: in the request it is.

    Raises:
        InvalidRequest: it was not made here.
    """
    try:
        text = base64.b64decode(content if isinstance(content, str) else "", validate=True).decode()
    except (binascii.Error, ValueError):
        text = ""
    if not text.startswith(MARK):
        name = f"{where}.encrypted_content"
        raise InvalidRequest(f"{name}: give one that /v1/responses/compact answered", name)
    return BEGINS + text.removeprefix(MARK)


def left(items: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Items that are left beside the summary: what the user said.

    >>> left([{"type": "message", "role": "user"}, {"type": "message", "role": "assistant"}])
    [{'type': 'message', 'role': 'user'}]
    """
    return [item for item in items if item["type"] == "message" and item["role"] == "user"]
