"""Strangers who send what has no end: how much of it is taken, and others beside them."""

import asyncio
from pathlib import Path

import pytest

from tests.conftest import Server
from tests.integration.frontend.deployment import deployment
from tests.integration.frontend.http.test_slow_clients import peer

CHUNKED = b"Host: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
KINDS = {
    "header": (b"GET /ping HTTP/1.1\r\nHost: localhost\r\nX-A: ", b"a", 431),
    "headers": (b"GET /ping HTTP/1.1\r\nHost: localhost\r\n", b"a:b\r\n", 431),
    "url": (b"GET /", b"a", 414),
    "trailers": (b"POST /tokenize HTTP/1.1\r\n" + CHUNKED + b"1\r\n{\r\n0\r\n", b"a:b\r\n", 431),
    "extension": (b"POST /v1/chat/completions HTTP/1.1\r\n" + CHUNKED + b"1;", b"a", 400),
    "chunks": (b"POST /v1/chat/completions HTTP/1.1\r\n" + CHUNKED, b"1\r\n \r\n", 400),
    "unsaid": (
        b"POST /v1/advisories HTTP/1.1\r\n" + CHUNKED,
        b"10000\r\n" + b" " * 65536 + b"\r\n", 413,
    ),
    "said": (
        b"POST /v1/load_lora_adapter HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\nContent-Length: 19000000\r\n\r\n", b" ", 413,
    ),
}  # fmt: skip
ENOUGH_BYTES = 60_000_000
TAKEN_BYTES_MAX = 6_000_000  # most of them are in the kernel's buffers


def test_what_has_no_end_is_taken_no_further(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with deployment(nats_server, redis_server, tmp_path) as it:
            for kind, (start, more, status) in KINDS.items():
                async with peer(it) as stranger, asyncio.timeout(20):
                    await stranger.send(start)
                    answer = asyncio.create_task(stranger.read())
                    piece, num_sent = more * max(65_536 // len(more), 1), 0
                    sending = asyncio.create_task(stranger.send(piece))
                    while not answer.done() and num_sent < ENOUGH_BYTES:
                        await asyncio.wait({answer, sending}, return_when="FIRST_COMPLETED")
                        if sending.done():
                            num_sent += len(piece)
                            sending = asyncio.create_task(stranger.send(piece))
                    sending.cancel()
                    told = (await answer)[:12].decode()
                    assert (kind, told) == (kind, f"HTTP/1.1 {status}")
                    assert num_sent <= TAKEN_BYTES_MAX, kind
            assert (await it.http.get("/ping")).status_code == 200

    asyncio.run(scenario())


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/advisories", "/v1/nothing", "/"])
def test_no_byte_of_a_stranger_s_body_is_waited_for(
    path: str, nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text('[{"key": "k"}]')

    async def scenario() -> None:
        async with (
            deployment(nats_server, redis_server, tmp_path, api_keys_file=keys) as it,
            peer(it) as stranger,
            asyncio.timeout(20),
        ):
            await stranger.send(stranger.head(10_000_000, path))
            assert (await stranger.read()).startswith(b"HTTP/1.1 401 ")

    asyncio.run(scenario())
