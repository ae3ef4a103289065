"""Sending a generation: whole, as server-sent events, or as messages."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from typing import Protocol, TypeVar

from fastapi import Request, Response

from services.frontend import telemetry
from services.frontend.access import note
from services.frontend.api.answers import EventStream, Json
from services.frontend.api.generation import Generation
from services.frontend.core.choice import Piece
from services.frontend.errors import error_body
from services.frontend.request import watched
from shared.errors import SymphonyError

Made = TypeVar("Made")

DONE = b"[DONE]"
ENTRIES_AT_ONCE = 64  # with 20 log-probabilities each they take about a millisecond


class Writer(Protocol):
    """Turns a generation's pieces into an endpoint's JSON."""

    @property
    def generation(self) -> Generation: ...

    def num_entries(self, piece: Piece | None) -> int:
        """Tokens whose log-probabilities a piece, or (None) the whole answer, has to write."""
        ...

    def chunks(self, piece: Piece) -> list[bytes]:
        """The streamed chunks that a piece makes, maybe none."""
        ...

    def usage_chunk(self) -> bytes | None:
        """The chunk after the last, if the client asked for it."""
        ...

    def add(self, piece: Piece) -> None:
        """Keep a piece for `whole`."""
        ...

    def whole(self) -> bytes:
        """The answer that is not streamed."""
        ...


async def _written(writer: Writer, piece: Piece | None, make: Callable[[], Made]) -> Made:
    """What `make` writes of a piece or the whole; in a thread where that takes long, as it does for
    the log-probabilities of a long prompt: others are served meanwhile.
    """
    if writer.num_entries(piece) <= ENTRIES_AT_ONCE:
        return make()
    return await asyncio.to_thread(make)


async def answer_whole(writer: Writer) -> bytes:
    """Generate everything, then answer."""
    with writer.generation as generation:
        async with aclosing(generation.pieces()) as batches:
            async for pieces in batches:
                for piece in pieces:
                    writer.add(piece)
    return await _written(writer, None, writer.whole)


async def stream_chunks(writer: Writer) -> AsyncGenerator[list[bytes], None]:
    """Chunks as they come, those that came together in one list.

    A failure before the first chunk is raised; a later one is a chunk, and no ``[DONE]`` follows.
    """
    started = False
    with writer.generation as generation:
        try:
            async with aclosing(generation.pieces()) as batches:
                async for pieces in batches:
                    chunks: list[bytes] = []
                    for piece in pieces:
                        chunks += await _written(writer, piece, partial(writer.chunks, piece))
                    if chunks:
                        yield chunks
                        started = True
        except SymphonyError as error:
            if not started:
                raise
            telemetry.HTTP_ERRORS.labels(str(error.http_status)).inc()
            note(error=error.code)
            yield [error_body(error)]
            return
    last = writer.usage_chunk()
    yield [DONE] if last is None else [last, DONE]


async def respond(request: Request, writer: Writer, *, stream: bool) -> Response:
    """Answer over HTTP; the client's hanging up ends the generation.

    A stream's first chunks are awaited here: until then an error is a status.
    """
    mailbox = writer.generation.mailbox
    mailbox.reader = request.scope["state"].get("connection") if stream else None
    abandon = mailbox.abandon
    with watched(request.receive, abandon):
        if not stream:
            return Json(await answer_whole(writer))
        chunks = stream_chunks(writer)
        return EventStream(await anext(chunks), chunks, abandon)
