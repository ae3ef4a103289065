"""Sending a generation: whole, as server-sent events, or as messages."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import TypeVar

from fastapi import Request, Response

from services.frontend.api.bodies.fields import parse
from services.frontend.api.bodies.text import Streamable
from services.frontend.api.text.writing import Writer
from services.frontend.app import App, app_of
from services.frontend.core.limits.capacity import HeldCapacity
from services.frontend.core.replies.choice import Piece
from services.frontend.http.answers import EventStream, Json
from services.frontend.http.request import Origin, caller_of, origin_of, read_body, watched
from services.frontend.observability import telemetry
from services.frontend.observability.access_log import note
from shared.errors import SymphonyError

Body = TypeVar("Body", bound=Streamable)
Made = TypeVar("Made")
Its = TypeVar("Its", bound=Writer)

ENTRIES_AT_ONCE = 64  # with 20 log-probabilities each they take about a millisecond


async def written(writer: Writer, piece: Piece | None, make: Callable[[], Made]) -> Made:
    """What `make` writes of a piece or the whole; in a thread where that takes long, as it does for
    the log-probabilities of a long prompt: others are served meanwhile.
    """
    if writer.num_entries(piece) <= ENTRIES_AT_ONCE:
        return make()
    return await writer.generation.gates.answers.run(make)


async def add_all(writer: Writer) -> None:
    """Generate everything. In the context of its generation."""
    async with aclosing(writer.generation.pieces()) as batches:
        async for pieces in batches:
            for piece in pieces:
                writer.add(piece)


async def answer_whole(writer: Writer) -> bytes:
    """Generate everything, then answer."""
    with writer.generation:
        await add_all(writer)
        await writer.settle()
    return await written(writer, None, writer.whole)


async def stream_chunks(writer: Writer) -> AsyncGenerator[list[bytes], None]:
    """Chunks as they come, those that came together in one list.

    A failure before the first chunk is raised; a later one is a chunk, and the last.
    """
    started = False
    with writer.generation as generation:
        try:
            async with aclosing(generation.pieces()) as batches:
                async for pieces in batches:
                    chunks: list[bytes] = []
                    for piece in pieces:
                        chunks += await written(writer, piece, partial(writer.chunks, piece))
                    if chunks:
                        yield chunks
                        started = True
            await writer.settle()
        except SymphonyError as error:
            if not started:
                raise
            telemetry.HTTP_ERRORS.labels(str(error.http_status)).inc()
            note(error=error.code)
            yield [writer.failure_chunk(error)]
            return
    yield writer.last_chunks()


async def prepared(
    app: App, body: Body, origin: Origin, prepare: Callable[[App, Body, Origin], Awaitable[Its]]
) -> Its:
    """The writer of an answer to a body, which is not needed any more.

    Raises:
        TenantQuota: the tenant has used up its turns; before anything costs time.
        SymphonyError: the body cannot be served as it is.
    """
    app.quotas.check_turns(origin.tenant)
    return await prepare(app, body, origin)


async def respond(
    request: Request,
    kind: type[Body],
    prepare: Callable[[App, Body, Origin], Awaitable[Its]],
    begin: Callable[[App, Its], Awaitable[Response | None]] | None = None,
) -> Response:
    """Answer over HTTP; the client's hanging up ends the generation.

    A stream's first chunks are awaited here: until then an error is a status.

    Args:
        begin: goes on without the client, and gives what it is answered; None: it waits.
    """
    app = app_of(request)
    with HeldCapacity(app.capacity_of(caller_of(request).tenant)) as held:
        writer = await prepared(
            app,
            parse(kind, await read_body(request, app.config, held)),
            origin_of(request),
            prepare,
        )
        writer.generation.keep(held)
        if begin is not None and (answer := await begin(app, writer)) is not None:
            return answer
        mailbox = writer.generation.mailbox
        is_streamed = writer.is_streamed
        mailbox.reader = request.scope["state"].get("connection") if is_streamed else None
        abandon = mailbox.abandon
        with watched(request.receive, abandon):
            if not is_streamed:
                return Json(await answer_whole(writer))
            chunks = stream_chunks(writer)
            return EventStream(await anext(chunks), chunks, abandon)
