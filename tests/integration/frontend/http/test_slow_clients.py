"""Clients that do not send, do not read, or come in crowds; and others beside them."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
import pytest

from services.frontend.turns import hub
from tests.conftest import Server
from tests.integration.frontend.deployment import MODEL, Deployment, Reply, deployment, eventually
from tests.integration.harness import eventually_answers

HI = [{"role": "user", "content": "hi"}]
CHAT = {"model": MODEL, "messages": HI}
# Half a megabyte or so: far more than the kernel keeps for a connection.
LONG = CHAT | {"stream": True, "logprobs": True, "top_logprobs": 20}
TEXT = "x" * 400
LITTLE_BYTES = 4096


class Peer:
    """A client that reads only when told to."""

    def __init__(self, it: Deployment, raw: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._host = urlsplit(it.url).netloc
        self._raw = raw

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self._raw, data)

    async def trickle(self) -> None:
        """A byte now and then, as long as somebody listens."""
        try:
            while True:
                await self.send(b"x")
                await asyncio.sleep(0.02)
        except ConnectionError:
            pass

    async def post(self, body: dict[str, Any]) -> None:
        content = orjson.dumps(body)
        await self.send(self.head(len(content)) + content)

    def head(self, num_bytes: int, path: str = "/v1/chat/completions") -> bytes:
        return (
            f"POST {path} HTTP/1.1\r\nHost: {self._host}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {num_bytes}\r\n\r\n"
        ).encode()

    async def read(self, num_bytes: int = 65_536) -> bytes:
        return await self._loop.sock_recv(self._raw, num_bytes)

    async def read_all(self) -> bytes:
        """Until the other side closes, or resets."""
        found = b""
        try:
            while part := await self.read():
                found += part
        except ConnectionError:
            pass
        return found


@asynccontextmanager
async def peer(it: Deployment, address: str = "127.0.0.1") -> AsyncIterator[Peer]:
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, LITTLE_BYTES)
        raw.bind((address, 0))
        raw.setblocking(False)
        where = urlsplit(it.url)
        await asyncio.get_running_loop().sock_connect(raw, (where.hostname, where.port))
        yield Peer(it, raw)


async def num_hung_up(it: Deployment, reason: str) -> int:
    metrics = (await it.http.get("/metrics")).text
    found = re.search(rf'connections_hung_up_total{{reason="{reason}"}} ([\d.]+)', metrics)
    return int(float(found[1])) if found else 0


async def num_errors(it: Deployment, status: int) -> int:
    metrics = (await it.http.get("/metrics")).text
    found = re.search(rf'http_errors_total{{code="{status}"}} ([\d.]+)', metrics)
    return int(float(found[1])) if found else 0


async def is_served(it: Deployment) -> bool:
    return (await it.http.post("/v1/chat/completions", json=CHAT)).status_code == 200


def says_too_slow(answer: bytes) -> bool:
    head, _, body = answer.partition(b"\r\n\r\n")
    return (
        head.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
        and orjson.loads(body)["error"]["code"] == "request_timeout"
    )


def test_requests_that_do_not_come(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with (
            deployment(nats_server, redis_server, tmp_path, slow_request_s=0.4) as it,
            peer(it) as silent,
            peer(it) as heading,
            peer(it) as sending,
            peer(it) as messaging,
            peer(it) as refused,
        ):
            before = {reason: await num_hung_up(it, reason) for reason in ("head", "body")}
            await heading.send(b"GET /ping HTTP/1.1\r\nX-Slow: ")
            await sending.send(sending.head(1_000_000) + b'{"model')
            await messaging.send(messaging.head(1_000_000, "/v1/messages") + b'{"model')
            await refused.send(refused.head(10**9))
            assert (await refused.read()).startswith(b"HTTP/1.1 413 ")
            async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
                for it_trickles in (heading, sending, messaging, refused):
                    tasks.create_task(it_trickles.trickle())
                read = (silent, heading, sending, messaging)
                answers = [tasks.create_task(p.read_all()) for p in read]
                assert await is_served(it)
            assert answers[0].result() == b""
            assert all(says_too_slow(answer.result()) for answer in answers[1:])
            told = orjson.loads(answers[3].result().partition(b"\r\n\r\n")[2])
            assert (told["type"], bool(told["request_id"])) == ("error", True)
            assert await num_hung_up(it, "head") == before["head"] + 2
            assert await num_hung_up(it, "body") == before["body"] + 3
            assert await is_served(it)

    asyncio.run(scenario())


def error_code(answer: bytes) -> str:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\n")
    error: dict[str, str] = orjson.loads(body)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return error["code"]


def holding(never: asyncio.Event, at: int) -> Callable[[Any], Reply]:
    """Replies to `LONG` that stop there; others are whole."""

    def reply(prompt: Any) -> Reply:
        is_long = prompt.sampling.logprobs is not None
        return Reply(TEXT, hold=never, hold_at=at) if is_long else Reply()

    return reply


def test_what_is_no_http_is_an_error_as_any_other(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario() -> None:
        go_on = asyncio.Event()
        reply = holding(go_on, at=2)
        async with (
            deployment(nats_server, redis_server, tmp_path, reply) as it,
            peer(it) as babbling,
            peer(it) as streaming,
        ):
            before = await num_errors(it, 400)
            await babbling.send(b"GET /ping HTTP/1.1\r\nno colon\r\n\r\n")
            async with asyncio.timeout(20):
                assert error_code(await babbling.read_all()) == "invalid_http"
                assert await num_errors(it, 400) == before + 1
                await streaming.post(LONG)
                begun = await streaming.read()
                assert begun.startswith(b"HTTP/1.1 200 ")
                await streaming.send(b"no HTTP at all\r\n\r\n")
                go_on.set()
                stream, end, rest = (await streaming.read_all()).partition(b"0\r\n\r\n")
            assert end and b"HTTP/1.1" not in stream, "an answer in the middle of another"
            assert error_code(rest) == "invalid_http"
            assert await is_served(it)

    asyncio.run(scenario())


def test_readers_that_never_read_leave_their_slots(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    reply = holding(asyncio.Event(), at=len(TEXT) - 1)

    async def scenario() -> None:
        async with (
            deployment(
                nats_server, redis_server, tmp_path, reply, requests_max=2, stalled_reader_s=1.0
            ) as it,
            peer(it) as first,
            peer(it) as second,
        ):
            before = await num_hung_up(it, "reader")
            await first.post(LONG)
            await second.post(LONG)
            await eventually(lambda: len(it.fake.prompts) == 2)
            refused = await it.http.post("/v1/chat/completions", json=CHAT)
            assert refused.status_code == 429
            assert (await it.http.get("/ping")).status_code == 200
            # Their turns still ran: the worker hears that nobody waits for them.
            await eventually(lambda: len(it.fake.cancels) == 2)
            assert {c.turn_id for c in it.fake.cancels} == {p.turn_id for p in it.fake.prompts}
            assert await num_hung_up(it, "reader") == before + 2
            await eventually_answers(lambda: is_served(it), bool)

    asyncio.run(scenario())


def test_a_whole_answer_that_is_never_read(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with (
            deployment(
                nats_server, redis_server, tmp_path, lambda _: Reply(TEXT), stalled_reader_s=0.4
            ) as it,
            peer(it) as deaf,
        ):
            before = await num_hung_up(it, "reader")
            await deaf.post(LONG | {"stream": False})
            await eventually_answers(lambda: num_hung_up(it, "reader"), lambda n: n == before + 1)
            assert len(await deaf.read_all()) < 300_000
            assert await is_served(it)

    asyncio.run(scenario())


def test_a_slow_reader_gets_everything(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with (
            deployment(
                nats_server, redis_server, tmp_path, lambda _: Reply(TEXT), stalled_reader_s=0.4
            ) as it,
            peer(it) as slow,
        ):
            await slow.post(LONG)
            found, num_reads = b"", 0
            while b"data: [DONE]" not in found[-100:]:
                part = await slow.read(16_384)
                assert part, "hung up on"
                found, num_reads = found + part, num_reads + 1
                await asyncio.sleep(0.02)
            assert found.count(b'"content":"x"') == len(TEXT) and num_reads > 20
            assert not it.fake.cancels

    asyncio.run(scenario())


def test_what_is_unread_has_a_limit(
    nats_server: Server, redis_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "UNREAD_MAX", 1_000)
    never = asyncio.Event()

    async def scenario() -> None:
        said = Reply(TEXT, hold=never, hold_at=len(TEXT) - 1)
        async with (
            deployment(nats_server, redis_server, tmp_path, lambda _: said) as it,
            peer(it) as p,
        ):
            before = await num_hung_up(it, "unread")
            await p.post(LONG)
            await eventually(lambda: len(it.fake.cancels) == 1)
            assert await num_hung_up(it, "unread") == before + 1

    asyncio.run(scenario())


def test_a_crowd_from_one_address(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario() -> None:
        crowd = "127.0.0.2"
        async with (
            deployment(nats_server, redis_server, tmp_path, connections_per_address=8) as it,
            peer(it, crowd) as first,
        ):
            before = await num_hung_up(it, "crowd")
            others = AsyncExitStack()
            for _ in range(8):
                last = await others.enter_async_context(peer(it, crowd))
            assert await last.read_all() == b""
            assert await num_hung_up(it, "crowd") == before + 1
            await first.post(CHAT)
            assert (await first.read()).startswith(b"HTTP/1.1 200 ")
            assert await is_served(it)
            await others.aclose()

            async def gets_in() -> bool:
                async with peer(it, crowd) as later:
                    try:
                        await later.post(CHAT)
                        return (await later.read()).startswith(b"HTTP/1.1 200 ")
                    except ConnectionError:
                        return False

            await eventually_answers(gets_in, bool)

    asyncio.run(scenario())


def test_choices_take_slots(nats_server: Server, redis_server: Server, tmp_path: Path) -> None:
    async def scenario() -> None:
        go_on = asyncio.Event()
        said = Reply(hold=go_on)
        async with deployment(
            nats_server, redis_server, tmp_path, lambda _: said, requests_max=4
        ) as it:

            async def status(n: int, **more: Any) -> int:
                body = CHAT | {"n": n} | more
                return (await it.http.post("/v1/chat/completions", json=body)).status_code

            assert await status(5) == 400
            prompts = {"model": MODEL, "prompt": ["a", "b", "c"], "n": 2}
            assert (await it.http.post("/v1/completions", json=prompts)).status_code == 400
            held = asyncio.create_task(status(3))
            await eventually(lambda: len(it.fake.prompts) == 3)
            assert await status(2) == 429
            fits = asyncio.create_task(status(1))
            await eventually(lambda: len(it.fake.prompts) == 4)
            assert await status(1) == 429
            go_on.set()
            assert await held == 200 and await fits == 200
            assert await status(4) == 200

    asyncio.run(scenario())
