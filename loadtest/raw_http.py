"""HTTP as bytes: requests that no library would send, and answers as they come.

One connection a request. Nothing is checked on the way out.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

LINE_BYTES_MAX = 64 * 1024**2
NO_BODY = frozenset({204, 304})
EVENT = b"data: "


@dataclass(frozen=True, slots=True)
class Answer:
    """Attributes:
    status: 0 if the connection ended before there was one.
    headers: names in lower case; of several the last.
    is_whole: whether it came to its end.
    """

    status: int
    headers: Mapping[bytes, bytes]
    body: bytes
    is_whole: bool = True


NOTHING = Answer(0, {}, b"", is_whole=False)


def request_bytes(
    method: str, path: str, port: int, body: bytes | None = None, *more_headers: bytes
) -> bytes:
    """A request as clients send it.

    >>> request_bytes("GET", "/ping", 80)
    b'GET /ping HTTP/1.1\\r\\nHost: 127.0.0.1:80\\r\\n\\r\\n'
    """
    lines = [f"{method} {path} HTTP/1.1".encode(), f"Host: 127.0.0.1:{port}".encode()]
    if body is not None:
        lines += [b"Content-Type: application/json", b"Content-Length: %d" % len(body)]
    return b"\r\n".join([*lines, *more_headers]) + b"\r\n\r\n" + (body or b"")


@asynccontextmanager
async def sent(port: int, data: bytes) -> AsyncIterator[asyncio.StreamReader]:
    """What comes back for `data` on a connection of its own.

    Raises:
        OSError: the connection is refused.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=LINE_BYTES_MAX)
    sending = asyncio.create_task(_send(writer, data))
    try:
        yield reader
    finally:
        sending.cancel()
        writer.close()


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    try:
        writer.write(data)
        await writer.drain()
    except OSError:
        return  # refused before all was read: the answer says why


async def ask(port: int, data: bytes) -> Answer:
    """Send `data` and read what is answered first; see `sent`."""
    async with sent(port, data) as reader:
        return await read_answer(reader, has_body=not data.startswith(b"HEAD "))


async def read_answer(reader: asyncio.StreamReader, *, has_body: bool = True) -> Answer:
    """The next answer; what was there of it if the connection ends before it does."""
    status, body = 0, bytearray()
    headers: dict[bytes, bytes] = {}
    try:
        status, headers = await read_head(reader)
        if has_body and status not in NO_BODY:
            async for piece in read_pieces(reader, headers):
                body += piece
    except (asyncio.IncompleteReadError, ConnectionError, ValueError, IndexError):
        return Answer(status, headers, bytes(body), is_whole=False)
    return Answer(status, headers, bytes(body))


async def read_head(reader: asyncio.StreamReader) -> tuple[int, dict[bytes, bytes]]:
    """Status and headers of the next answer.

    Raises:
        EOFError, OSError: the connection ended.
        ValueError, IndexError: it is no answer.
    """
    status = 100
    headers: dict[bytes, bytes] = {}
    while 100 <= status < 200:
        status = int((await reader.readuntil(b"\n")).split(b" ")[1])
        headers = {}
        while line := (await reader.readuntil(b"\n")).strip():
            name, _, value = line.partition(b":")
            headers[name.strip().lower()] = value.strip()
    return status, headers


async def read_pieces(
    reader: asyncio.StreamReader, headers: Mapping[bytes, bytes]
) -> AsyncIterator[bytes]:
    """The body of an answer as it comes, chunk by chunk.

    Raises:
        EOFError, OSError: the connection ended before the body.
        ValueError: it is no body.
    """
    if b"chunked" in headers.get(b"transfer-encoding", b""):
        while num_bytes := int(await reader.readuntil(b"\n"), 16):
            yield (await reader.readexactly(num_bytes + 2))[:-2]
        await reader.readuntil(b"\n")
    elif b"content-length" in headers:
        yield await reader.readexactly(int(headers[b"content-length"]))
    else:
        yield await reader.read(-1)


async def events(
    reader: asyncio.StreamReader, headers: Mapping[bytes, bytes]
) -> AsyncIterator[bytes]:
    """The events of a streamed answer, and ``[DONE]``; ends when the connection does."""
    rest = b""
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        async for piece in read_pieces(reader, headers):
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                if line.startswith(EVENT):
                    yield line[len(EVENT) :].strip()
