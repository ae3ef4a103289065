"""``symphony bench http``: what its streams count."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import orjson
import pytest

from loadtest.bench.http_streams import PROFILE, _Stream, figures, write_profile
from shared.profiles import load_profile

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b"9\r\ndata: {}\n\n\r\n"


def stream(answer: bytes, piece_bytes: int) -> _Stream:
    """One whose answer comes in such pieces."""

    async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split()[0])
        assert orjson.loads(await reader.readexactly(length))["stream"] is True
        for start in range(0, len(answer), piece_bytes):
            writer.write(answer[start : start + piece_bytes])
            await writer.drain()
            await asyncio.sleep(0.001)
        writer.close()
        await writer.wait_closed()
        is_answered.set()

    async def scenario() -> _Stream:
        async with await asyncio.start_server(on_connection, "127.0.0.1", 0) as server:
            async with AsyncExitStack() as stack:
                opened = await _Stream.open(server.sockets[0].getsockname()[1], stack)
                await is_answered.wait()
                await asyncio.sleep(0.01)
            return opened

    is_answered = asyncio.Event()
    return asyncio.run(scenario())


@pytest.mark.parametrize("piece_bytes", [1, 5, 11, 12, 1000])
def test_every_event_counts_once_however_it_comes(piece_bytes: int) -> None:
    assert stream(HEAD + 5 * EVENT + b"0\r\n\r\n", piece_bytes).num_events == 5


def test_a_refusal_is_no_stream() -> None:
    refused = stream(b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}", 1000)
    assert refused.is_over and not refused.num_events


def test_a_token_is_told_in_microseconds_of_each_process(tmp_path: Path) -> None:
    assert figures({"frontend": 0.5, "nats": 0.1}, 100, 10_000, 4.0) == {
        "streams": 100,
        "tokens_per_s": 2500,
        "token_us": {"frontend": 50.0, "nats": 10.0},
        "streams_at_25_per_s": 800,
    }
    assert load_profile(str(write_profile(tmp_path))).name == PROFILE["name"]
