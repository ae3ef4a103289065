"""Answers: JSON at once, or server-sent events of a generation."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import orjson
from fastapi import Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from services.frontend.http.request import watched

NAME_FIELD = b"event: "  # begins an event that has a name; no JSON begins so


class Json(Response):
    """A value as JSON; bytes are taken to be JSON already."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return content if isinstance(content, bytes) else orjson.dumps(content)


class EventStream(StreamingResponse):
    """Chunks as events. What makes them is closed whatever becomes of the answer, begun or not.

    Starlette would cancel the stream at any point when the client hangs up; here its maker is
    notified, and ends it where nothing is half done.

    Args:
        first: chunks that are there already. Each is an event's data, or begins with `NAME_FIELD`
            and is all of its fields.
        rest: chunks to come, those that came together in one list.
        on_disconnect: makes `rest` raise `ClientGone`.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        first: list[bytes],
        rest: AsyncGenerator[list[bytes], None],
        on_disconnect: Callable[[], None],
    ) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(_events(first, rest), headers=headers)
        self._rest = rest
        self._on_disconnect = on_disconnect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._rest):
            with watched(receive, self._on_disconnect):
                await self.stream_response(send)


async def _events(
    first: list[bytes], rest: AsyncGenerator[list[bytes], None]
) -> AsyncGenerator[bytes, None]:
    yield _event_bytes(first)
    async for chunks in rest:
        yield _event_bytes(chunks)


def _event_bytes(chunks: list[bytes]) -> bytes:
    fields = [c if c.startswith(NAME_FIELD) else b"data: %b" % c for c in chunks]
    return b"".join([b"%b\n\n" % field for field in fields])
