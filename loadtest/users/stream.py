"""A streamed chat's answer as its bytes come; the reader passes the time."""

from typing import Any

import orjson

EVENT = b"data:"
DONE = b"[DONE]"


class Reply:
    """Attributes:
    text: the answer so far.
    first_at, last_at: when the first and the last of it came, s; None: not yet.
    usage: as the server counts; empty before the end.
    trouble: the error in the stream.
    is_done: it came to its end.
    """

    def __init__(self) -> None:
        self.first_at: float | None = None
        self.last_at: float | None = None
        self.usage: dict[str, Any] = {}
        self.trouble = ""
        self.is_done = False
        self.tool_calls: list[dict[str, Any]] = []
        self._pieces: list[str] = []
        self._rest = b""

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    @property
    def tpot_s(self) -> float | None:
        """Between the first token and the last, a token."""
        num = int(self.usage.get("completion_tokens") or 0)
        if num < 2 or self.first_at is None or self.last_at is None:
            return None
        return (self.last_at - self.first_at) / (num - 1)

    def feed(self, data: bytes, at: float) -> None:
        """Bytes of the body came."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(EVENT):
                self._on_event(line[len(EVENT) :].strip(), at)

    def _on_event(self, data: bytes, at: float) -> None:
        if data == DONE:
            self.is_done = True
            return
        event = orjson.loads(data)
        if error := event.get("error"):
            self.trouble = message_of(error)
            return
        self.usage = event.get("usage") or self.usage
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or {}
            piece, calls = delta.get("content") or "", delta.get("tool_calls") or ()
            if piece or calls or delta.get("reasoning_content") or choice.get("finish_reason"):
                self.first_at = at if self.first_at is None else self.first_at
                self.last_at = at
            self._pieces.append(piece)
            self._on_calls(calls)

    def _on_calls(self, calls: Any) -> None:
        """Names and arguments of calls come in pieces."""
        for call in calls:
            while len(self.tool_calls) <= call["index"]:
                function = {"name": "", "arguments": ""}
                self.tool_calls.append({"id": "", "type": "function", "function": function})
            known = self.tool_calls[call["index"]]
            known["id"] = call.get("id") or known["id"]
            for key, value in (call.get("function") or {}).items():
                known["function"][key] += value or ""


def message_of(error: Any) -> str:
    """What an error of the API says, with its code.

    >>> message_of({"code": "overloaded", "message": "come back later"})
    'overloaded: come back later'
    """
    if not isinstance(error, dict):
        return str(error)
    code = error.get("code")
    return f"{code}: {error.get('message')}" if code else str(error.get("message"))
