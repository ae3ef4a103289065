"""The load on raw sockets: answers with a length and in chunks, whole and in pieces, and none."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from unittest.mock import Mock

import pytest

from loadtest.http_load import Answers, _Connection, closed_loop, open_loop, send_all
from loadtest.raw_http import request_bytes

SIZED = b'HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n"{}"'
REFUSED = b'HTTP/1.1 429 No\r\ncontent-length: 28\r\n\r\n{"error": {"code": "quota"}}'
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"9\r\ndata: {}\n\r\n"
    b"c\r\ndata: [DONE]\r\n"
    b"0\r\n\r\n"
)


@asynccontextmanager
async def serve(answers: Sequence[bytes], piece_bytes: int) -> AsyncIterator[int]:
    """Answers requests in turn, in pieces; hangs up where there is no answer. Yields the port."""
    turn = iter(answers)
    over: list[asyncio.Future[None]] = []

    async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        over.append(asyncio.get_running_loop().create_future())
        is_over = over[-1]
        with suppress(asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = head.lower().partition(b"content-length:")[2].split()[0]
                await reader.readexactly(int(length))
                answer = next(turn, b"")
                for start in range(0, len(answer), piece_bytes):
                    writer.write(answer[start : start + piece_bytes])
                    await writer.drain()
                    await asyncio.sleep(0)
                if not answer:
                    break
        writer.close()
        await writer.wait_closed()
        is_over.set_result(None)

    async with await asyncio.start_server(on_connection, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]
        await asyncio.gather(*over)


def send(answers: Sequence[bytes], *, piece_bytes: int, num: int) -> Answers:
    """As many requests as there are answers, over `num` connections."""

    async def scenario() -> Answers:
        async with serve(answers, piece_bytes) as port:
            request = request_bytes("POST", "/x", port, b"{}")
            return await send_all(port, [request] * len(answers), [0.0] * len(answers), num)

    return asyncio.run(scenario())


@pytest.mark.parametrize("piece_bytes", [1, 7, 1000])
@pytest.mark.parametrize("num", [1, 2])
def test_answers_are_told_apart_however_they_come(piece_bytes: int, num: int) -> None:
    found = send([SIZED, CHUNKED, REFUSED, SIZED], piece_bytes=piece_bytes, num=num)
    assert sorted(found.status) == [200, 200, 200, 429]
    assert found.code == {found.status.index(429): "quota"}
    assert len(found.first_s) == 1 and found.num_errors == 1
    assert all(took_s > 0 for took_s in found.took_s)


@pytest.mark.parametrize(
    "answer",
    [
        SIZED,
        CHUNKED,
        REFUSED,
        b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        # Looks as if it ended in the middle: its length tells that it does not.
        b'HTTP/1.1 200 OK\r\nContent-Length: 11\r\nX: y\r\n\r\n"\r\n0\r\n\r\n{}"',
    ],
    ids=["sized", "chunked", "refused", "empty", "misleading"],
)
def test_an_answer_is_over_with_its_last_byte_and_not_before(answer: bytes) -> None:
    idle: list[object] = []
    answers = Answers()
    connection = _Connection(answers, idle.append)
    connection.connection_made(Mock(spec=asyncio.Transport))
    both = (answer, CHUNKED)  # the second knows nothing of the first
    for num_before, sent in enumerate(both):
        connection.send(0.0, b"")
        for at in range(len(sent)):
            assert len(idle) == num_before, f"over before byte {at} of {len(sent)}"
            connection.data_received(sent[at : at + 1])
        assert len(idle) == num_before + 1, "not over"
    assert answers.status == [int(sent[9:12]) for sent in both]


def test_loops_count_what_they_send_and_a_broken_connection() -> None:
    async def scenario() -> tuple[Answers, Answers]:
        async with serve([CHUNKED] * 1000, 1000) as port:
            opened = await open_loop(port, "/x", b"{}", rate=1000, connections_max=2, seconds=0.05)
        async with serve([CHUNKED] * 3, 1000) as port:
            closed = await closed_loop(port, "/x", b"{}", concurrency=1, seconds=60)
        return opened, closed

    opened, closed = asyncio.run(scenario())
    assert len(opened.first_s) == len(opened.status) > 10 and not opened.num_errors
    assert closed.status == [200, 200, 200, 0] and closed.num_errors == 1
